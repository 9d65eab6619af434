"""The stages of the eigensolver with eigenvectors, by order, and how far each is from its floor at the largest."""

import pandas

from spectile.bench.claims import select
from spectile.bench.stats import rates
from spectile.figures.style import Table

STAGES = {
    "load": "load, scale, mirror",
    "band_reduction": "band reduction",
    "chasing": "bulge chasing",
    "eigenvalues": "eigenvalues alone (not part of the sum)",
    "divide_and_conquer": "divide and conquer",
    "cusolver_stedc": "cuSOLVER's divide and conquer (not part of the sum)",
    "back_chasing": "back through the chasing",
    "back_panels": "back through the panels",
}
APART = ("eigenvalues", "cusolver_stedc")
#: Tasks of the chasing that must follow one another, a column: a sweep starts three tasks behind the one before it.
TASKS = 3


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=stages,status=ok")
    rows = rows[rows["time_s"].notna()] if len(rows) else rows
    result = Table("The solver with eigenvectors, stage by stage", pandas.DataFrame())
    if not len(rows):
        result.notes.append("This run holds no record of the stages.")
        return result
    orders = sorted(rows["p_n"].unique())
    floors = _floors(frame, rows, orders[-1])
    lines = []
    for method, name in STAGES.items():
        line: dict[str, object] = {"stage": name}
        for n in orders:
            found = select(rows, f"p_n={n},method={method}")
            line[_column(rows, n)] = float(found["time_s"].iloc[0]) if len(found) else None
            result.cite(found, "time_s")
        last = select(rows, f"p_n={orders[-1]},method={method}")
        line["TFLOP/s"] = float(rates(last).iloc[0]) if len(last) else None
        line["floor, s"], line["floor from"] = floors.get(method, (None, ""))
        lines.append(line)
    total: dict[str, object] = {"stage": "sum", "floor from": ""}
    for n in orders:
        parts = rows[(rows["p_n"] == n) & ~rows["method"].isin(APART)]
        total[_column(rows, n)] = float(parts["time_s"].sum())
    total["floor, s"] = sum(floors[name][0] for name in floors if name not in APART) if floors else None
    result.data = pandas.DataFrame([*lines, total])
    result.notes.append(
        f"Seconds; rate and floor at n = {orders[-1]:,}. A floor is the stage's own operations or bytes at the best "
        "rate that this run measured for their kind; of the chasing, three dependent tasks a column, as long as where "
        "they are shortest."
    )
    result.notes += sorted(set(select(frame, "p_study=stages,status=skipped")["reason"].dropna()))
    return result


def _column(rows: pandas.DataFrame, n: int) -> str:
    width = rows.loc[rows["p_n"] == n, "v_bandwidth"].iloc[0]
    return f"n = {n:,.0f}, b = {width:,.0f}"


def _floors(frame: pandas.DataFrame, stages: pandas.DataFrame, n: float) -> dict[str, tuple[float, str]]:
    """Return seconds and the ceiling they come from, by stage at order n; nothing without ceilings of the machine."""
    rows, chasing = select(stages, f"p_n={n}"), select(stages, "method=chasing")
    ceilings = select(frame, "p_study=roofline,status=ok")
    ceilings = ceilings[ceilings["time_s"].notna()] if len(ceilings) else ceilings
    width = rows["v_bandwidth"].iloc[0]
    copies = select(ceilings, "method=copy")
    products = ceilings[ceilings["flops"].notna()] if len(ceilings) else ceilings
    square = products[products["p_bandwidth"].isna()] if len(products) else products
    skinny = products[products["p_bandwidth"] == width] if len(products) else products
    if not (len(copies) and len(square) and len(skinny)):
        return {}
    peak, thin = float(rates(square).max()) * 1e12, float(rates(skinny).max()) * 1e12
    stream = float((copies["bytes"] / copies["time_s"]).max())
    floors: dict[str, tuple[float, str]] = {}
    for _, row in rows.iterrows():
        if row["method"] == "load":
            floors["load"] = (row["bytes"] / stream, "a copy")
        elif row["method"] == "band_reduction":
            text = f"half at A W's rate (b = {width:,.0f}), half at the square product's"
            floors["band_reduction"] = (row["flops"] / 2 / thin + row["flops"] / 2 / peak, text)
        elif row["method"] == "chasing":
            task = float((chasing["time_s"] / (TASKS * chasing["p_n"])).min())
            floors["chasing"] = (TASKS * n * task, f"dependent tasks of {1e6 * task:.2g} µs")
        elif row["method"] != "eigenvalues":
            floors[row["method"]] = (row["flops"] / peak, "the square product")
    return floors
