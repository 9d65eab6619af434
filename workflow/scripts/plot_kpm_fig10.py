"""Figure 10 of KPM: bandwidth of three kernels over the width of the block."""

import pandas
from kpm_rates import NAMES, drawn_by, line, missing

from spectile.bench.claims import select
from spectile.figures.style import Drawing

PANELS = (("spmmv", "a"), ("aug_spmmv_nodots", "b"), ("aug_spmmv", "c"))


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig10")
    drawing = Drawing("Figure 10: least bytes over time", columns=3, size=(10.0, 3.5), share_y=True)
    triad = select(drawn_by(frame, "t2"), "method=triad")
    for ax, (method, letter) in zip(drawing.axes[0], PANELS, strict=True):
        here = select(rows, f"method={method}")
        ax.set_title(f"({letter}) {NAMES[method]}")
        if not len(here):
            drawing.empty(ax, missing(frame, "fig10", NAMES[method]))
            continue
        line(drawing, ax, rows, method, "p_num_vectors", "gbytes_s")
        same = triad[triad["processor"] == here["processor"].iloc[0]] if len(triad) else triad
        if len(same):
            ends = [here["p_num_vectors"].min(), here["p_num_vectors"].max()]
            drawing.model_line(ax, ends, [float(same["gbytes_s"].iloc[0])] * 2, "triad")
        ax.set_xscale("log", base=2)
        ax.set_xlabel("vectors R")
        ax.legend()
    drawing.axes[0][0].set_ylim(bottom=0)
    drawing.axes[0][0].set_ylabel("GB/s (modelled bytes)")
    return drawing
