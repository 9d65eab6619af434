"""Table 1 of tSparse: counts of the sixteen matrices, ours beside the printed ones."""

import re

import pandas

from spectile_study.bench.claims import listed, printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.tables import Table
from spectile_study.figures.tsparse import SIXTEEN, matrices, not_at_hand, short, why_missing

NEEDS = ("matrices",)  # elements whose cases are drawn here, too

COUNTS = {
    "n": "rows", "nnz": "NNZ(A)", "nnz_c": "NNZ(C)", "products": "NNZ(C̄)", "tiles_c": "NNZ(C_tiles)",
    "tile_products": "NNZ(C̄_tiles)", "tile_density_median": "median", "tile_density_mean": "mean",
    "tile_density_std": "std",
}  # fmt: skip


def table(frame: pandas.DataFrame) -> Table:
    lines, notes = [], []
    result = Table("Table 1: characteristics of the matrices")
    printed_claims = set(listed().index)
    for name in [*SIXTEEN, *matrices(frame, "family")]:
        rows = at(frame, p_matrix=name)
        indexed = at(rows, method="index", status="ok")
        rows = rows[rows["v_products"].notna()].iloc[:1]
        line: dict[str, object] = {"matrix": short(name)}
        agree = bool(len(rows) or len(indexed))
        for count, head in COUNTS.items():
            claim = _claim(name, count)
            paper = printed(claim) if claim in printed_claims else None
            # The index knows no more of a matrix than its rows and nonzeros.
            here = rows if len(rows) else indexed if count in ("n", "nnz") else rows
            ours = float(here[f"v_{count}"].iloc[0]) if len(here) else paper
            exact = count in ("n", "nnz", "nnz_c", "products", "tiles_c", "tile_products")
            line[head] = None if ours is None else int(ours) if exact else round(ours, 1)
            if len(here):
                result.cite(here, f"v_{count}")
                if paper is not None:
                    agree &= ours == paper if exact else abs(ours - paper) <= 0.06
        known = _claim(name, "n") in printed_claims
        line["source"] = _source(len(rows) > 0, len(indexed) > 0, known, agree)
        if not len(rows) and "not at hand" not in (reason := why_missing(frame, name)):
            notes.append(reason)
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = dict.fromkeys(("median", "mean", "std"), "{:.1f}")
    result.notes = [
        "Tile counts are taken after the filter of empty products; NNZ(C) is structural.",
        *not_at_hand(frame),
        *notes,
    ]
    return result


def _claim(matrix: str, count: str) -> str:
    """Return the name of the claim on a count of a matrix."""
    key = re.sub(r"[^a-z0-9]+", "_", matrix.lower())
    return f"tsparse_t1_{key}_{count.replace('tile_density', 'density')}"


def _source(measured: bool, indexed: bool, known: bool, agree: bool) -> str:
    if not known:
        return "generated"
    if measured:
        return "equals the paper" if agree else "differs"
    return f"printed; rows and NNZ(A) {'as' if agree else 'other than'} in the index" if indexed else "printed"


def claims(rows: Rows) -> dict[str, Ours]:
    found = {}
    for name in SIXTEEN:
        here = rows.at(p_matrix=name, method=("spectile_float64", "index"))
        for count in COUNTS:
            found[_claim(name, count)] = here.column(f"v_{count}").only()
    return found
