"""The two-stage eigensolver on the CPU: BLAS and LAPACK for panels, updates and T, Numba for the chasing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import progress
from spectile.evd.cpu import lapack, part
from spectile.evd.types import scalar_of

Array = np.ndarray[Any, np.dtype[Any]]

# b and nb, best of 32 ... 64 and 64 ... 256 for n = 2000 on two cores; with eigenvectors a wider band pays, because the
# product with Q2 goes through blocks of b reflectors.
BANDWIDTH = 32
BANDWIDTH_VECTORS = 64
BLOCK = 128


@dataclass(frozen=True)
class Tridiagonal:
    """A = Q1 Q2 T Q2ᴴ Q1ᴴ in factored form.

    Attributes
    ----------
    d, e : array, shape (n,), (n - 1,)
        Diagonal and subdiagonal of T, real.
    bandwidth : int
        b of the band between the stages.
    factor : array, shape (n, n)
        Below subdiagonal b: the panels' reflectors (Q1), as LAPACK's geqrf leaves them.
    tau : array, shape (max(n - b, 0),)
        Their τ.
    vectors : array, shape (n, n), or (0, 0)
        The chasing reflectors (Q2), as `chasing.chase` leaves them.
    """

    d: Array
    e: Array
    bandwidth: int
    factor: Array
    tau: Array
    vectors: Array


def band_reduction(a: Array, *, bandwidth: int, block: int) -> Array:
    """Reduce the lower triangle of a Hermitian matrix to a band, in place (Algorithm 1).

    Parameters
    ----------
    a : array, shape (n, n), column-major
        Hermitian, lower triangle.  Overwritten: the band, and below it the reflectors.
    bandwidth, block : int
        b and nb.

    Returns
    -------
    tau : array, shape (max(n - b, 0),)
    """
    n, b = a.shape[0], bandwidth
    tau = np.zeros(max(n - b, 0), a.dtype)
    for i in range(0, n - b, block):
        width = min(block, n - b - i)
        # Y and Z of the block's panels; a column block of one and the same of the other make one pending update.
        y_all = np.zeros((n - i, width), a.dtype, order="F")
        z_all = np.zeros((n - i, width), a.dtype, order="F")
        for j in range(i, min(i + block, n), b):
            k = min(b, n - j)
            p = min(j - i, width)
            if p:
                panel = a[j:, j : j + k]
                for left, right in ((y_all, z_all), (z_all, y_all)):
                    lapack.gemm(-1, left[j - i :, :p], right[j - i : j - i + k, :p], 1, panel, hb=True)
            top = j + b
            if top >= n:
                continue
            k = min(b, n - top)
            panel = a[top:, j : j + b]
            t = np.zeros((k, k), a.dtype, order="F")
            lapack.geqrt(panel, t)
            tau[j : j + k] = np.diag(t)
            y = y_all[top - i :, p : p + k]
            y[:] = np.tril(panel[:, :k], -1)
            np.fill_diagonal(y, 1)
            # NumPy and SciPy each bring a BLAS whose idle threads spin: only SciPy's is called in this loop.
            w = np.empty(y.shape, a.dtype, order="F")
            lapack.gemm(1, y, t, 0, w)
            z = z_all[top - i :, p : p + k]
            lapack.hemm(a[top:, top:], w, z)
            for left, right in ((y_all, z_all), (z_all, y_all)):
                if p:
                    s = np.empty((p, k), a.dtype, order="F")
                    lapack.gemm(1, right[top - i :, :p], w, 0, s, ha=True)
                    lapack.gemm(-1, left[top - i :, :p], s, 1, z)
            m = np.empty((k, k), a.dtype, order="F")
            lapack.gemm(1, w, z, 0, m, ha=True)
            lapack.gemm(-0.5, y, m, 1, z)
        rest = i + block
        if rest < n:
            lapack.her2k(-1, y_all[block:], z_all[block:], a[rest:, rest:])
        progress.count(progress.OPERATIONS, reduced(n - i, a.dtype) - reduced(n - rest, a.dtype))
    return tau


def reduced(n: int, dtype: Any) -> int:
    """Return how many operations the reduction of a matrix to a band takes."""
    return 4 * scalar_of(dtype).parts ** 2 * max(n, 0) ** 3 // 3


def tridiagonalize(a: Array, *, bandwidth: int, block: int, keep: bool, threads: int) -> Tridiagonal:
    """Bring a Hermitian matrix to real tridiagonal form in two stages.

    Parameters
    ----------
    a : array, shape (n, n), column-major
        Hermitian, lower triangle; overwritten.
    bandwidth, block : int
        b and nb.
    keep : bool
        Whether the chasing reflectors are kept.
    threads : int
        Threads of the chasing.
    """
    n = a.shape[0]
    b = max(1, min(bandwidth, n - 1))
    block = max(b, block // b * b)
    tau = band_reduction(a, bandwidth=b, block=block)
    d, e, vectors = chase_band(extract_band(a, b), b, keep=keep, threads=threads)
    return Tridiagonal(d, e, b, a, tau, vectors)


def extract_band(a: Array, bandwidth: int) -> Array:
    """Return the lower band of `a` as ``band[j, i - j]``, with space for the bulges, shape (n, 2 b)."""
    n = a.shape[0]
    band = np.zeros((n, 2 * bandwidth), a.dtype)
    for offset in range(min(bandwidth, n - 1) + 1):
        band[: n - offset, offset] = np.diagonal(a, -offset)
    return band


def chase_band(band: Array, bandwidth: int, *, keep: bool, threads: int) -> tuple[Array, Array, Array]:
    """`chasing.chase`, imported when it is first needed, because importing Numba takes a second."""
    from spectile.evd.cpu.chasing import chase

    return chase(band, bandwidth, keep=keep, threads=threads)


def apply_chasing(vectors: Array, bandwidth: int, z: Array) -> None:
    """Z = Q2 Z in place, the reflectors of b sweeps at a time gathered into block reflectors (diamonds).

    The reflectors of sweeps s ... s + b − 1 at task t form Y_t, a parallelogram of 2 b − 1 rows; their product over
    a group of sweeps is ... V_1 V_0 with V_t = I − Y_t T_t Y_tᴴ and T_t⁻¹ = striu(Y_tᴴ Y_t) + diag(1 / τ).

    Parameters
    ----------
    vectors : array, shape (n, n)
        As `chasing.chase` leaves them.
    bandwidth : int
    z : array, shape (n, k), row-major
        Overwritten.
    """
    n, b = vectors.shape[0], bandwidth
    transposed = z.T
    product = np.empty((z.shape[1], b), z.dtype, order="F")
    for first in range((n - 2) // b * b, -1, -b):
        sweeps = min(b, n - 1 - first)
        tasks = (n - 2 - first) // b + 1
        rows = b + sweeps - 1
        # Element [t, c, r] is row first + 1 + t b + r of the reflector of sweep first + c.
        band = np.zeros((sweeps, tasks * b + rows), vectors.dtype)
        band[:, : n - first - 1] = vectors[first : first + sweeps, first + 1 :]
        tiles = np.lib.stride_tricks.sliding_window_view(band, rows, axis=1)[:, : tasks * b : b].transpose(1, 0, 2)
        c, r = np.arange(sweeps)[:, None], np.arange(rows)
        y = np.where((r >= c) & (r < c + b), tiles, 0)
        heads = np.arange(sweeps)
        tau = y[:, heads, heads].copy()
        live = tau != 0
        y[:, heads, heads] = 1
        y *= live[:, :, None]
        conjugate = y.conj()
        inverse = np.triu(conjugate @ y.transpose(0, 2, 1), 1)
        inverse[:, heads, heads] = 1 / np.where(live, tau, 1)
        # Zᵀ − (Zᵀ Y*) (Tᵀ Yᵀ) on the columns of Zᵀ: the transposed product, because Z is row-major.
        right = np.ascontiguousarray((np.linalg.inv(inverse).transpose(0, 2, 1) @ y).conj())
        for task in range(tasks):
            start = first + 1 + task * b
            block = transposed[:, start : start + rows]
            length = block.shape[1]
            lapack.gemm(1, block, conjugate[task].T[:length], 0, product[:, :sweeps])
            lapack.gemm(-1, product[:, :sweeps], right[task].T[:length], 1, block, hb=True)


def apply_panels(factors: Tridiagonal, z: Array) -> None:
    """Z = Q1 Z in place; Z is column-major, shape (n, k)."""
    b = factors.bandwidth
    if len(factors.tau):
        lapack.unmqr(factors.factor[b:, : len(factors.tau)], factors.tau, z[b:])


def apply_q(factors: Tridiagonal, z: Array) -> Array:
    """Return Q1 Q2 Z, shape (n, k), column-major; a row-major Z is overwritten."""
    apply_chasing(factors.vectors, factors.bandwidth, z)
    z = np.asfortranarray(z)
    apply_panels(factors, z)
    return z


def eigh_tridiagonal(d: Array, e: Array, *, vectors: bool) -> tuple[Array, Array | None]:
    """Eigenvalues, and eigenvectors where wanted, of T by LAPACK's divide and conquer, which finds values by sterf.

    (A subset is cut from the whole: MRRR, which could leave the rest out, loses two digits of orthogonality, and T is
    a small part of the time.)

    Parameters
    ----------
    d, e : array, shape (n,), (n - 1,)
        Real, finite.
    vectors : bool

    Raises
    ------
    numpy.linalg.LinAlgError
        If LAPACK's iteration does not converge.
    """
    if len(d) == 1:
        return d.copy(), np.ones((1, 1), d.dtype) if vectors else None
    return part.divided(d, e, vectors)


def eigh(
    a: Array,
    *,
    vectors: bool,
    choose: Callable[[Array], slice],
    threads: int,
    bandwidth: int | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array | None]:
    """Return eigenvalues, and eigenvectors where wanted, of a Hermitian matrix.

    Parameters
    ----------
    a : array, shape (n, n), column-major
        Lower triangle, of norm near 1; overwritten.
    vectors : bool
    choose : callable
        ``choose(w)`` of all eigenvalues, ascending, is the slice of those wanted.
    threads : int
    bandwidth, block : int, optional
        b and nb.
    """
    b = bandwidth or (BANDWIDTH_VECTORS if vectors else BANDWIDTH)
    if not vectors and (call := progress.counted_in(progress.OPERATIONS)) is not None:
        call.total = reduced(len(a), a.dtype)  # what follows is little
    factors = tridiagonalize(a, bandwidth=b, block=block, keep=vectors, threads=threads)
    w, s = eigh_tridiagonal(factors.d, factors.e, vectors=vectors)
    wanted = choose(w)
    if s is None:
        return w[wanted], None
    return w[wanted], apply_q(factors, np.array(s[:, wanted], a.dtype, order="C"))
