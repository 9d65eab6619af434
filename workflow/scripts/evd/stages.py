"""The stages of the eigensolver with eigenvectors, by order, and how far each is from its floor at the largest."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import rates
from spectile_study.figures.evd import floors
from spectile_study.figures.tables import Table, first_value

NEEDS = ("fig3", "fig11")  # elements whose cases are drawn or judged here, too

STAGES = {
    "load": "load, scale, mirror",
    "band_reduction": "band reduction",
    "chasing": "bulge chasing",
    "eigenvalues": "eigenvalues alone (not in the sum)",
    "divide_and_conquer": "divide and conquer",
    "cusolver_stedc": "cuSOLVER's divide and conquer (not in the sum)",
    "back_chasing": "back through the chasing",
    "back_panels": "back through the panels",
}
APART = ("eigenvalues", "cusolver_stedc")


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="stages", status="ok")
    rows = rows[rows["time_s"].notna()]
    result = Table("The solver with eigenvectors, stage by stage")
    if not len(rows):
        result.notes.append("Not measured yet: python -m spectile_study measure --paper evd --element stages")
        return result
    orders = sorted(rows["p_n"].unique())
    ceilings = floors(frame, rows, orders[-1])
    lines = []
    for method, name in STAGES.items():
        line: dict[str, object] = {"stage": name}
        for n in orders:
            found = at(rows, p_n=n, method=method)
            line[_column(rows, n)] = first_value(found, "time_s")
            result.cite(found, "time_s")
        last = at(rows, p_n=orders[-1], method=method)
        line["TFLOP/s"] = float(rates(last).iloc[0]) if len(last) and last["flops"].notna().all() else ""
        line["floor, s"], line["floor from"] = ceilings.get(method, ("", ""))
        lines.append(line)
    sums = rows[~rows["method"].isin(APART)].groupby("p_n")["time_s"].sum()
    total = {"stage": "sum", "TFLOP/s": "", "floor from": ""} | {_column(rows, n): sums[n] for n in orders}
    total["floor, s"] = sum(ceilings[name][0] for name in ceilings if name not in APART) if ceilings else ""
    result.data = pandas.DataFrame([*lines, total])
    result.notes.append(
        f"Seconds; rate and floor at n = {orders[-1]:,}. A floor is the stage's own operations or bytes at the best "
        "rate that this run measured for their kind; of the chasing, three dependent tasks a column, as long as where "
        "they are shortest."
    )
    return result


def _column(rows: pandas.DataFrame, n: int) -> str:
    width = rows.loc[rows["p_n"] == n, "v_bandwidth"].iloc[0]
    return f"n = {n:,.0f}, b = {width:,.0f}"


def claims(rows: Rows) -> dict[str, Ours]:
    here = rows.at(p_n=16384, p_precision="float64")
    part = here.at(p_study="stages", method="cusolver_stedc").column("time_s").median()
    whole = here.at(p_study="evd", p_vectors=True, method="cusolver_one_stage").column("time_s").median()
    return {"evd_stedc_share": part / whole}
