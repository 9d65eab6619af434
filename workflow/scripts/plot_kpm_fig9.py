"""Figure 9 of KPM: data volume per vector of a step over the width of the block."""

import pandas
from kpm_rates import drawn_by, line, missing

from spectile.figures.style import Drawing


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig9")
    drawing = Drawing("Figure 9: data volume per vector and step (model)", size=(6.5, 3.8))
    ax = drawing.ax
    if not len(rows):
        drawing.empty(ax, missing(frame, "fig9", "the stages over R"))
        return drawing
    for method in ("naive", "spmmv", "aug_spmmv", "stencil", "blocked"):
        line(drawing, ax, rows, method, "p_num_vectors", "gbytes_per_vector")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("vectors R")
    ax.set_ylabel("least GB through memory (model)")
    ax.legend()
    return drawing
