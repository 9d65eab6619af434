"""Figure 9 of KPM: data volume per vector of a step over the width of the block, counted and least."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import counted, drawn_by, line, missing

METHODS = ("spmmv", "aug_spmmv", "stencil", "blocked")
#: Where the counters contradict the paper's figure, and why.
L1 = (
    "The paper's texture cache delivers the same volume to each vector at every R, since each entry of the matrix is "
    "broadcast through it. Here up to R = 4, where rows come through the L1 cache, it falls with R; from R = 8 on bulk "
    "copies bring V, entries and codes into shared memory past it, and what is left is W."
)
LEAST = {"alpha": 0.5, "linestyle": ":", "marker": ""}


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig9")
    drawing = Drawing("Figure 9: data volume per vector and step", columns=3, size=(11.5, 4.1), share_y=True)
    memory, cache, nearest = drawing.axes[0]
    memory.set_title("main memory (dotted: least, model)")
    cache.set_title("L2 cache (counted)")
    nearest.set_title("L1 and texture cache (counted)")
    least = rows[rows["p_study"] == "step"]
    found = counted(rows)
    if len(least):
        for method in ("naive", *METHODS):
            label = {"label": "_least"} if len(found) and method in METHODS else {}
            line(drawing, memory, least, method, "p_num_vectors", "gbytes_per_vector", **LEAST, **label)
    else:
        drawing.empty(memory, missing(frame, "fig9", "the stages over R"))
    if len(found):
        for method in METHODS:
            line(drawing, memory, found, method, "p_num_vectors", "dram_per_vector")
            line(drawing, cache, found, method, "p_num_vectors", "l2_per_vector", label="_counted")
            line(drawing, nearest, found, method, "p_num_vectors", "l1_per_vector", label="_counted")
        drawing.note(L1)
    else:
        for ax in (cache, nearest):
            drawing.empty(ax, missing(frame, "fig9", "counted bytes", "counters"))
    for ax, drawn in ((memory, len(least)), (cache, len(found)), (nearest, len(found))):
        if drawn:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xlabel("vectors R")
    memory.set_ylabel("GB per vector and step")
    if len(least):
        # Where there is room: the second panel has no mark at its upper right.
        ax = cache if len(found) else memory
        ax.legend(*memory.get_legend_handles_labels(), loc="upper right")
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    here, width = rows.at(p_study="counters", method="spmmv"), "p_num_vectors"
    return {
        "kpm_volume_falls": here.column("v_dram_bytes", per=width).fall(width).at_least(1),
        "kpm_texture_linear": here.column("v_l1_bytes", per=width).spread(width).at_most(1.2),
        "kpm_l2_volume_falls": here.column("v_l2_bytes", per=width).fall(width).at_least(1),
    }
