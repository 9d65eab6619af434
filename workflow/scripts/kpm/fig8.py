"""Figure 8 of KPM: the refined roofline of the augmented SpMMV on the CPU."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.cases.kpm.model import code_balance
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, host_bandwidth, line, missing, on_host
from spectile_study.figures.palette import IN_CACHE

NEEDS = ("cache",)  # elements whose cases are drawn here, too

STAGES = ("naive", "aug_spmmv", "aug_spmmv_table", "stencil")


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = on_host(drawn_by(frame, "fig8"))
    drawing = Drawing("Figure 8: augmented SpMMV on the CPU and its bounds", size=(6.5, 3.8))
    ax = drawing.ax
    stages = rows[rows["method"].isin(STAGES)]
    if not len(stages):
        drawing.empty(ax, missing(frame, "fig8", "the stages on a CPU"))
        return drawing
    for method in STAGES:
        line(drawing, ax, stages, method, "p_num_vectors", "gflops")
    vectors = sorted(stages["p_num_vectors"].unique())
    bandwidth = host_bandwidth(rows)
    if bandwidth is not None:
        drawing.model_line(ax, vectors, [bandwidth / code_balance(r) for r in vectors], "P_MEM = b / B_min")
    cached = select(on_host(drawn_by(frame, "cache")), "method=aug_spmmv")
    look = {"label": IN_CACHE.label, "color": IN_CACHE.color, "linestyle": "--"}
    drawing.marks(ax, cached, "p_num_vectors", "gflops", **look)
    ax.set_xscale("log", base=2)
    ax.set_xlabel("vectors R")
    ax.set_ylabel("Gflop/s (138 flop a row and vector)")
    ax.set_ylim(0)
    ax.legend()
    return drawing
