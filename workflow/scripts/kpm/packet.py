"""Spreading of a wave packet on the surface of the topological insulator."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.cases.kpm.films import DISORDER
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, missing

LABELS = {"packet": "no disorder", "packet_disorder": f"disorder of width {DISORDER:g} t"}


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "packet")
    drawing = Drawing("A wave packet that begins on one site of the surface", size=(5.5, 3.6))
    for method, label in LABELS.items():
        for _, row in at(rows, method=method).iloc[-1:].iterrows():
            drawing.curve(drawing.ax, row, "v_times", "v_spread", label=label)
    if not len(rows):
        drawing.empty(drawing.ax, missing(frame, "packet", "a wave packet"))
        return drawing
    row = rows.iloc[-1]
    clean = at(rows, method="packet")
    error = f" Without disorder its last state is {clean['error_fro_rel'].iloc[-1]:.0e} from the exact one."
    drawing.note(f"{int(row['p_nx'])} x {int(row['p_ny'])} x {int(row['p_nz'])} sites.{error if len(clean) else ''}")
    drawing.ax.set_xlabel("time, ħ/t")
    drawing.ax.set_ylabel("root of the mean squared distance, sites")
    drawing.ax.legend(fontsize=7)
    return drawing
