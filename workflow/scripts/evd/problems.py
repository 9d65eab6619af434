"""Generalized, partial, batched, banded and tridiagonal problems as called, ours beside their rivals in one run."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Cell, Table

KINDS = ("generalized", "partial", "batched", "banded", "tridiagonal")
#: What each kind is held against, and what that method is called there.
RIVALS = {
    "generalized": {"cusolver": "cuSOLVER's sygvd", "scipy": "SciPy's gvd, host"},
    "partial": {"cusolver": "cuSOLVER's syevdx", "scipy": "SciPy's evr, host"},
    "batched": {"cupy": "CuPy's eigh", "numpy": "NumPy's eigh, host"},
    "banded": {"scipy": "SciPy's eig_banded, host"},
    "tridiagonal": {"scipy": "SciPy's eigh_tridiagonal, host"},
}
#: Our own whole problems, whose cost a kind is held against.
OWN = {"spectile_standard": "our standard problem", "spectile_values": "all values", "spectile_all": "all vectors"}


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Other problems, as called: seconds of ours, and how many times as fast as the rival")
    rows = select(frame, "p_study=problems")
    lines = []
    for case in _ordered(rows):
        here = select(rows, f"case={case}")
        first = here.iloc[0]
        line: dict[str, object] = {"problem": first["p_problem"], "what": _words(first)}
        ours = _timed(here, "spectile")
        line["spectile: s"] = float(ours["time_s"].iloc[0]) if len(ours) else None
        result.cite(ours, "time_s")
        for place, (method, words) in enumerate(RIVALS[first["p_problem"]].items(), start=1):
            faster = speedups(here, "spectile", method)
            line[f"over rival {place}"] = (
                Cell(float(faster["speedup"].iloc[0]), "{:.2f}", {"rival": words}, "{rival}") if len(faster) else "-"
            )
            result.cite(faster, "speedup").cite(_timed(here, method), "time_s")
        shares = []
        for method, words in OWN.items():
            found = speedups(here, "spectile", method)
            if len(found):
                shares.append(f"{1 / float(found['speedup'].iloc[0]):.2f} of {words}")
                result.cite(found, "speedup")
        line["time of ours"] = "; ".join(shares) or "-"
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    if not lines:
        result.notes.append("This run holds no record of these problems.")
        return result
    result.notes.append(
        "Public functions on the wall clock, with their checks, copies and work space; the rivals of one row ran "
        f"between ours in the same process. {name('spectile')} runs on {rows['device'].iloc[0]}; a rival that says so "
        "runs on its host's cores."
    )
    result.notes += sorted(set(select(rows, "status=failed")["reason"].dropna()))
    return result


def _timed(rows: pandas.DataFrame, method: str) -> pandas.DataFrame:
    found = select(rows, f"method={method},status=ok")
    return found[found["time_s"].notna()]


def _ordered(rows: pandas.DataFrame) -> list[str]:
    """Return the cases by kind and size."""
    if not len(rows):
        return []
    rank = rows["p_problem"].map(KINDS.index)
    return list(dict.fromkeys(rows.assign(rank=rank).sort_values(["rank", "p_n", "p_vectors"], kind="stable")["case"]))


def _words(row: pandas.Series) -> str:
    n, what = f"n = {int(row['p_n']):,}", "vectors" if row["p_vectors"] else "values"
    if row["p_problem"] == "partial":
        return f"{n}, {int(row['p_k']):,} lowest pairs"
    if row["p_problem"] == "batched":
        return f"{int(row['p_batch']):,} matrices of {n}, {row['p_precision']}"
    if row["p_problem"] == "banded":
        return f"{n}, {int(row['p_bandwidth'])} subdiagonals, {what}"
    return f"{n}, {what}"
