"""The derivative of a Hermitian eigendecomposition, in the arrays of any library.

A(t) is written V(t) D(t) Vᴴ(t), where D has a block for each cluster of eigenvalues that coincide and is diagonal
elsewhere.  Unlike the eigenvectors, these factors are smooth through a coincidence if the basis of each cluster is
carried along without a rotation in it.  With M = Vᴴ dA V::

    dD = M on the blocks,    dV = V K,    K D - D K = M off the blocks and K = 0 on them

Where D is diagonal, K is :func:`quotients` times M, entry by entry; but the derivative of K follows all of a block of D
and not its diagonal alone, and that makes second derivatives right where eigenvalues coincide.

What a function loses by this is what it must not depend on: the rotation in a cluster, and the phase of a vector.  Its
cotangents show whether it does, and :func:`faults` judges them.

Source: T. Kato, Perturbation Theory for Linear Operators, chapter II; J. R. Magnus, "On differentiating eigenvalues and
eigenvectors" (1985).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.evd.arguments import refuse_ragged
from spectile.evd.types import Subset


class GaugeError(ValueError):
    """A function depends on what an eigendecomposition leaves open, and has no derivative."""


class GaugeWarning(RuntimeWarning):
    """A tangent is right for those functions alone that do not depend on what an eigendecomposition leaves open."""


#: How far apart, as a share of the largest eigenvalue, neighbours must be for a quotient by their difference.  Its
#: relative error is the unit roundoff over this: 1e-8 in double precision.  In single precision the square root of the
#: unit roundoff would take neighbours of an ordinary spectrum for a cluster.
RESOLUTION = {"float32": 2.0**-15, "float64": 2.0**-26}
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
#: Rounding errors of a product of matrices of order n are taken to be below this times sqrt(n) unit roundoffs.
SLACK = 100.0


def adjoint(x: Any) -> Any:
    """Return the conjugate transposes of the matrices in the last two dimensions."""
    # CuPy has no mT before its version 14, and PyTorch's vmap no swapaxes.
    return (x.mT if hasattr(x, "mT") else x.swapaxes(-1, -2)).conj()


def hermitian(xp: Any, a: Any, lower: bool) -> Any:
    """Return the Hermitian matrices of which one triangle, and the real part of the diagonal, is read from `a`."""
    strict = xp.tril(a, -1) if lower else xp.triu(a, 1)
    return strict + adjoint(strict) + xp.tril(xp.triu(a.real))


def of_triangle(xp: Any, a_bar: Any, lower: bool) -> Any:
    """Return the cotangent of what `hermitian` reads, for the Hermitian one of its result."""
    strict = xp.tril(a_bar, -1) if lower else xp.triu(a_bar, 1)
    return 2 * strict + xp.tril(xp.triu(a_bar.real))


def diagonal(xp: Any, d: Any) -> Any:
    """Return matrices that have `d` on their diagonals."""
    return xp.tril(xp.triu(d[..., None, :] + xp.zeros_like(d[..., :, None])))


def epsilon(w: Any) -> float:
    """Return the distance from 1 to the next number of the type of `w`."""
    return EPSILON[str(w.dtype).rpartition(".")[2]]


def largest(xp: Any, w: Any) -> Any:
    """Return the largest absolute value of each ascending spectrum, with a last dimension of 1."""
    return xp.maximum(xp.abs(w[..., :1]), xp.abs(w[..., -1:]))


def numbered(xp: Any, w: Any, resolution: float | None = None) -> Any:
    """Return the number of the cluster of each eigenvalue: none of the gaps within is resolved."""
    resolution = RESOLUTION[str(w.dtype).rpartition(".")[2]] if resolution is None else resolution
    return xp.cumsum(xp.diff(w, prepend=w[..., :1]) > resolution * largest(xp, w), -1)


def coincident(xp: Any, w: Any) -> Any:
    """Return, in place (i, j), whether no gap of the ascending spectrum between i and j is resolved."""
    cluster = numbered(xp, w)
    return cluster[..., :, None] == cluster[..., None, :]


def differences(w: Any) -> Any:
    """Return ``w[j] - w[i]`` in place (i, j)."""
    return w[..., None, :] - w[..., :, None]


def quotients(xp: Any, w: Any) -> Any:
    """Return ``1 / (w[j] - w[i])`` in place (i, j), and 0 where the two coincide."""
    together, gaps = coincident(xp, w), differences(w)
    return xp.where(together, xp.zeros_like(gaps), 1 / xp.where(together, xp.ones_like(gaps), gaps))


def generic_basis(w: Any, v: Any) -> Any:
    """Return eigenvectors in a gauge without structure: arbitrary phases, and bases of values equal to rounding.

    w, ascending, has the shape (..., n) and V (..., n, n), of NumPy or CuPy.  All are as right as LAPACK's.  But that
    one's are structured: a component is real, and of the identity each vector is a unit vector; and then a function
    that depends on the gauge can look like one that does not.
    """
    n = w.shape[-1]
    if not isinstance(w, np.ndarray):
        from spectile.evd.cuda import gradient

        return gradient.generic_basis(w, v, n * epsilon(w))
    random = np.random.default_rng(n)
    if v.dtype.kind == "c":
        v = v * np.exp(1j * random.uniform(0, 2 * np.pi, n)).astype(v.dtype)
    number = numbered(np, w, n * epsilon(w))
    if (number[..., -1:] == n - 1).all():
        return v
    equal = number[..., :, None] == number[..., None, :]
    entries = random.standard_normal((n, n)) + (1j * random.standard_normal((n, n)) if v.dtype.kind == "c" else 0)
    # The orthogonal factor of a matrix of blocks has the same blocks.
    q, r = np.linalg.qr(np.where(equal, entries.astype(v.dtype), 0))
    d = r.diagonal(0, -2, -1)
    return v @ (q * (d / abs(d))[..., None, :])


def faults(xp: Any, w: Any, w_bar: Any, s: Any, block_bar: Any) -> Any:
    """Return, in place (i, j), whether cotangents depend on an unresolved rotation of eigenvectors i and j.

    Parameters
    ----------
    xp : module
    w : array, shape (..., n)
        Eigenvalues.
    w_bar : array, shape (..., n), or None
        Cotangent of the eigenvalues: equal in a cluster, or its eigenvalues are told apart.
    s : array, shape (..., n, n), or None
        Vᴴ times the cotangent of V.  A rotation V (1 + X), with an anti-Hermitian X on the blocks, takes the blocks D
        to D + D X - X D, and changes the function by the product of X with the anti-Hermitian part of S + D B - B D.
    block_bar : array, shape (..., n, n), or None
        B, the cotangent of the blocks.
    """
    told, anti, size = None, None, None
    if w_bar is not None:
        told = xp.abs(differences(w_bar)), norm(xp, w_bar[..., None])
    if s is not None:
        anti, size = (s - adjoint(s)) / 2, norm(xp, s)
        if block_bar is not None:
            change = differences(w) * (block_bar + adjoint(block_bar)) / 2
            anti, size = anti - change, size + xp.abs(change)
    found = _told_apart(xp, w, xp.abs(differences(w)), largest(xp, w)[..., None], told, anti, size)
    return found & coincident(xp, w)


#: Eigenvalues that may coincide for their pairs to be looked at one by one.
CLOSE = 64


@np.errstate(all="ignore")
def close_pairs(
    norm_of_s: Callable[[], np.ndarray], w: np.ndarray, w_bar: np.ndarray | None, s: np.ndarray | None
) -> list[tuple[int, np.ndarray]] | None:
    """Return which pairs i and i + distance coincide for each distance, or None where :func:`faults` is to look.

    That is where it would find a pair, or may, and where a cluster is long.  Little is computed where no two coincide.
    """
    n, number = w.shape[-1], numbered(np, w)
    phases, clusters = s is not None and s.dtype.kind == "c", (number[..., -1:] < n - 1).any()
    told_size = norm(np, w_bar[..., None])[..., 0] if clusters and w_bar is not None else None
    size = norm_of_s()[..., None] if s is not None and (clusters or phases) else None
    if size is not None and not (np.isfinite(size) & (size > 0)).all():  # its square is out of range
        return None

    def apart(x: Any, distance: int) -> Any:
        return x[..., distance:] - x[..., : n - distance]

    pairs: list[tuple[int, np.ndarray]] = []
    for distance in range(not phases, n if clusters else 1):
        together = apart(number, distance) == 0
        if not together.any():
            break
        told = (abs(apart(w_bar, distance)), told_size) if distance and w_bar is not None else None
        anti = None if s is None else (s.diagonal(distance, -2, -1) - s.diagonal(-distance, -2, -1).conj()) / 2
        found = _told_apart(np, w, apart(w, distance), largest(np, w), told, anti, size)
        if distance == CLOSE or (found & together).any():
            return None
        pairs.append((distance, together))
    return pairs


def _told_apart(xp: Any, w: Any, gaps: Any, scale: Any, told: Any, anti: Any, size: Any) -> Any:
    """Return whether cotangents of pairs with these gaps tell one from the other.

    The differences of the cotangents of w and their norm are `told`; `scale` is the largest eigenvalue.
    """
    n, unit = w.shape[-1], epsilon(w)
    found = xp.zeros_like(gaps) > 0
    if told is not None:
        difference, told_size = told
        rounding = n * unit * scale
        # How far rounding turns one vector to the other.
        turned = xp.where(gaps <= rounding, xp.ones_like(gaps), rounding / xp.where(gaps > 0, gaps, xp.ones_like(gaps)))
        found = found | (difference * turned > unit**0.5 * told_size)
        if anti is not None:
            found = found | (difference > SLACK * unit**0.5 * told_size)
    if anti is not None:
        found = found | (xp.abs(anti) > SLACK * n**0.5 * unit * size)
    return found


@functools.cache
def limits(n: int, real: str) -> tuple[float, ...]:
    """Return what a kernel needs to judge n eigenvalues as :func:`faults` does, without cotangents of the blocks.

    They are those of :meth:`spectile.evd.cuda.gradient.Solved.pull_back`.
    """
    unit = EPSILON[real]
    return RESOLUTION[real], n * unit, SLACK * unit**0.5, unit**0.5, SLACK * n**0.5 * unit


#: What a GaugeWarning says.
SPLIT = (
    "eigenvalues coincide and the perturbation tells them apart: tangents of eigh are right for functions that do not "
    "depend on the basis of the cluster, and for no other"
)


def split(xp: Any, w: Any, m: Any) -> Any:
    """Return, in place (i, j), whether a perturbation M of the decomposition tells apart two values that coincide."""
    off = xp.abs(m - diagonal(xp, m.diagonal(0, -2, -1))) > epsilon(w) ** 0.5 * norm(xp, m)
    return faults(xp, w, m.diagonal(0, -2, -1).real, None, None) | (off & coincident(xp, w))


def unresolved(xp: Any, w: Any, k: Any, k_bar: Any) -> Any:
    """Return, in place (i, j), whether rounding of a quotient K, divided by its gap again, ruins K's derivative.

    Where a function does not depend on a rotation of two vectors, K or its cotangent, shapes (..., n, n), is nothing
    but rounding of their gap's inverse.  In forward mode `k_bar` is how fast the gaps grow.
    """
    inverse = xp.abs(quotients(xp, w))
    size, size_bar = (norm(xp, x) for x in (xp.abs(k) * xp.abs(differences(w)), k_bar))
    natural = size * size_bar / (largest(xp, w)[..., None] ** 2 + (size == 0))
    # An anti-Hermitian K, of tangents, has to do with the anti-Hermitian part of its cotangent alone.
    parts = [xp.abs(k + sign * adjoint(k)) * xp.abs(k_bar + sign * adjoint(k_bar)) / 4 for sign in (1, -1)]
    rounding = epsilon(w) * inverse * (size * xp.abs(k_bar) * inverse + size_bar * xp.abs(k))
    return rounding > epsilon(w) ** 0.375 * (norm(xp, inverse * sum(parts)) + natural)


def growth(xp: Any, k: Any, change: Any) -> Any:
    """Return how fast gaps grow, in the phases of quotients K, for K D' - D' K with the tangent D' of the blocks."""
    size = xp.where(xp.abs(k) > 0, xp.abs(k), xp.ones_like(xp.abs(k)))
    return (k / size) * (xp.abs(change) / size)


def norm(xp: Any, x: Any) -> Any:
    """Return Frobenius norms of matrices, with last dimensions of 1, in range for entries of any size."""
    x = xp.abs(x)
    total = xp.sum(x, (-2, -1))[..., None, None]
    scale = xp.where(total > 0, total, xp.ones_like(total))
    return scale * xp.sqrt(xp.sum((x / scale) ** 2, (-2, -1)))[..., None, None]


def refusal(gap: float, phase: bool) -> str:
    """Return the sentence of a GaugeError about a cluster with a `gap`, or about the phase of vectors."""
    if phase:
        return (
            "the cost depends on the phase of complex eigenvectors, which an eigendecomposition leaves open: use what "
            "does not, such as |v|**2 or v v^H"
        )
    return (
        f"the cost depends on single eigenvectors or eigenvalues of a cluster with a gap of {gap:.3g}, which has no "
        "derivative that this precision resolves: use what is the same for all vectors of the cluster, or "
        "matrix_function for a function of the matrix"
    )


def require_no_fault(found: Any, w: Any) -> None:
    """Raise GaugeError for the widest gap among the pairs that :func:`faults` found; the arrays are NumPy's."""
    if found.any():
        gaps = np.where(found, abs(differences(w)), -1.0)
        own = np.broadcast_to(np.eye(w.shape[-1], dtype=bool), found.shape)
        raise GaugeError(refusal(gaps.max(), phase=not (found & ~own).any()))


def cut(w: Any, v: Any, subset: Subset | None, known: Callable[[], np.ndarray | None]) -> tuple[Any, Any]:
    """Return the eigenpairs of a subset, as :func:`spectile.eigh` counts them, of all.

    ``known()`` gives the eigenvalues on the host, or None where they are not known.  Raises ValueError there, and where
    an interval does not hold equally many in each matrix.
    """
    if subset is None:
        return w, v
    if subset.by_index:
        part = slice(subset.low, subset.high + 1)
        return w[..., part], v[..., part]
    values = known()
    if values is None:
        raise ValueError(
            "subset_by_value gives a shape that depends on values, which are not known in a transformation: use "
            "subset_by_index"
        )
    found = np.zeros(values.shape, bool)
    for place in np.ndindex(values.shape[:-1]):
        found[place][subset.of(values[place])] = True
    refuse_ragged([np.flatnonzero(part) for part in found.reshape(-1, values.shape[-1])])
    shape = *values.shape[:-1], int(found.sum(-1).max())
    return w[found].reshape(shape), v.mT[found].reshape(*shape, v.shape[-2]).mT
