"""Figure 6 of cuSpAMM: speed-up on matrices of electronic structure, by threshold and number of GPUs."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.thresholds import ERGO_TAUS
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import GPUS

NEEDS = ("t4",)  # elements whose cases are drawn here, too

MATRICES = {
    "overlap": "overlap S",
    "core_hamiltonian": "core Hamiltonian",
    "fock_wh": "Fock-like (Wolfsberg-Helmholz)",
    "density_wh": "density of the Fock-like",
}


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing(
        "Figure 6: speed-up of C = A² over the vendor's dense product", 1, len(MATRICES), (12, 3.6), share_y=True
    )
    rows = select(frame, "p_study=water,status=ok")
    for ax, (operator, label) in zip(drawing.axes[0], MATRICES.items(), strict=True):
        ax.set_title(label)
        here = select(rows, f"p_operator={operator}")
        if not len(here):
            drawing.empty(ax, "no record of this matrix in this run")
            continue
        for (molecules, gpus, precision), group in here.groupby(["p_molecules", "p_gpus", "p_precision"]):
            names = [f"spectile_{tau:.0e}" for tau in ERGO_TAUS]
            ours = pandas.concat([speedups(group, name, vendor) for name in names for vendor in ("cublas", "blas")])
            color, marker, _ = GPUS.get(int(gpus), GPUS[1])
            where = f"{int(gpus)} GPU{'s' if gpus > 1 else ''}" if gpus else "this machine"
            line = "-" if precision == "fp32" else "--"
            label = f"{molecules:.0f} waters, {where}, {precision}"
            look = {"label": label, "color": color, "marker": marker, "linestyle": line}
            drawing.marks(ax, ours, "v_tau", "speedup", lo="speedup_lo", hi="speedup_hi", **look)
        ax.set(xlabel="threshold tau", xscale="log", yscale="log")
        ax.axhline(1, color="black", linewidth=0.5)
        if ax is drawing.axes[0, 0] or not len(select(rows, f"p_operator={next(iter(MATRICES))}")):
            ax.legend()
    drawing.axes[0, 0].set_ylabel("speed-up")
    return drawing
