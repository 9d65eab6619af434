"""A purification on up to 1,024 GPUs, by simulation: predicted seconds, bytes over links, products of tiles."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import BLUE, HUES

NEEDS = ("density",)  # whose products are counted and timed where they were computed


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "P of model water to 1e-5 of its norm, rows of tiles divided along a curve: simulated"
    drawing = Drawing(title, rows=2, columns=2, size=(10, 7))
    (times, links), (works, each) = drawing.axes
    rows = at(frame, p_study="partition", status="ok")
    if not len(rows):
        for ax in drawing.axes.ravel():
            drawing.empty(ax, "this run holds no simulation of several hosts")
        return drawing
    measured = at(frame, p_study="density", method="density_1e-05", status="ok")
    for color, (molecules, group) in zip(HUES, rows.groupby("p_molecules"), strict=False):
        look = {"label": f"{molecules:,.0f} molecules", "color": color, "marker": "o"}
        drawing.marks(times, group, "v_gpus", "v_predicted_s", **look)
        drawing.marks(links, group[group["v_gpus"] > 1], "v_gpus", "v_bytes_links", **look)
        last = group.sort_values("v_gpus").iloc[-1]
        at_most = f"{molecules:,.0f} molecules, {last['v_gpus']:,.0f} GPUs"
        drawing.curve(each, last, "v_product", "v_product_bytes", label=at_most, color=color)
    alone = rows[rows["v_gpus"] == 1]
    drawing.marks(works, alone, "p_molecules", "v_products_total", label="simulated", color=HUES[0])
    drawing.marks(works, measured, "p_molecules", "v_products", label="counted in calls", kind="scatter", color=BLUE)
    on_gpus = measured[measured["p_gpus"] >= 1]
    look = {"label": "measured, whole calls", "kind": "scatter", "color": BLUE, "marker": "*"}
    drawing.marks(times, on_gpus, "p_gpus", "time_s", **look)
    times.set(xlabel="GPUs", ylabel="predicted time, s", xscale="log", yscale="log")
    links.set(xlabel="GPUs", ylabel="bytes that a GPU fetches, all products", xscale="log", yscale="log")
    works.set(xlabel="molecules", ylabel="products of tiles", xscale="log", yscale="log")
    each.set(xlabel="product", ylabel="bytes that a GPU fetches", yscale="log")
    for ax in drawing.axes.ravel():
        ax.legend(fontsize=6)
    device = rows["v_predicted_device"].iloc[0]
    drawing.note(
        f"Predicted at the rates of the table of devices ({device}, eight of a host) and of links by specification: "
        "at least so long. Work and bytes are counted on samples of rows, with standard errors in the records."
    )
    if not len(on_gpus):
        drawing.note("No call on a GPU is recorded in this run.")
    return drawing
