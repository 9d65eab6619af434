"""Eigenpairs of a matrix from the eigenvectors of one nearby, by products of matrices alone.

With G = Xᴴ B X and S = Xᴴ A X, each scaled to a unit diagonal of G, w = diag(S) and R = 1 - G::

    X ← X (1 + E),    E_ij = (S_ij + w_j R_ij) / (w_j - w_i),    E_ij = R_ij / 2 where rounding is all that couples i, j

The error is squared by each correction as long as E is small.  Where two eigenvalues are so close that E is not, they
and all that they are coupled to are solved as a small problem of their own before.  A correction takes eight n³ and a
last look at G and S six, in operations of matrix products; what does not come near enough is left to the full solver.

Source: T. Ogita and K. Aishima, "Iterative refinement for symmetric eigenvalue decomposition", Japan J. Indust. Appl.
Math. 35 (2018) and, for clusters, 36 (2019).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.threads import blas_threads
from spectile.evd.arguments import placed
from spectile.evd.types import Definite, Options, working_dtype

#: Eigenvectors coupled by more than this share of their gap are solved together; the least that makes small problems.
STRONG = (1 / 64, 1 / 16, 1 / 4)
#: The largest share of all eigenvectors that a small problem may have.
LARGEST_SHARE = 1 / 8
#: Corrections on a GPU that take no longer than the full solver, which is bound by latency and by memory there.
MOST_ON_GPU = 4
#: Matrices of n² elements that are held at once: of a problem with B, of one without, and of that in single precision.
HELD_BESIDE_B, HELD, HELD_SINGLE = 12, 19, 26


def eigh(a: Any, x0: Any, options: Options, definite: Definite | None, backend: str) -> tuple[Any, Any] | None:
    """Return eigenvalues and eigenvectors of a matrix or a batch, or None where `x0` is too far from those of any.

    Parameters
    ----------
    a : array, shape (..., n, n)
        Of any library, unchanged.
    x0 : array
        Of the shape of `a`, or one that broadcasts to it; unchanged.
    options : Options
        The triangle; all other words were judged before.
    definite : Definite or None
        The second matrix.
    backend : {"auto", "cpu", "cuda"}

    Returns
    -------
    w, v : arrays of the kind of `a`, shapes (..., n) and (..., n, n)

    Raises
    ------
    ValueError
        If `x0` is of another shape, not finite, or complex where the matrices are real.
    MemoryError
        If the products do not fit.
    """
    operands = {"a": a, "x0": x0} | ({} if definite is None else {"b": definite.b})
    xp, given, in_kind = placed(operands, backend)
    matrices = [one.astype(working_dtype(one.dtype), copy=False) for one in (given[0], *given[2:])]
    dtype = np.result_type(*(one.dtype for one in matrices))
    shape = np.broadcast_shapes(*(one.shape for one in matrices))
    n, lead = shape[-1], shape[:-2]
    x = _start(xp, given[1], shape, dtype)
    if not x.size:
        return None
    count = HELD_BESIDE_B if definite is not None else HELD_SINGLE if dtype.char in "fF" else HELD
    held = count * n * n * dtype.itemsize
    most = worth_on_cpu(blas_threads()) if xp is np else MOST_ON_GPU
    if most < 1:
        return None
    what = f"the refinement of {n:,} eigenvectors"
    (memory.require_host_free if xp is np else memory.require_free)(held, what)
    matrices = [xp.broadcast_to(one.astype(dtype, copy=False), shape) for one in matrices]
    w, v = xp.empty(shape[:-1], dtype.type(0).real.dtype), xp.empty(shape, dtype)
    for i in np.ndindex(*lead):
        with np.errstate(all="ignore"):  # what is not finite, or not definite, is left to the full solver
            b = matrices[1][i] if definite is not None else None
            pair = refined(xp, matrices[0][i], x[i], options.lower, b, most)
        if pair is None:
            return None
        w[i], v[i] = pair
    return in_kind(w), in_kind(v)


def worth_on_cpu(threads: int) -> int:
    """Return how many corrections take no longer than LAPACK's solution, 0 where none is worth it.

    In times of a product of two matrices, LAPACK takes 4.5 on one core, of which a third is bound by memory, that few
    cores exhaust; k corrections are 3 + 4k products and, with what lies between them, 1.4 times as long.
    """
    lapack = 3 + 1.5 * threads / min(threads, 4)
    return max(0, int((lapack / 1.4 - 3) / 4))


def _start(xp: Any, x0: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return the vectors that a caller gave, of the shape and dtype of the matrices."""
    if x0.ndim < 2 or x0.shape[-2:] != shape[-2:] or np.broadcast_shapes(x0.shape, shape) != shape:
        raise ValueError(f"x0 has shape {x0.shape} and the matrices have {shape}: give all eigenvectors, in columns")
    if x0.dtype.kind == "c" and dtype.kind != "c":
        raise ValueError(f"x0 is {x0.dtype} and the matrices are real: give real vectors")
    if x0.dtype.kind not in "biufc" or not bool(xp.isfinite(x0).all()):
        raise ValueError("x0 holds what is no finite number: give the eigenvectors of a matrix nearby")
    return xp.broadcast_to(x0.astype(dtype, copy=False), shape)


def refined(xp: Any, a: Any, x: Any, lower: bool, b: Any = None, most: int = MOST_ON_GPU) -> tuple[Any, Any] | None:
    """Return eigenvalues, ascending, and eigenvectors, or None where `x` is too far from them.

    Parameters
    ----------
    xp : module
        NumPy or CuPy, of which all arrays are.
    a : array, shape (n, n)
        A, of which one triangle is read.
    x : array, shape (n, n)
        Approximate eigenvectors in columns, of any lengths, in the order of any eigenvalues.
    lower : bool
        Which triangle of A and of B is read.
    b : array, shape (n, n), optional
        B, positive definite, of A x = w B x.
    most : int
        Corrections after which the full solver is the faster way.

    Returns
    -------
    w : array, shape (n,)
    v : array, shape (n, n)
        With vᴴ B v = 1 to rounding, each close to the column of `x` that it came from.
    """
    n = a.shape[-1]
    largest = float(xp.abs(a).max()) if n else 0.0
    if not (math.isfinite(largest) and largest):
        return None
    # The squares of entries and their sums are far from either end of the range then.
    power = float(np.clip(-math.frexp(largest)[1], *_POWERS[a.real.dtype.name]))
    a = _hermitian(xp, a, lower) * a.real.dtype.type(2.0**power)
    b = None if b is None else _hermitian(xp, b, lower)
    epsilon = float(np.finfo(a.dtype).eps)
    before = math.inf
    for done in range(most + 1):
        pencil = _pencil(a, x, b)
        if pencil is None:
            return None
        x, s, g = pencil
        w, r, terms = _terms(s, g)
        residual, defect = _norm(xp, terms), _norm(xp, r)
        if not (math.isfinite(residual) and defect < 0.5):
            return None
        size = _norm(xp, w)
        error = max(residual / (math.sqrt(n) * size), defect / n) / epsilon  # 1 and below: as LAPACK's
        if error <= 1 or (done and before / 2 < error <= 4):
            order = xp.argsort(w)
            return w[order] * w.dtype.type(2.0**-power), x[:, order]
        if done == most or error > before / 2:
            return None
        before, noise = error, epsilon * size / math.sqrt(n)
        coupling = _coupling(xp, s, r, w, noise)
        clusters = _clusters(xp, coupling, w)
        if clusters is None:
            return None
        if clusters:
            _solve_clusters(xp, clusters, x, s, g)
            w, r, terms = _terms(s, g)
            coupling = _coupling(xp, s, r, w, noise)
        gap = w - w[:, None]
        coupled = (coupling > 0) & (gap != 0)
        e = xp.where(coupled, terms / xp.where(coupled, gap, 1), r / 2)
        x = x + x @ e
    return None


#: Powers of two by which a matrix of either precision may be multiplied at once.
_POWERS = {"float32": (-120, 120), "float64": (-1000, 1000)}


def _hermitian(xp: Any, a: Any, lower: bool) -> Any:
    strict = xp.tril(a, -1) if lower else xp.triu(a, 1)
    whole = strict + strict.conj().T
    whole.reshape(-1)[:: a.shape[-1] + 1] = a.diagonal().real
    return whole


def _without_diagonal(a: Any) -> Any:
    a = a.copy()
    a.reshape(-1)[:: a.shape[-1] + 1] = 0
    return a


def _norm(xp: Any, a: Any) -> float:
    return float(xp.linalg.norm(a.ravel()))


def _pencil(a: Any, x: Any, b: Any) -> tuple[Any, Any, Any] | None:
    """Return X with columns of length 1, Xᴴ A X and Xᴴ B X; None where a column has no length."""
    adjoint = x.conj().T
    g, s = adjoint @ (x if b is None else b @ x), adjoint @ (a @ x)
    lengths = g.diagonal().real
    if not bool(((lengths > 0) & (lengths < math.inf)).all()):
        return None
    scale = 1 / lengths**0.5
    both = scale * scale[:, None] / 2
    # Rounding would make them a little unsymmetric, and the quotients by small gaps the vectors much less orthogonal.
    return x * scale, (s + s.conj().T) * both, (g + g.conj().T) * both


def _terms(s: Any, g: Any) -> tuple[Any, Any, Any]:
    """Return w, R and S_ij + w_j R_ij off the diagonal."""
    w, r = s.diagonal().real.copy(), _without_diagonal(-g)
    return w, r, _without_diagonal(s) + r * w


def _coupling(xp: Any, s: Any, r: Any, w: Any, noise: float) -> Any:
    """Return how strongly each two vectors are coupled, 0 where rounding is all of it."""
    found = xp.abs(_without_diagonal(s) + r * ((w + w[:, None]) / 2))
    return xp.where(found > noise, found, 0)


def _clusters(xp: Any, coupling: Any, w: Any) -> list[np.ndarray] | None:
    """Return the vectors of each set that strong couplings connect, or None where one is too large."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(w)
    gap = xp.abs(w - w[:, None])
    for share in STRONG:
        i, j = (xp.asnumpy(part) if hasattr(xp, "asnumpy") else part for part in (coupling > share * gap).nonzero())
        _, label = connected_components(coo_array((np.ones(len(i)), (i, j)), shape=(n, n)), directed=False)
        order, count = np.argsort(label, kind="stable"), np.bincount(label)
        if count.max() <= max(2, LARGEST_SHARE * n):
            return [part for part in np.split(order, np.cumsum(count)[:-1]) if len(part) > 1]
    return None


def _solve_clusters(xp: Any, clusters: list[np.ndarray], x: Any, s: Any, g: Any) -> None:
    """Turn the vectors of each cluster so that nothing couples them, in place."""
    from scipy.linalg import eigh

    for cluster in clusters:
        at = xp.asarray(cluster)
        small = (part[at[:, None], at] for part in (s, g))
        turn = xp.asarray(eigh(*(xp.asnumpy(part) if hasattr(xp, "asnumpy") else part for part in small))[1])
        x[:, at] = x[:, at] @ turn
        for part in (s, g):
            part[:, at] = part[:, at] @ turn
            within = turn.conj().T @ part[at[:, None], at]
            part[at] = part[:, at].conj().T
            part[at[:, None], at] = (within + within.conj().T) / 2
