"""Figure 11 of the EVD paper: the whole eigensolver, ours and the vendors', by order; and with eigenvectors."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.evd import of_papers_orders, why_not
from spectile_study.figures.palette import REFERENCE, name

OURS = ("spectile", "spectile_device", "spectile_two_stage")
RIVALS = ("cusolver_one_stage", "cusolver_two_stage", "cupy", "magma", "lapack", "lapack_mrrr")

#: Many series: their names stand below a panel, where they hide no mark.
BELOW = {
    "fontsize": 6.3,
    "ncols": 2,
    "columnspacing": 1,
    "handlelength": 3,
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.16),
}


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 11: eigenvalue decomposition", 1, 3, (12, 5))
    solved = at(frame, p_study="evd", p_precision="float64")
    rows = solved[(solved["status"] == "ok") & solved["time_s"].notna()]
    for ax, vectors in zip(drawing.axes[0], (False, True), strict=False):
        part = rows[rows["p_vectors"].astype(bool) == vectors]
        title = "with eigenvectors" if vectors else "eigenvalues"
        if not len(part):
            drawing.empty(ax, f"no record of the solver ({title}) in this run")
            continue
        for method in (*OURS, *RIVALS):
            drawing.marks(ax, at(part, method=method), "p_n", "time_s")
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", xlabel="n", ylabel="seconds", title=title)
        ax.legend(**BELOW)
    if not len(at(rows, method="magma")):
        drawing.note(f"MAGMA has no mark: {why_not(frame, 'magma', 'evd')}.")
    ax = drawing.axes[0, 2]
    best = [method for method in RIVALS if len(at(rows, method=method))]
    if not best:
        drawing.empty(ax, "no record of a vendor's solver in this run")
        return drawing
    for vendor in best:
        for vectors, line in ((False, "-"), (True, "--")):
            ratios = speedups(solved[solved["p_vectors"].astype(bool) == vectors], "spectile", vendor)
            label = f"over {name(vendor)}: {'vectors' if vectors else 'values'}"
            drawing.marks(
                ax,
                ratios,
                "p_n",
                "speedup",
                method=vendor,
                label=label,
                linestyle=line,
            )
    ax.axhline(1, color=REFERENCE, linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="n", ylabel="speed-up of spectile", title="speed-up")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(**BELOW)
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    values, vendor = rows.at(p_study="evd", p_precision="float64", p_vectors=False), "cusolver_one_stage"
    over_vendor, over_magma = (values.speedup("spectile", rival) for rival in (vendor, "magma"))
    large = values.at(p_n=of_papers_orders)
    return {
        "evd_speedup_evd": large.speedup("spectile", vendor).max(),
        "evd_speedup_evd_magma": large.speedup("spectile", "magma").max(),
        "evd_solver_faster": over_vendor.min().at_least(1),
        "evd_solver_faster_magma": over_magma.min().at_least(1),
        "evd_solver_grows": over_vendor.growth("p_n").at_least(1),
        "evd_magma_large": values.speedup("magma", vendor).growth("p_n").at_least(1),
    }
