"""Figure 4 of the EVD paper: conventional band reduction (nb = b) with chasing on the CPU, by bandwidth."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import REDUCTION


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 4: successive band reduction and bulge chasing by bandwidth", 1, 2, (9, 4))
    ax, magma = drawing.axes[0]
    rows = select(frame, "p_study=reduction,status=ok")
    rows = rows[(rows["p_block"] == rows["p_bandwidth"]) & rows["time_s"].notna()]
    drawing.empty(magma, "MAGMA is not rebuilt: its printed times stand in the claims table")
    if not len(rows):
        drawing.empty(ax, "no record with nb = b in this run")
        return drawing
    # Of the orders measured with nb = b, the one with the most bandwidths.
    rows = rows[rows["p_n"] == rows.groupby("p_n")["p_bandwidth"].nunique().idxmax()]
    widths = sorted(rows["p_bandwidth"].unique())
    for shift, (method, (color, _, label)) in enumerate(REDUCTION.items()):
        part = select(rows, f"method={method}").sort_values("p_bandwidth")
        if not len(part):
            continue
        place = max(shift - 1, 0)  # a band is reduced by our panels or by cuSOLVER's
        at = [widths.index(b) + 0.27 * (place - 1) for b in part["p_bandwidth"]]
        look = {"label": label, "color": color}
        drawing.marks(
            ax,
            part,
            "p_bandwidth",
            "time_s",
            kind="bar",
            positions=at,
            width=0.25,
            lo="time_s_lo",
            hi="time_s_hi",
            **look,
        )
    ax.set_xticks(range(len(widths)), [f"{int(b)}" for b in widths])
    ax.set(xlabel="bandwidth b", ylabel="seconds", title=f"n = {int(rows['p_n'].iloc[0]):,}")
    ax.legend()
    return drawing
