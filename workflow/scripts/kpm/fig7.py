"""Figure 7 of KPM: scaling over the cores of one CPU."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.cases.kpm.model import code_balance
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, host_bandwidth, largest_sample, line, missing, sizes
from spectile_study.figures.palette import name

NEEDS = ("fig8",)  # elements whose cases are drawn here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = largest_sample(drawn_by(frame, "fig7"))
    drawing = Drawing("Figure 7: scaling over the cores of one CPU", size=(6.5, 3.8))
    ax = drawing.ax
    if not len(rows):
        drawing.empty(ax, missing(frame, "fig7", "a run on several threads"))
        return drawing
    width = int(rows["p_num_vectors"].max())
    for method, vectors in (("naive", 1), ("aug_spmv", 1), ("aug_spmmv", width)):
        line(drawing, ax, rows, method, "p_threads", "gflops", label=f"{name(method)}, R = {vectors}")
    bandwidth = host_bandwidth(drawn_by(frame, "fig8"))
    if bandwidth is not None:
        ends = [rows["p_threads"].min(), rows["p_threads"].max()]
        for vectors in (1, width):
            drawing.model_line(ax, ends, [bandwidth / code_balance(vectors)] * 2, f"roofline, R = {vectors}")
    ax.set_xscale("log", base=2)
    threads = sorted(rows["p_threads"].astype(int).unique())
    ax.set_xticks(threads, [str(count) for count in threads])
    ax.set_xlabel("threads")
    ax.set_ylabel("Gflop/s (138 flop a row and vector)")
    ax.set_ylim(0, 1.45 * ax.get_ylim()[1])  # room for the legend
    ax.legend(ncols=2, loc="upper left")
    drawing.note(f"Sample: {sizes(rows)}.")
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    here = rows.at(p_study="threads", p_nx=100)
    return {
        "kpm_spmv_saturates": here.at(method="aug_spmv").rate().last_step("p_threads").at_most(1.1),
        "kpm_spmmv_scales": here.at(method="aug_spmmv")
        .rate()
        .growth("p_threads", "p_num_vectors")
        .at_least(1.6),  # of 2
    }
