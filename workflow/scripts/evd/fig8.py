"""Figure 8 of the EVD paper: the recursive rank-2k update against the vendor's, square and skinny."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import rates
from spectile_study.figures.drawing import Drawing


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 8: symmetric rank-2k update, ours and the vendor's", 1, 2, (9, 4), share_y=True)
    rows = at(frame, p_study="syr2k", status="ok")
    rows = rows[rows["time_s"].notna()].copy()
    rows["rate"] = rates(rows)
    square, skinny = drawing.axes[0]
    if not len(rows):
        for ax in (square, skinny):
            drawing.empty(ax, "no record of the rank-2k update in this run")
        return drawing
    parts = ((square, rows[rows["p_k"].isna()], "p_n", "square, k = n"), (skinny, rows, "p_k", "skinny"))
    for ax, part, x, title in parts:
        if x == "p_k":
            part = part[part["p_k"].notna()]
            part = part[part["p_n"] == part["p_n"].max()]
            title = f"n = {int(part['p_n'].max()):,}, by k" if len(part) else title
        if not len(part):
            drawing.empty(ax, f"no record of the {title} update in this run")
            continue
        for method, series in part.groupby("method"):
            drawing.marks(ax, series, x, "rate", method=str(method))
        ax.set_xscale("log", base=2)
        ax.set(xlabel="n" if x == "p_n" else "k", ylabel="TFLOP/s" if ax is square else "", title=title)
        ax.legend()
    square.set_ylim(bottom=0)
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    square = rows.at(case=[f"syr2k_{n}_square" for n in (4096, 8192, 16384, 32768)])
    skinny = rows.at(p_study="syr2k", p_n=65536)
    return {
        "evd_syr2k_faster": square.speedup("spectile", "cublas").min().at_least(1),
        "evd_syr2k_faster_skinny": skinny.speedup("spectile", "cublas").min().at_least(1),
    }
