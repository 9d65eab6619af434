"""How fast each stage of the eigensolver could be on this machine: its work at the best rate measured for its kind."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import rates

#: Tasks of the chasing that must follow one another, a column: a sweep starts three tasks behind the one before it.
TASKS = 3


def floors(frame: pandas.DataFrame, stages: pandas.DataFrame, n: float) -> dict[str, tuple[float, str]]:
    """Return seconds and the ceiling they come from, by stage at order n; nothing without ceilings of the machine."""
    rows, chasing = select(stages, f"p_n={n}"), select(stages, "method=chasing")
    ceilings = select(frame, "p_study=roofline,status=ok")
    ceilings = ceilings[ceilings["time_s"].notna()]
    width = rows["v_bandwidth"].iloc[0]
    copies = select(ceilings, "method=copy")
    products = ceilings[ceilings["flops"].notna()]
    square = products[products["p_bandwidth"].isna()]
    skinny = products[products["p_bandwidth"] == width]
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
