"""The study of interior eigenpairs: disordered graphene, all pairs of a window amid the spectrum.

================  ================================================================================================
``spectile``      ``filter_diagonalize`` as called: the count, the filter, the pairs with their residuals
``shift_invert``  SciPy's ``eigsh`` about the window's middle: sparse LU and ARPACK on a CPU, as many pairs
================  ================================================================================================

Every method's residuals and the overlaps of its vectors are computed anew.  The window is wide enough for the wanted
pairs by the density of states near the middle, which `count` estimates.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.kpm import count, filter_diagonalize
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.inputs.hamiltonians import hamiltonian

#: Width of the uniform on-site energies in units of the hopping, and bounds of the spectrum with them.
DISORDER, SPECTRUM = 0.5, (-3.3, 3.3)
#: Half the width of the window in which states are counted to choose the case's own.
LOOK = 0.1
#: Largest residual over half the width of the spectrum, and distance of XᵀX from the unit matrix.
RESIDUAL, OVERLAP = 1.01e-10, 1e-10
#: Rows up to which sparse factors are made, and a CPU filters, and those above which a call is one sample.
FACTORED, CPU_ROWS, ONCE_ROWS = 50_000, 200_000, 2_000_000
#: Columns whose residuals are computed at once.
COLUMNS = 16


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one sample and one window."""
    rows, pairs = int(row["rows"]), int(row["num_vectors"])
    if context.device == "cpu" and rows > CPU_ROWS:
        return Problem(
            [Skipped(name, "a sample of so many rows is for a GPU") for name in ("spectile", "shift_invert")]
        )
    xp: Any = np
    if context.device == "cuda":
        import cupy

        xp = cupy
    sample = _Sample(rows, pairs, context, xp)
    methods = [_filtered(sample, context), _factored(sample, pairs)]
    return Problem(methods, inputs={"energies": digest_array(sample.energies)}, values={"rows": sample.matrix.shape[0]})


class _Sample:
    """Periodic graphene with random on-site energies, and a window about 0 that holds about so many states.

    Attributes
    ----------
    matrix : CSR matrix, float64
        H, of the array module.
    energies : ndarray, shape (N,)
        On-site energies.
    window : (float, float)
        Lowest and highest energy.
    """

    def __init__(self, rows: int, pairs: int, context: Context, xp: Any) -> None:
        self.xp = xp
        hops = hamiltonian("graphene", rows, np.float64, xp)
        self.energies = np.random.default_rng(context.seed).uniform(-DISORDER / 2, DISORDER / 2, hops.shape[0])
        if xp is np:
            from scipy import sparse
        else:
            from cupyx.scipy import sparse
        self.matrix = sparse.csr_matrix(hops + sparse.diags(xp.asarray(self.energies)))
        states = count(
            self.matrix, (-LOOK, LOOK), rng=context.seed, bounds=SPECTRUM, backend=context.device, progress=False
        )
        # The density of states rises linearly from the middle, where disorder is weak.
        half = LOOK * (pairs / max(states.value, pairs / 4)) ** 0.5
        self.window = (-half, half)

    def errors(self, values: Any, vectors: Any) -> dict[str, float]:
        """Return the largest residual over half the width of the spectrum, and XᵀX's distance from the unit matrix."""
        worst = 0.0
        for first in range(0, vectors.shape[1], COLUMNS):
            some = self.xp.asfortranarray(vectors[:, first : first + COLUMNS])
            rest = self.matrix @ some - some * self.xp.asarray(values[first : first + COLUMNS])
            worst = max(worst, float(self.xp.linalg.norm(rest, axis=0).max()))
        overlaps = vectors.T @ vectors - self.xp.eye(vectors.shape[1])
        return {
            "error_residual": worst / (SPECTRUM[1] - SPECTRUM[0]) * 2,
            "error_orthogonality": float(abs(overlaps).max()),
        }


def _filtered(sample: _Sample, context: Context) -> Method:
    def run() -> Any:
        return filter_diagonalize(
            sample.matrix, sample.window, rng=context.seed, bounds=SPECTRUM, backend=context.device, progress=False
        )

    def check(found: Any) -> dict[str, float]:
        return sample.errors(found.eigenvalues, found.eigenvectors)

    return Method(
        "spectile", run, check, _LIMITS, once=sample.matrix.shape[0] > ONCE_ROWS,
        values=lambda found: {
            "pairs": len(found.eigenvalues), "counted": found.estimate.value, "counted_error": found.estimate.error,
        },
    )  # fmt: skip


def _factored(sample: _Sample, pairs: int) -> Method | Skipped:
    rows = sample.matrix.shape[0]
    if rows > FACTORED:
        return Skipped("shift_invert", f"sparse factors are made of at most {FACTORED:,} rows")
    from scipy.sparse.linalg import eigsh

    @functools.cache
    def matrix() -> Any:
        return (sample.matrix if sample.xp is np else sample.matrix.get()).tocsc()

    def run() -> Any:
        return eigsh(matrix(), k=min(pairs, rows - 1), sigma=0.0)

    def check(found: Any) -> dict[str, float]:
        return sample.errors(found[0], sample.xp.asarray(found[1]))

    return Method("shift_invert", run, check, _LIMITS, values=lambda found: {"pairs": len(found[0])})


_LIMITS = {"error_residual": RESIDUAL, "error_orthogonality": OVERLAP}
