"""Density matrices of water: time and error beside dense solvers, dense SP2, and SciPy's CSR with dropping."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.figures.drawing import Drawing

LABELS = {
    "density_1e-05": "density_matrix, error 1e-5 of ‖P‖",
    "density_1e-08": "density_matrix, error 1e-8 of ‖P‖",
    "eigh": "spectile.eigh",
    "cusolver": "cuSOLVER",
    "lapack": "LAPACK",
    "sp2_cublas": "SP2, cuBLAS",
    "sp2_blas": "SP2, BLAS",
    "sp2_csr_1e-05": "SP2, SciPy's CSR with dropping, 1e-5",
    "sp2_csr_1e-08": "SP2, SciPy's CSR with dropping, 1e-8",
}


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Density matrices of water (Hartree-Fock, 6-31G**, orthogonal basis)", columns=2, size=(11, 4.4))
    rows = at(frame, p_study="density", status="ok")
    times, errors = drawing.axes[0]
    if not len(rows):
        for ax in (times, errors):
            drawing.empty(ax, "this run holds no record of a density matrix of water")
        return drawing
    for method, label in LABELS.items():
        here = at(rows, method=method)
        drawing.marks(times, here, "p_molecules", "time_s", label=label)
        drawing.marks(errors, here, "p_molecules", "error_fro_rel", label=label)
        if method.startswith("density_"):
            look = {"label": f"{label}: guaranteed", "linestyle": ":", "marker": "_"}
            drawing.marks(errors, here, "p_molecules", "error_bound_rel", **look)
    times.set(xlabel="molecules, 24 functions each", ylabel="time, s", xscale="log", yscale="log")
    errors.set(xlabel="molecules, 24 functions each", ylabel="error of P / ‖P‖", xscale="log", yscale="log")
    drawing.legend_beside(errors, (errors, times))
    drawing.note(
        "P is judged by the vendor's dense solver, and beyond 24,000 rows by ours. "
        "More molecules than Fock matrices are at hand of are model water."
    )
    for reason in sorted(set(at(frame, p_study="density", status="skipped")["reason"].dropna())):
        drawing.note(reason)
    return drawing
