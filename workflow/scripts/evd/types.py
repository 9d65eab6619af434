"""The eigensolver by type of the entries: seconds of ours and of cuSOLVER's two algorithms, and who was called."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Table, first_value

NEEDS = ("fig11",)  # elements whose cases are drawn here, too

TYPES = ("float32", "float64", "complex64", "complex128")
VENDORS = ("cusolver_one_stage", "cusolver_two_stage", "lapack")


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="evd")
    # Types that the device is not measured in at the same orders say nothing beside the others.
    orders = set(rows.loc[rows["p_precision"] != "float64", "p_n"])
    rows = rows[rows["p_n"].isin(orders)].sort_values(["p_n", "p_vectors", "p_precision"], key=_order)
    result = Table("The eigensolver by type of the entries")
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        first, vectors = here.iloc[0], bool(here["p_vectors"].iloc[0])
        what = "with vectors" if vectors else "eigenvalues"
        line: dict[str, object] = {"n": int(first["p_n"]), "what": what, "type": first["p_precision"]}
        if pandas.notna(first["v_vendor_called"]):
            line["eigh runs"] = "cuSOLVER" if str(first["v_vendor_called"]) == "True" else "our two stages"
        for method in ("spectile", "spectile_two_stage", *VENDORS):
            found = at(here, method=method, status="ok")
            found = found[found["time_s"].notna()]
            line[f"{name(method)}: s"] = first_value(found, "time_s")
            result.cite(found, "time_s")
        for method in VENDORS:
            found = speedups(here, "spectile", method)
            line[f"over {name(method)}"] = first_value(found, "speedup")
            result.cite(found, "speedup")
        lines.append(line)
    result.data = pandas.DataFrame(lines).dropna(axis="columns", how="all")
    result.formats = {f"over {name(method)}": "{:.2f}" for method in VENDORS}
    result.notes.append(
        "Below the crossover of its type eigh calls the vendor's own code; our two stages are measured beside it there."
    )
    result.notes += sorted(set(at(rows, status="failed")["reason"].dropna()))
    if not lines:
        result.notes.append("This run holds no record in float32, complex64 or complex128.")
    return result


def _order(column: pandas.Series) -> pandas.Series:
    """Sort types by their size, real ones first; other columns as they are."""
    return column.map(TYPES.index) if column.name == "p_precision" else column
