"""Figure 12 of KPM: weak and strong scaling over MPI ranks."""

import pandas
from kpm_rates import drawn_by, missing

from spectile.bench.claims import select
from spectile.figures.style import Drawing

SERIES = {"square": "#0072B2", "bar": "#009E73", "strong": "#D55E00"}


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = select(drawn_by(frame, "fig12"), "method=aug_spmmv")
    drawing = Drawing("Figure 12: scaling over MPI ranks", columns=2, size=(9.0, 3.6))
    weak, strong = drawing.axes[0]
    for ax, names in ((weak, ("square", "bar")), (strong, ("strong",))):
        here = rows[rows["p_scaling"].isin(names)] if len(rows) else rows
        if not len(here):
            drawing.empty(ax, missing(frame, "fig12", "several ranks"))
            continue
        for name in names:
            drawing.marks(ax, select(here, f"p_scaling={name}"), "p_ranks", "gflops", label=name, color=SERIES[name])
        ax.set_xlabel("ranks")
        ax.set_ylabel("Gflop/s")
        ax.set_ylim(0)
        ax.legend()
    weak.set_title("weak")
    strong.set_title("strong")
    return drawing
