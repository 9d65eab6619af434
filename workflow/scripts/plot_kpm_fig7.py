"""Figure 7 of KPM: scaling over the cores of one CPU."""

import pandas
from kpm_rates import drawn_by, line, missing

from spectile.bench.claims import select
from spectile.figures.style import Drawing
from spectile.kpm.model import code_balance


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig7")
    drawing = Drawing("Figure 7: scaling over the cores of one CPU", size=(6.5, 3.8))
    ax = drawing.ax
    if not len(rows):
        drawing.empty(ax, missing(frame, "fig7", "a run on several threads"))
        return drawing
    for method in ("aug_spmv", "aug_spmmv", "stencil"):
        line(drawing, ax, rows, method, "p_threads", "gflops")
    triad = select(drawn_by(frame, "fig8"), "method=triad,clock=wall")
    if len(triad):
        bandwidth = float(triad["gbytes_s"].iloc[0])
        ends = [rows["p_threads"].min(), rows["p_threads"].max()]
        for vectors, label in ((1, "R = 1"), (float(rows["p_num_vectors"].max()), "this R")):
            drawing.model_line(ax, ends, [bandwidth / code_balance(vectors)] * 2, f"roofline, {label}")
    ax.set_xlabel("threads")
    ax.set_ylabel("Gflop/s")
    ax.set_ylim(0)
    ax.legend()
    return drawing
