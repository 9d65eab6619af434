"""Figure 12 of tSparse: SMAPE against a library's float32 and against float64, and errors over their bounds."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import look
from spectile_study.figures.palette import name as called
from spectile_study.figures.tsparse import PARTS, SIXTEEN, matrices, short, vendor, why_missing

METHODS = ("tasks_float16", "spectile_float16", "spectile_tf32", "spectile_float32", "spectile_float64")


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 12: error of the product", 3, 1, (10, 7.5))
    names = [*SIXTEEN, *matrices(frame, "mirror")[:8], *matrices(frame, "family")]
    ok = frame[frame["status"] == "ok"]
    library = called(vendor(frame, "float32"))
    panels = {
        "v_smape_library_percent": f"SMAPE, %\nagainst {library}",
        "v_smape_percent": "SMAPE, %\nagainst float64",
        "error_bound_ratio": "largest error /\nbound of the entry",
    }
    for ax, (column, title) in zip(drawing.axes[:, 0], panels.items(), strict=True):
        rows = ok[ok["method"].isin(METHODS) & ok["p_matrix"].isin(names)]
        rows = rows[rows[column].notna()] if column in rows else rows.iloc[:0]
        if not len(rows):
            drawing.empty(ax, f"this run compares with no product of {library}")
            continue
        for number, method in enumerate(METHODS):
            here = at(rows, method=method)
            places = [names.index(name) + 0.17 * (number - 2) for name in here["p_matrix"]]
            settings = {"label": called(method), "marker": look(method).marker, "linestyle": "none"}
            drawing.marks(ax, here, column, column, kind="scatter", positions=places, **settings)
        for place, name in enumerate(names):
            if name not in set(rows["p_matrix"]):
                drawing.slot(ax, place, why_missing(frame, name, (*METHODS, vendor(frame, "float32"))))
        ax.set_yscale("symlog", linthresh=1e-7 if column.startswith("v_") else 1e-3)
        ax.set_ylabel(title, fontsize=8)
        ax.set_xlim(-0.6, len(names) - 0.4)
        labels = [short(name) for name in names] if ax is drawing.axes[2, 0] else [""] * len(names)
        ax.set_xticks(range(len(names)), labels, rotation=45, ha="right", fontsize=7)
        if column.startswith("v_"):
            drawing.paper_line(ax, "tsparse_smape", "paper's mean of real inputs")
            ax.set_ylim(top=100 * ax.get_ylim()[1])  # room for the legend
            ax.legend(ncols=6, fontsize=7, loc="upper right")
        else:
            ax.axhline(1, color="black", linewidth=0.6)
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    rows, error = rows.at(method="tasks_float16"), "v_smape_library_percent"
    real = [
        matrix for matrix in SIXTEEN if matrix not in ("nemeth21", "patents_main")
    ]  # near the ends of float16's range
    inexact = rows.at(p_part=PARTS, p_matrix=real, v_smape_library_percent=lambda smape: smape > 0.0001)
    return {
        "tsparse_smape": inexact.column(error).mean(),
        "tsparse_smape_nemeth21": rows.at(p_matrix="nemeth21").column(error).only(),
        "tsparse_smape_patents_main": rows.at(p_matrix="patents_main").column(error).only(),
        "tsparse_smape_patterns": rows.at(p_matrix="wiki-Vote").column(error).only(),
    }
