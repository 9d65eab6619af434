"""The study of conductivity: disordered graphene, from the matrix to σ, beside products of CuPy and beside Kwant.

======================  ===================================================================================
``spectile``            ``conductivity`` as called: velocities from positions, moments, the curve
``gemm``                the moments alone by the array module's own products: H and the velocity with vectors,
                        all T_m A|r⟩ and A T_n|r⟩ of a vector kept, and one product of these two matrices
``kwant_extrapolated``  ``kwant.kpm.Correlator`` of a smaller sample and one vector with as many moments, whose
                        time is multiplied by the rows and vectors that the case has more: both are loops
======================  ===================================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.kpm import bounds, conductivity, reference, velocity
from spectile.kpm.reference import seed_of
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm.processes import kwant_calls
from spectile_study.inputs.hamiltonians import hamiltonian

#: Width of the uniform on-site energies in units of the hopping, and bounds of the spectrum with them.
DISORDER, SPECTRUM = 1.0, (-3.5, 3.5)
#: Moments in either direction that are compared with the reference, and their largest error.
FEW, LIMIT = 6, 1e-10
#: Rows of the sample that Kwant is given at most, and rows up to which a CPU is.
KWANT_ROWS, CPU_ROWS = 20_000, 200_000
#: Lattice vectors, and where site B lies from A, in units of the bond.
CELL = np.array([[1.5, 0.75**0.5], [1.5, -(0.75**0.5)]])
BOND = np.array([1.0, 0.0])


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one sample."""
    xp: Any = np
    if context.device == "cuda":
        import cupy

        xp = cupy
    rows, moments, vectors = int(row["rows"]), int(row["num_moments"]), int(row["num_vectors"])
    methods: list[Method | Skipped] = []
    if context.device == "cpu" and rows > CPU_ROWS:
        methods += [Skipped(name, "a sample of so many rows is for a GPU") for name in ("spectile", "gemm")]
        sample = None
    else:
        sample = _Sample(rows, context.seed, xp)
        methods += [_called(sample, moments, vectors, context), _gemm(sample, moments, vectors)]
    methods.append(_kwant(rows, moments, vectors, context))
    inputs = {} if sample is None else {"energies": digest_array(sample.energies)}
    return Problem(methods, inputs=inputs, values={"rows": rows})


class _Sample:
    """Periodic graphene with random on-site energies.

    Attributes
    ----------
    matrix : CSR matrix, float64
        H, of the array module.
    positions : ndarray, shape (N, 2)
        Of the sites; the sample repeats by `periods`.
    energies : ndarray, shape (N,)
        On-site energies.
    seed : int
        Of the random vectors.
    """

    def __init__(self, rows: int, seed: int, xp: Any) -> None:
        self.xp, self.seed = xp, seed
        hops = hamiltonian("graphene", rows, np.float64, xp)
        n = hops.shape[0]
        side = round((n / 2) ** 0.5)
        self.energies = np.random.default_rng(seed).uniform(-DISORDER / 2, DISORDER / 2, n)
        if xp is np:
            from scipy import sparse
        else:
            from cupyx.scipy import sparse
        self.matrix = sparse.csr_matrix(hops + sparse.diags(xp.asarray(self.energies)))
        cell = np.arange(n) // 2
        self.positions = np.stack(np.divmod(cell, side), axis=1) @ CELL + (np.arange(n) % 2)[:, None] * BOND
        self.periods = side * CELL

    @functools.cached_property
    def hops(self) -> Any:
        """The velocity along x over i, which is real."""
        matrix = velocity(self.matrix, "x", self.positions, periods=self.periods)
        return type(matrix)((matrix.data.imag.copy(), matrix.indices, matrix.indptr), shape=matrix.shape)

    def vectors(self, count: int) -> Any:
        """Return the random vectors that a call with this seed takes, shape (N, R)."""
        start = reference.random_phases(seed_of(self.seed), self.matrix.shape[0], count, real=True)
        return self.xp.asarray(start)

    def terms(self, start: Any, count: int, a: float, b: float) -> Any:
        """Return T_m(H̃) times a vector for m below `count`, shape (M, N)."""
        kept = self.xp.empty((count, len(start)))
        kept[0] = start
        kept[1] = a * (self.matrix @ start - b * start)
        for m in range(2, count):
            kept[m] = 2 * a * (self.matrix @ kept[m - 1] - b * kept[m - 1]) - kept[m - 2]
        return kept

    def moments(self, count: int, vectors: int, a: float, b: float) -> Any:
        """Return tr[v T_m(H̃) v T_n(H̃)] for m and n below `count`, by the products of the array module."""
        total = self.xp.zeros((count, count))
        for vector in self.xp.ascontiguousarray(self.vectors(vectors).T):
            left = self.terms(self.hops @ vector, count, a, b)
            right = self.terms(vector, count, a, b)
            for n in range(count):
                right[n] = self.hops @ right[n]
            total += left @ right.T
        return total / vectors

    def error(self, moments: Any, vectors: int, limits: tuple[float, float]) -> dict[str, float]:
        """Return how far the first moments are from the reference: as they are made in another order of sums."""
        wanted = self.moments(FEW, vectors, *bounds.scaling(limits))
        host = [np.asarray(each if isinstance(each, np.ndarray) else each.get()) for each in (moments, wanted)]
        found = host[0][:FEW, :FEW]
        return {"error_fro_rel": float(np.linalg.norm(found - host[1]) / np.linalg.norm(host[1]))}


def _called(sample: _Sample, moments: int, vectors: int, context: Context) -> Method:
    def run() -> Any:
        return conductivity(
            sample.matrix, "x", "x", sample.positions, periods=sample.periods, num_moments=moments,
            num_vectors=vectors, rng=sample.seed, bounds=SPECTRUM, backend=context.device, progress=False,
        )  # fmt: skip

    def check(sigma: Any) -> dict[str, float]:
        return sample.error(sigma.correlator.moments, vectors, sigma.correlator.bounds)

    return Method(
        "spectile", run, check, {"error_fro_rel": LIMIT}, flops=_flops(sample.matrix.shape[0], moments, vectors)
    )


def _gemm(sample: _Sample, moments: int, vectors: int) -> Method:
    def run() -> Any:
        return sample.moments(moments, vectors, *bounds.scaling(SPECTRUM))

    def check(found: Any) -> dict[str, float]:
        return sample.error(found, vectors, SPECTRUM)

    return Method("gemm", run, check, {"error_fro_rel": LIMIT}, flops=_flops(sample.matrix.shape[0], moments, vectors))


def _flops(rows: int, moments: int, vectors: int) -> float:
    """Return the operations of the products of kept vectors, beside which all others are few."""
    return 2.0 * moments**2 * rows * vectors


def _kwant(rows: int, moments: int, vectors: int, context: Context) -> Method | Skipped:
    name = "kwant_extrapolated"
    if not kwant_calls.is_named():
        return Skipped(name, kwant_calls.ABSENT)
    sample = _Sample(min(rows, KWANT_ROWS), context.seed, np)
    measured = sample.matrix.shape[0]

    def run() -> Any:
        hops = sample.hops
        velocity = type(hops)((1j * hops.data, hops.indices, hops.indptr), shape=hops.shape)
        found, seconds = kwant_calls.call(
            sample.matrix, sample.vectors(1).T, moments, SPECTRUM, velocity=velocity, few=FEW
        )  # fmt: skip
        return found, seconds * vectors * rows / measured

    def check(found: Any) -> dict[str, float]:
        return sample.error(found, 1, SPECTRUM)

    return Method(
        name, run, check, {"error_fro_rel": LIMIT}, flops=_flops(rows, moments, vectors), clock="external",
        values=lambda found: {"measured_rows": measured, "measured_vectors": 1},
    )  # fmt: skip
