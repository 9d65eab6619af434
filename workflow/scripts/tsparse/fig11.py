"""Figure 11 of tSparse: share of each phase in the time of one product, by the paper's method and by rows."""

import numpy as np
import pandas
from matplotlib.axes import Axes

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import PHASES
from spectile_study.figures.tsparse import PARTS, SIXTEEN, matrices, short, why_missing

NEEDS = ("matrices",)  # elements whose cases are drawn here, too
#: Titles of the panels, and the methods of which each shows the first that has phases.
PANELS = {
    "the paper's method, conversions apart": ("tasks_float16", "tasks_float64"),
    "ours by rows, from CSR to CSR": ("spectile_float16", "spectile_float64"),
}


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 11: share of the phases in the time", 2, 1, (9, 6))
    names = [*SIXTEEN, *matrices(frame, "mirror")[:8], *matrices(frame, "family")]
    rows = frame[frame["status"] == "ok"]
    rows = rows[rows["v_phases_s"].notna()]
    for ax, (title, methods) in zip(drawing.axes[:, 0], PANELS.items(), strict=True):
        panel(drawing, ax, frame, rows[rows["method"].isin(methods)], names)
        ax.set_title(title, fontsize=8)
        labels = [short(name) for name in names] if ax is drawing.axes[1, 0] else [""] * len(names)
        ax.set_xticks(range(len(names)), labels, rotation=45, ha="right", fontsize=7)
    return drawing


def panel(drawing: Drawing, ax: Axes, frame: pandas.DataFrame, rows: pandas.DataFrame, names: list[str]) -> None:
    if not len(rows):
        drawing.empty(ax, "this run holds no phases of it: they are timed on a CUDA device")
        return
    base = np.zeros(len(names))
    seen: set[str] = set()
    for place, name in enumerate(names):
        here = at(rows, p_matrix=name).sort_values("method")
        if not len(here):
            drawing.slot(ax, place, why_missing(frame, name))
            continue
        row = here.iloc[[0]]
        times = np.asarray(row["v_phases_s"].iloc[0], dtype=float)
        for number, phase in enumerate(row["v_phases"].iloc[0]):
            share = row.assign(share=100 * times[number] / times.sum())
            label = phase if phase not in seen else "_"
            seen.add(phase)
            drawing.marks(
                ax, share, "share", "share", kind="bar", positions=[place], bottom=base[place],
                color=PHASES[number], label=label,
            )  # fmt: skip
            base[place] += share["share"].iloc[0]
    ax.set_ylabel("share of the time, %")
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(0, 125)
    ax.legend(ncols=5, fontsize=7, loc="upper right")


def claims(rows: Rows) -> dict[str, Ours]:
    paper = rows.at(p_part=PARTS, method="tasks_float16")
    phases = ("sorting", "counting", "multiplication", "compaction")
    shares = {f"tsparse_fig11_{phase}": paper.phase(phase).mean() for phase in phases}
    largest = max(shares.values(), key=lambda ours: ours.number)
    return shares | {"tsparse_task_list_largest": (paper.phase("task list").mean() / largest).at_least(1)}
