"""Figure 6 of cuSpAMM: speed-up on matrices of electronic structure, by threshold and number of GPUs."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at, is_as_called
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.thresholds import ERGO_TAUS
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import GPUS
from spectile_study.figures.spamm import LARGE_NORM, as_called, between_events, waters

NEEDS = ("t4",)  # elements whose cases are drawn here, too

MATRICES = {
    "overlap": "overlap S",
    "core_hamiltonian": "core Hamiltonian h",
    "fock_scf": "Fock matrix F",
    "density_scf": "density matrix D",
    "fock_orthogonal": "orthogonal Fock matrix F'",
    "density_orthogonal": "orthogonal density matrix D'",
}
# The speed-ups that the paper prints of the figure: claims by threshold and GPUs.
PRINTED = {1: ("1em10", "1em04", "1em02"), 8: ("1em10", "1em04", "1em02")}
COLUMNS = 3
#: Numbers of GPUs for which the paper prints a mean, by threshold, and which of its matrices it is of: all four, those
#: of a small norm, those of a large one.
MEANS = {
    1e-10: ((1, 2, 4, 8), lambda norm: norm > 0),
    1e-4: ((1, 2, 4, 8), lambda norm: norm < LARGE_NORM),
    1e-2: ((1, 8), lambda norm: norm > LARGE_NORM),
}


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing(
        "Figure 6: speed-up of C = A² over the vendor's dense product", 2, COLUMNS, (12, 6.8), share_y=True
    )
    rows = at(frame, p_study="water", status="ok")
    for ax, (operator, label) in zip(drawing.axes.flat, MATRICES.items(), strict=True):
        ax.set_title(label)
        here = at(rows, p_operator=operator)
        if not len(here):
            drawing.empty(ax, "no record of this matrix in this run")
            continue
        for (_, gpus, precision), group in here.groupby(["p_molecules", "p_gpus", "p_precision"]):
            names = [f"spectile_{tau:.0e}" for tau in ERGO_TAUS]
            ours = pandas.concat([speedups(group, name, vendor) for name in names for vendor in ("cublas", "blas")])
            called = pandas.concat([as_called(group, name) for name in names])
            color, marker, _ = GPUS.get(int(gpus), GPUS[1])
            where = f"{int(gpus)} GPU{'s' if gpus > 1 else ''}" if gpus else "this machine"
            line = "-" if precision == "fp32" else "--"
            label = f"{waters(group.iloc[0])}, {where}, {precision}"
            look = {"label": label, "color": color, "marker": marker, "linestyle": line}
            drawing.marks(ax, called, "v_tau", "speedup", **look)
            if not ours.empty and not is_as_called("spamm", "water", ours["method"].iloc[0]):
                look["label"] = f"{label}, {between_events(int(gpus))}"
            if len(called):
                look |= {"alpha": 0.3, "linestyle": ":"}
            drawing.marks(ax, ours, "v_tau", "speedup", **look)
        for gpus, names in PRINTED.items():
            claims = [f"spamm_fig6_{name}_gpus{gpus}" for name in names]
            taus = [float(name.replace("m", "-")) for name in names]
            label = f"paper, {gpus} GPU{'s' if gpus > 1 else ''}, mean of its matrices"
            drawing.paper_marks(ax, taus, claims, label, joined=False)
        ax.set(xlabel="threshold tau", xscale="log", yscale="log")
        ax.axhline(1, color="black", linewidth=0.5)
    # Its lines are long enough to tell dashes.
    drawing.legend_beside(drawing.axes[0, -1], drawing.axes.flat, handlelength=3.5)
    for ax in drawing.axes[:, 0]:
        ax.set_ylabel("speed-up")
    drawing.note(
        "All but S and h are of a Hartree-Fock calculation in 6-31G**, molecules along a Hilbert curve. The paper's "
        "four matrices are of 569 waters, too, and not named; it prints means over all four (tau = 1e-10), the first "
        "two (1e-4) or the last two (1e-2). Table 4 holds the errors at these thresholds."
    )
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    cluster = rows.at(p_study="water", p_molecules=569, p_precision="fp32", p_operator=tuple(MATRICES))
    found = {}
    for tau, (counts, of) in MEANS.items():
        for gpus in counts:
            faster = cluster.at(p_gpus=gpus, v_norm_c=of).speedup(f"spectile_{tau:.0e}", "cublas")
            found[f"spamm_fig6_{tau:.0e}_gpus{gpus}".replace("-", "m")] = faster.geomean()
    gains = cluster.at(p_gpus=1).speedup("spectile_1e-*", "cublas").growth("v_tau", "case")
    more = cluster.speedup("spectile_1e-02", "cublas").growth("p_gpus", "p_operator")
    return found | {
        "spamm_water_gains_with_tau": gains.at_least(1),
        "spamm_water_gains_with_gpus": more.at_least(1),
    }
