"""Figure 3 of the EVD paper: rooflines, measured with the products of the band reduction on it, and as specified."""

import numpy as np
import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import rates
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.evd import GENERATIONS
from spectile_study.figures.palette import PANEL_PRODUCT, name

NEEDS = ("fig8", "t1")  # elements whose cases are drawn here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 3: FP64 roofline and the products of the band reduction", 1, 2, (9, 4))
    ax, other = drawing.axes[0]
    rows = at(frame, status="ok")
    rows = rows[rows["p_study"].isin(["roofline", "syr2k"])].copy()
    rows = rows[rows["time_s"].notna()]
    across = np.geomspace(0.5, 100, 60)
    for generation in GENERATIONS:
        label = f"{generation.name}: {generation.tb_s:g} TB/s, {generation.tflops:g} TFLOP/s"
        drawing.model_line(other, across, np.minimum(generation.tflops, across * generation.tb_s), label)
    other.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s", title="as NVIDIA specifies")
    other.legend()
    found = at(rows, p_study="roofline")
    if not {"copy"} < set(found["method"]):
        drawing.empty(ax, "no record of the ceilings in this run")
        return drawing
    rows["rate"] = rates(rows)
    # Rank-2k update: A, B and the triangle of C read, the triangle written.
    moved = 8.0 * (2 * rows["p_n"] * rows["p_k"].fillna(rows["p_n"]) + rows["p_n"] ** 2.0)
    rows["intensity"] = rows["flops"] / rows["bytes"].where(rows["bytes"].notna(), moved)
    products = rows[rows["p_study"] == "roofline"]
    copies = products[products["method"] == "copy"]
    bandwidth = float((copies["bytes"] / copies["time_s"]).max())
    skinny = products[products["method"] != "copy"]
    peak = float(skinny["rate"].max())
    knee = peak * 1e12 / bandwidth
    x = np.array([1, knee, max(1000, rows["intensity"].max())])
    label = f"{bandwidth / 1e12:.3g} TB/s, {peak:.3g} TFLOP/s measured"
    drawing.model_line(ax, x, np.minimum(peak, x * bandwidth / 1e12), label)
    look = {"label": PANEL_PRODUCT.label, "color": PANEL_PRODUCT.color}
    drawing.marks(ax, skinny, "intensity", "rate", kind="scatter", **look)
    updates = rows[(rows["p_study"] == "syr2k") & (rows["p_n"] == rows.loc[rows["p_study"] == "syr2k", "p_n"].max())]
    for method, part in updates.groupby("method"):
        drawing.marks(ax, part, "intensity", "rate", label=f"rank-2k update, {name(str(method))}", kind="scatter")
    ax.set(
        xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s", title=str(skinny["device"].iloc[0])
    )
    ax.legend()
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    panels = rows.at(p_study="roofline", p_bandwidth=lambda b: b <= 128, method="cublas")
    return {"evd_product_memory_bound": panels.rate().growth("p_bandwidth").at_least(1)}
