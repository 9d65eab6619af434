"""Figure 4 of the EVD paper: conventional band reduction (nb = b) with chasing on the CPU, by bandwidth."""

from collections.abc import Mapping

import pandas
from matplotlib.axes import Axes

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.evd import why_not
from spectile_study.figures.palette import HYBRID_REDUCTION, REDUCTION, Look

#: Places of the bars at one bandwidth; methods that share one are never measured at the same bandwidth.
PLACES = {"spectile": 0, "cusolver_panels": 0, "spectile_chasing": 1, "algorithm2_chasing": 1, "spectile_cpu": 2}
PLACES |= {"magma": 0, "magma_chasing": 1}
#: n of the paper's figure.
PAPERS_ORDER = 65_536


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 4: successive band reduction and bulge chasing by bandwidth", 1, 3, (12, 4))
    ax, hybrid, large = drawing.axes[0]
    hybrid.sharey(ax)
    rows = at(frame, p_study="reduction", status="ok")
    rows = rows[(rows["p_block"] == rows["p_bandwidth"]) & rows["time_s"].notna()]
    ax.set_ylabel("seconds")
    ours = rows[rows["method"].isin(REDUCTION)]
    if not _bars(drawing, ax, _with_most_bandwidths(ours), REDUCTION, "ours"):
        drawing.empty(ax, "no record with nb = b in this run")
    magma = rows[rows["method"].isin(HYBRID_REDUCTION)]
    if not _bars(drawing, hybrid, _with_most_bandwidths(magma), HYBRID_REDUCTION, "MAGMA"):
        drawing.empty(hybrid, why_not(frame, "magma", "reduction"))
    # The paper's order, where all but our two kernels are left out of the sheet.
    if not _bars(drawing, large, ours[ours["p_n"] == PAPERS_ORDER], REDUCTION, "ours"):
        drawing.empty(large, f"no record of n = {PAPERS_ORDER:,} in this run")
    return drawing


def _with_most_bandwidths(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the order with the most bandwidths, and of those the largest."""
    counts = rows.groupby("p_n")["p_bandwidth"].nunique()
    return rows[rows["p_n"] == counts[counts == counts.max()].index.max()]


def _bars(drawing: Drawing, ax: Axes, rows: pandas.DataFrame, looks: Mapping[str, Look], title: str) -> bool:
    """Draw the bars of one panel, and return whether any."""
    if not len(rows):
        return False
    widths = sorted(rows["p_bandwidth"].unique())
    for method, (color, _, label) in looks.items():
        part = at(rows, method=method).sort_values("p_bandwidth")
        if not len(part):
            continue
        places = [widths.index(b) + 0.27 * (PLACES[method] - 1) for b in part["p_bandwidth"]]
        look = {"label": label, "color": color}
        drawing.marks(ax, part, "p_bandwidth", "time_s", kind="bar", positions=places, width=0.25, **look)  # fmt: skip
    ax.set_xticks(range(len(widths)), [f"{int(b)}" for b in widths])
    ax.set(xlabel="bandwidth b", title=f"{title}, n = {int(rows['p_n'].iloc[0]):,}")
    ax.legend()
    return True


def claims(rows: Rows) -> dict[str, Ours]:
    every = rows.at(p_study="reduction", p_n=(8192, PAPERS_ORDER))
    here = every.at(p_n=8192)
    conventional = every.at(p_block=lambda block: block <= 64, method="spectile").column("time_s")
    chasing = here.at(method="spectile_cpu").column("time_s")
    share = here.over("time_s", "magma_chasing", "magma").map(lambda ratio: ratio / (1 + ratio))
    return {
        "evd_magma_chasing_share": share.min().at_least(0.25),
        "evd_reduction_falls": conventional.fall("p_bandwidth", "p_n").at_least(1),
        "evd_chasing_grows": chasing.growth("p_bandwidth").at_least(1),
    }
