"""Figure 10 of the EVD paper: tridiagonalization, ours and the vendor's, by order."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import rates
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.evd import of_papers_orders, why_not

NEEDS = ("fig11",)  # elements whose cases are judged here, too

METHODS = ("spectile", "spectile_device", "cusolver_one_stage", "magma", "lapack")


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 10: tridiagonalization", 1, 4, (13, 4))
    first, speed, *absent = drawing.axes[0]
    rows = at(frame, p_study="tridiagonal", status="ok")
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
        series = at(rows, method=method)
        drawing.marks(first, series, "p_n", "time_s")
        drawing.marks(speed, series, "p_n", "rate")
    if not len(at(rows, method="magma")):
        drawing.note(f"MAGMA has no mark: {why_not(frame, 'magma', 'tridiagonal')}.")
    for ax in (first, speed):
        ax.set_xscale("log", base=2)
    first.set(yscale="log", xlabel="n", ylabel="seconds", title=f"{rows['device'].iloc[0]}: time")
    speed.set(yscale="log", xlabel="n", ylabel="TFLOP/s (4/3 n³)", title=f"{rows['device'].iloc[0]}: rate")
    for ax in (first, speed):
        ax.legend()
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    here, vendor = rows.at(p_study="tridiagonal"), "cusolver_one_stage"
    over_vendor, over_magma = (here.speedup("spectile", rival) for rival in (vendor, "magma"))
    large = here.at(p_n=of_papers_orders)
    found = {}
    for name, device in (("h100", ""), ("a100", "A100"), ("4090", "RTX 4090")):
        found[f"evd_speedup_tridiagonal_{name}"] = large.on(device).speedup("spectile", vendor).max()
    # One stage is bound by memory, and MAGMA's chasing by the host: their shares of a peak are a device's own.
    for name, own, others in (("h100", "", "H100"), ("a100", "A100", "A100")):
        found[f"evd_peak_{name}"] = large.on(own).at(method="spectile").share_of("fp64").max()
        found[f"evd_peak_cusolver_{name}"] = large.on(others).at(method=vendor).share_of("fp64").max()
        found[f"evd_peak_magma_{name}"] = large.on(others).at(method="magma").share_of("fp64").max()
    for name, method in (("cusolver", vendor), ("magma", "magma")):
        asked = {"p_n": 32768, "p_precision": "float64", "p_vectors": False, "method": method}
        part, whole = (each.at(**asked).column("time_s").median() for each in (here, rows.at(p_study="evd")))
        found[f"evd_share_{name}"] = part / whole
    return found | {
        "evd_speedup_tridiagonal_magma": large.speedup("spectile", "magma").max(),
        "evd_utilization": found["evd_peak_cusolver_h100"].at_most(3),
        "evd_two_stage_gain": large.speedup("magma", vendor).max(),
        "evd_tridiagonal_faster": over_vendor.min().at_least(1),
        "evd_tridiagonal_faster_magma": over_magma.min().at_least(1),
        "evd_tridiagonal_grows": over_vendor.growth("p_n").at_least(1),
    }
