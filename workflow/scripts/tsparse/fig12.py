"""Figure 12 of tSparse: SMAPE of each precision, and the largest error of an entry over its bound."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import PRECISIONS
from spectile_study.figures.tsparse import SIXTEEN, matrices, short, why_missing


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 12: error of the product", 2, 1, (10, 6))
    names = [*SIXTEEN, *matrices(frame, "mirror")[:8], *matrices(frame, "family")]
    ok = frame[frame["status"] == "ok"]
    titles = ("v_smape_percent", "SMAPE, %"), ("error_bound_ratio", "largest error / bound of the entry")
    for ax, (column, title) in zip(drawing.axes[:, 0], titles, strict=True):
        for number, (precision, (color, marker, _)) in enumerate(PRECISIONS.items()):
            rows = select(ok, f"method=spectile_{precision}")
            rows = rows[rows[column].notna() & rows["p_matrix"].isin(names)]
            places = [names.index(name) + 0.2 * (number - 1.5) for name in rows["p_matrix"]]
            settings = {"color": color, "label": precision, "marker": marker, "linestyle": "none"}
            drawing.marks(ax, rows, column, column, kind="scatter", positions=places, **settings)
        for place, name in enumerate(names):
            if not len(select(ok, f"p_matrix={name}")):
                drawing.slot(ax, place, why_missing(frame, name))
        ax.set_yscale("symlog", linthresh=1e-7 if column.startswith("v_") else 1e-3)
        ax.set_ylabel(title, fontsize=8)
        labels = [short(name) for name in names] if ax is drawing.axes[1, 0] else [""] * len(names)
        ax.set_xticks(range(len(names)), labels, rotation=45, ha="right", fontsize=7)
    drawing.paper_line(drawing.axes[0, 0], "tsparse_smape", "paper's mean of real inputs")
    drawing.axes[1, 0].axhline(1, color="black", linewidth=0.6)
    for ax in drawing.axes[:, 0]:
        if ax.get_legend_handles_labels()[0]:
            ax.set_ylim(top=(30 if ax is drawing.ax else 3) * ax.get_ylim()[1])  # room for the legend
            if ax is drawing.ax:
                ax.legend(ncols=5, fontsize=7, loc="upper right")
    return drawing
