"""Figure 10 of the EVD paper: tridiagonalization, ours and the vendor's, by order."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import rates
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.evd import why_not

METHODS = ("spectile", "spectile_device", "cusolver_one_stage", "magma", "lapack")


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 10: tridiagonalization", 1, 4, (13, 4))
    first, speed, *absent = drawing.axes[0]
    rows = select(frame, "p_study=tridiagonal,status=ok")
    rows = rows[rows["time_s"].notna()].copy()
    for ax, name in zip(absent, ("A100", "RTX 4090"), strict=True):
        drawing.empty(ax, "the device of the paper's panel is not at hand")
        ax.set_title(name)
    if not len(rows):
        drawing.empty(first, "no record of the tridiagonalization in this run")
        drawing.empty(speed, "no record of the tridiagonalization in this run")
        return drawing
    rows["rate"] = rates(rows)
    for method in METHODS:
        series = select(rows, f"method={method}")
        drawing.marks(first, series, "p_n", "time_s", lo="time_s_lo", hi="time_s_hi")
        drawing.marks(speed, series, "p_n", "rate")
    if not len(select(rows, "method=magma")):
        drawing.note(f"MAGMA has no mark: {why_not(frame, 'magma', 'tridiagonal')}.")
    for ax in (first, speed):
        ax.set_xscale("log", base=2)
    first.set(yscale="log", xlabel="n", ylabel="seconds", title=f"{rows['device'].iloc[0]}: time")
    speed.set(yscale="log", xlabel="n", ylabel="TFLOP/s (4/3 n³)", title=f"{rows['device'].iloc[0]}: rate")
    for ax in (first, speed):
        ax.legend()
    return drawing
