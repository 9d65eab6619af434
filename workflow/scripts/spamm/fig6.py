"""Figure 6 of cuSpAMM: speed-up on matrices of electronic structure, by threshold and number of GPUs."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.thresholds import ERGO_TAUS
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import GPUS
from spectile_study.figures.spamm import as_called

NEEDS = ("t4",)  # elements whose cases are drawn here, too

MATRICES = {
    "overlap": "overlap S",
    "core_hamiltonian": "core Hamiltonian",
    "fock_wh": "Fock-like (Wolfsberg-Helmholz)",
    "density_wh": "density of the Fock-like",
    "fock_scf": "Fock matrix (Hartree-Fock, ergo)",
    "density_scf": "density matrix (Hartree-Fock, ergo)",
}
COLUMNS = 3


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing(
        "Figure 6: speed-up of C = A² over the vendor's dense product", 2, COLUMNS, (12, 6.8), share_y=True
    )
    rows = select(frame, "p_study=water,status=ok")
    for ax, (operator, label) in zip(drawing.axes.flat, MATRICES.items(), strict=True):
        ax.set_title(label)
        here = select(rows, f"p_operator={operator}")
        if not len(here):
            drawing.empty(ax, "no record of this matrix in this run")
            continue
        for (molecules, gpus, precision), group in here.groupby(["p_molecules", "p_gpus", "p_precision"]):
            names = [f"spectile_{tau:.0e}" for tau in ERGO_TAUS]
            ours = pandas.concat([speedups(group, name, vendor) for name in names for vendor in ("cublas", "blas")])
            called = pandas.concat([as_called(group, name) for name in names])
            color, marker, _ = GPUS.get(int(gpus), GPUS[1])
            where = f"{int(gpus)} GPU{'s' if gpus > 1 else ''}" if gpus else "this machine"
            line = "-" if precision == "fp32" else "--"
            label = f"{molecules:.0f} waters, {where}, {precision}"
            look = {"label": label, "color": color, "marker": marker, "linestyle": line}
            drawing.marks(ax, called, "v_tau", "speedup", lo="speedup_lo", hi="speedup_hi", **look)
            if len(called):
                look |= {"label": f"{label}, the device alone", "alpha": 0.3, "linestyle": ":"}
            drawing.marks(ax, ours, "v_tau", "speedup", lo="speedup_lo", hi="speedup_hi", **look)
        ax.set(xlabel="threshold tau", xscale="log", yscale="log")
        ax.axhline(1, color="black", linewidth=0.5)
        ax.legend(fontsize=6, handlelength=3.5)  # long enough to tell dashes
    for ax in drawing.axes[:, 0]:
        ax.set_ylabel("speed-up")
    drawing.note(
        "The paper's four matrices are ergo's, of 569 waters. Ergo's are here of as many waters as a record has; the "
        "four others stand in for the size and are held against no printed number."
    )
    return drawing
