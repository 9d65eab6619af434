"""Figure 11 of KPM: one device through the optimization stages."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, missing
from spectile_study.figures.palette import look, name

TOGETHER = ("aug_spmmv", "aug_spmmv_cpu_gpu")
STAGES = ("naive", "aug_spmv", "aug_spmmv", "stencil", "blocked")


def draw(frame: pandas.DataFrame) -> Drawing:
    drawn = drawn_by(frame, "fig11")
    together = drawn[drawn["p_study"] == "hybrid"]
    rows = drawn.drop(together.index)
    devices = sorted(rows["processor"].unique())
    drawing = Drawing("Figure 11: one device, stage by stage", columns=max(2, len(devices) + 1), size=(9.5, 3.8))
    panels = list(drawing.axes[0])
    for ax, device in zip(panels, devices, strict=False):
        here = rows[rows["processor"] == device]
        for place, stage in enumerate(STAGES):
            bar = select(here, f"method={stage}")
            if len(bar):
                bar = bar.sort_values("v_rows").iloc[[-1]]
                drawing.marks(ax, bar, "v_rows", "gflops", kind="bar", positions=[place], color=look(stage).color)
            else:
                drawing.slot(ax, place, f"{name(stage)} was not measured on {device}")
        ax.set_title(device, fontsize=8)
        ax.set_xticks(range(len(STAGES)), [name(stage) for stage in STAGES], rotation=25, ha="right", fontsize=7)
        ax.set_ylabel("Gflop/s (138 flop a row)")
    for ax in panels[len(devices) : -1]:
        drawing.empty(ax, missing(frame, "fig11", "the stages"))
    last = panels[-1]
    if len(together):
        for place, stage in enumerate(TOGETHER):
            drawing.marks(
                last, select(together, f"method={stage}"), "v_rows", "gflops", kind="bar", positions=[place],
                color=look(stage).color
            )  # fmt: skip
        last.set_ylabel("Gflop/s (138 flop a row)")
        last.set_title("a GPU alone, and with its host's CPU", fontsize=8)
        last.set_xticks(range(len(TOGETHER)), [name(stage) for stage in TOGETHER], rotation=25, ha="right", fontsize=7)
    else:
        drawing.empty(last, "CPU and GPU together: this run holds no record of it")
    return drawing
