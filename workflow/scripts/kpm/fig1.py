"""Figure 1 of KPM: density of states of the topological insulator."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, missing
from spectile_study.figures.palette import ERROR


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = at(drawn_by(frame, "fig1"), method="spectile")
    drawing = Drawing("Figure 1: density of states of the topological insulator", columns=2, size=(9.0, 3.6))
    whole, centre = drawing.axes[0]
    if not len(rows):
        for ax in (whole, centre):
            drawing.empty(ax, missing(frame, "fig1", "a density of states"))
        return drawing
    row = rows.sort_values("v_rows").iloc[-1]
    size = f"{int(row['p_nx'])} x {int(row['p_ny'])} x {int(row['p_nz'])}"
    label = f"{size}, N = {int(row['v_rows']):,}, M = {int(row['p_num_moments'])}, R = {int(row['p_num_vectors'])}"
    for ax in (whole, centre):
        drawing.curve(ax, row, "v_energies", "v_densities", label=label)
        drawing.curve(ax, row, "v_energies", "v_errors", label=ERROR.label, color=ERROR.color, linewidth=0.8)
        ax.set_xlabel("energy E / t")
    whole.set_ylabel("density of states, states per t")
    near = [density for energy, density in zip(row["v_energies"], row["v_densities"], strict=True) if abs(energy) < 0.9]
    centre.set_xlim(-1, 1)
    centre.set_ylim(0, 1.1 * max(near))
    centre.set_title("around E = 0")
    centre.legend(loc="upper center", fontsize=7)
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    return {"kpm_rows_fig1": rows.at(case="dos_1600x1600x40", method="spectile").column("v_rows").only()}
