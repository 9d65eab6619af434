"""Criteria of where tSparse's product is faster (Table 2): the paper's, how good they are, and ours re-fitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas

from spectile_study.bench.stats import speedups
from spectile_study.figures.tsparse import OTHERS, vendor


def collection(frame: pandas.DataFrame, ours: str = "tasks_float16", rival: str = "cusparse") -> pandas.DataFrame:
    """Return one row for each matrix that meets the paper's conditions, with the speed-up of `ours` over a rival.

    Real, square, in the range of float16, more than 10,000 entries, more than one a tile; neither of the two failed.

    Parameters
    ----------
    frame : DataFrame
    ours : str
        A method.
    rival : str
        The vendor's library as ``"cusparse"``, another library, or ``"all"``: the fastest of all that ran.
    """
    rivals = {"cusparse": vendor(frame, "float16")} | {name: name for name in OTHERS}
    wanted = list(rivals.values()) if rival == "all" else [rivals[rival]]
    found = [speedups(frame, ours, baseline) for baseline in wanted]
    rows = pandas.concat([one for one in found if len(one)] or found[:1])
    rows = rows.sort_values("speedup", kind="stable").drop_duplicates("case").sort_index()
    kept = (rows["v_nnz"] > 10_000) & rows["v_square"] & rows["v_half_range"] & (rows["v_tile_density_mean"] > 1)
    return rows[kept.astype(bool)].assign(filled=lambda r: r["v_products"] / r["v_tile_products"])


def scores(predicted: np.ndarray, faster: np.ndarray) -> tuple[float | None, float | None]:
    """Return precision and recall."""
    hits = int((predicted & faster).sum())
    return (hits / predicted.sum() if predicted.any() else None), (hits / faster.sum() if faster.any() else None)


def fitted(rows: pandas.DataFrame, column: str) -> float:
    """Return the value of `column` from which predicting "faster" is right most often."""
    faster = rows["speedup"] > 1
    return max(np.sort(rows[column]), key=lambda cut: ((rows[column] >= cut) == faster).mean())


def long_rows(mean: int, nnz: int) -> tuple[str, Callable[[pandas.DataFrame], pandas.Series]]:
    """Return the paper's criterion of rows longer than `mean` and more than `nnz` entries: its text and its test."""
    return f"row > {mean} and NNZ(A) > {nnz:,}", lambda r: (r["v_row_mean"] > mean) & (r["v_nnz"] > nnz)


CRITERIA = (
    ("cusparse", "NNZ(A) > 200,000", lambda r: r["v_nnz"] > 200_000),
    ("cusp", "NNZ(C̄)/NNZ(C̄_tiles) >= 1", lambda r: r["filled"] >= 1),
    ("rmerge2", *long_rows(42, 100_000)),
    ("nsparse", *long_rows(42, 100_000)),
    ("ac_spgemm", "NNZ(C̄)/NNZ(C̄_tiles) > 9", lambda r: r["filled"] > 9),
    ("speck", *long_rows(42, 300_000)),
    ("all", *long_rows(42, 300_000)),
    ("", *long_rows(21, 100_000)),
    ("", *long_rows(21, 300_000)),
)
