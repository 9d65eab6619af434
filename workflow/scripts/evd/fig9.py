"""Figure 9 of the EVD paper: bulge chasing on the GPU and on the CPU, by order and bandwidth."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import CHASING


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 9: bulge chasing", 1, 3, (11, 4), share_y=True)
    rows = at(frame, p_study="chasing", status="ok")
    rows = rows[rows["time_s"].notna()]
    for ax, b in zip(drawing.axes[0], (16, 32, 64), strict=True):
        part = at(rows, p_bandwidth=b)
        if not len(part):
            drawing.empty(ax, f"no record of the chasing with b = {b} in this run")
            continue
        for method, (color, marker, label) in CHASING.items():
            series = at(part, method=method)
            look = {"label": label, "color": color, "marker": marker}
            drawing.marks(ax, series, "p_n", "time_s", **look)
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", xlabel="n", title=f"b = {b}")
        ax.legend()
    drawing.ax.set_ylabel("seconds")
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    faster = rows.at(p_study="chasing").speedup("spectile", "spectile_cpu")
    return {
        "evd_speedup_chasing": faster.max(),
        "evd_chasing_faster": faster.min().at_least(1),
    }
