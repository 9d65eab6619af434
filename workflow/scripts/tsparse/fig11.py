"""Figure 11 of tSparse: share of each phase in the time of one product."""

import numpy as np
import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import PHASES
from spectile_study.figures.tsparse import SIXTEEN, matrices, short, why_missing

NEEDS = ("matrices",)  # elements whose cases are drawn here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 11: share of the phases in the time", 1, 1, (9, 4.2))
    ax = drawing.ax
    names = [*SIXTEEN, *matrices(frame, "mirror")[:8], *matrices(frame, "family")]
    rows = frame[frame["status"] == "ok"]
    rows = rows[rows["v_phases_s"].notna()]
    base = np.zeros(len(names))
    seen: set[str] = set()
    for place, name in enumerate(names):
        here = select(rows, f"p_matrix={name}")
        ours = here[here["method"].isin(["spectile_float16", "spectile_float64"])].sort_values("method")
        if not len(ours):
            drawing.slot(ax, place, why_missing(frame, name))
            continue
        row = ours.iloc[[0]]
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
    ax.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=7)
    ax.set_ylabel("share of the time, %")
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(0, 118)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(ncols=4, fontsize=7, loc="upper right")
    return drawing
