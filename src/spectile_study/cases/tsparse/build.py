"""What the workflow measures of sparse products: a matrix squared, or a product of two, by every method in one process.

Methods (the column ``method``): ``tasks_<precision>`` is the paper's (task list, sort, counting, multiplication on
tensor cores, compaction), conversions to and from bitmap tiles apart as in the paper; ``tasks_nontcu`` the same in
float16 without tensor cores, and ``tasks_csr_float16`` from CSR to CSR.  ``spectile_<precision>`` is ``spgemm(A, A,
precision=...)``, CSR to CSR with sorted columns, check of the input, analysis and allocations included;
``rows_<precision>`` the same of checked and rounded factors; ``tiles_csr_<precision>`` is the paper's product from CSR
to CSR, which keeps the entries that cancel; ``cusparse_<precision>`` the vendor's product with its allocations;
``scipy_<precision>`` SciPy's product and the sort that brings it to the same form (entries that cancel are
left out).  The ending ``_empty_pool`` marks calls that find CuPy's memory pool empty, ``_one_thread`` calls on one
thread of the CPU, where the others take as many as Numba is given.  On a GPU times are events after the second-level
cache was overwritten, but for ``_as_called``, the wall clock of a public call and a wait, and ``_throughput``, the same
over many calls with one wait: of ``spectile``, of ``cupyx`` (CuPy's ``A @ A``), and of products whose pattern is known:
``numeric`` and the vendor's ``cusparse_reuse``.  Of a matrix that is not at hand ``index`` says what the collection's
index does: its rows and nonzeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spectile.core.tiling import ceil_div
from spectile_study.bench.case import Context, InputAbsent, Method, Problem
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.tsparse import capabilities, host, second_set
from spectile_study.cases.tsparse.checks import Check
from spectile_study.cases.tsparse.tiles import half, reference
from spectile_study.inputs import suitesparse

PAPER = "tsparse"


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/tsparse.tsv``."""
    pinned = context.study / "config/matrices.tsv"
    table = pinned if pinned.exists() else None
    if row.get("part") in capabilities.CAPABILITIES:
        return capabilities.problem(row, context, lambda: suitesparse.matrix(row["matrix"], context.resources, table))
    if row.get("product"):
        return second_set.problem(row["product"], context)
    try:
        A = suitesparse.matrix(row["matrix"], context.resources, table)
    except suitesparse.MissingMatrix as error:
        if error.entry is None:
            raise
        raise InputAbsent(str(error), [_index(error.entry, table)]) from None
    counts = table1(A)
    check = Check(A, int(counts["nnz_c"]), context.seed)
    if context.device == "cuda":
        from spectile_study.cases.tsparse import device

        methods = device.methods(A, counts, check, bool(row["empty_pool"]))
    else:
        methods = host.methods(A, counts, check)
    inputs = {"A": digest_array(A.data), "pattern": digest_array(A.indices)}
    return Problem(methods, inputs, counts | conditions(A))


def _index(entry: suitesparse.Entry, table: Path | None) -> Method:
    """Return the method that has of a matrix what the collection's index says, checked by the pinned counts."""
    pinned = suitesparse.read_table(table).get(entry.key) if table else None
    expected = (pinned.rows, pinned.nnz) if pinned else (entry.rows, entry.nnz)

    def check(found: tuple[int, int]) -> dict[str, float]:
        return {"error_max": float(max(abs(a - b) for a, b in zip(found, expected, strict=True)))}

    return Method(
        "index",
        lambda: (entry.rows, entry.nnz),
        check,
        {"error_max": 0.0},
        clock="none",
        values=lambda found: {"n": found[0], "nnz": found[1]},
    )


def table1(A: Any) -> dict[str, Any]:
    """Return Table 1's counts of A squared, tile counts after the filter (as `reference.table1`, compiled)."""
    from spectile_study.cases.tsparse.tiles.counts import tile_counts

    tiles = reference.to_bitmap(A)
    width = ceil_div(A.shape[1], reference.TILE)
    start = np.searchsorted(tiles.tile_rows, np.arange(ceil_div(A.shape[0], reference.TILE) + 1))
    factor = (start, tiles.tile_columns, tiles.bitmaps)
    tiles_c, tile_products, nnz_c = tile_counts(factor, factor, max(width, 1))
    density = tiles.density if tiles.tiles else np.zeros(1)
    return {
        "n": int(A.shape[0]),
        "nnz": int(A.nnz),
        "nnz_c": int(nnz_c),
        "products": int(np.diff(A.indptr).astype(np.int64)[A.indices].sum()),
        "tiles_a": int(tiles.tiles),
        "tiles_c": int(tiles_c),
        "tile_products": int(tile_products),
        "tile_density_median": float(np.median(density)),
        "tile_density_mean": float(density.mean()),
        "tile_density_std": float(density.std()),
    }


def conditions(A: Any) -> dict[str, Any]:
    """Return what Section 6.1 asks of a matrix of the collection (bitmap density is among Table 1's counts)."""
    size = np.abs(A.data[A.data != 0])
    return {
        "square": A.shape[0] == A.shape[1],
        "half_range": bool(size.size == 0 or (size.max() <= half.MOST and size.min() >= half.NORMAL)),
        "row_mean": float(A.nnz / max(A.shape[0], 1)),
        "row_max": int(np.diff(A.indptr).max(initial=0)),
    }
