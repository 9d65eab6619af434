"""Conductivity and Hall plateau of a magnetized film of the topological insulator."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.cases.kpm.films import EXCHANGE
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, missing
from spectile_study.figures.palette import REFERENCE


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "film")
    drawing = Drawing("Conductivity of a magnetized film of the topological insulator", columns=2, size=(9.0, 3.6))
    hall, along = drawing.axes[0]
    for ax, method, column in ((hall, "hall", "v_hall"), (along, "longitudinal", "v_along")):
        found = at(rows, method=method)
        if not len(found):
            drawing.empty(ax, missing(frame, "film", "a conductivity", method=method))
            continue
        row = found.iloc[-1]
        drawing.curve(ax, row, "v_levels", column, label=f"KPM, M = {int(row['p_num_moments'])}")
        if method == "hall":
            drawing.curve(ax, row, "v_levels", "v_exact", label="exact", color=REFERENCE, linewidth=0.8, linestyle="--")
            drawing.note(
                f"{int(row['p_nx'])} x {int(row['p_ny'])} sites, {int(row['p_nz'])} layers, an exchange field of "
                f"{EXCHANGE} t along z. In the gap the plateau is {row['error_hall']:.1%} from a quantum."
            )
        ax.set_xlabel("Fermi energy / t")
        ax.legend(fontsize=7)
    hall.set_ylabel("Hall conductivity, e²/h")
    along.set_ylabel("longitudinal conductivity, e²/h")
    return drawing
