"""The steps of a refinement of eigenvectors, whose order :mod:`spectile.evd.refine` decides."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spectile.evd.load import load_matrix

#: Random vectors that show how far all vectors are from orthonormal, and from solving the problem.
PROBES = 8


class Seen(NamedTuple):
    """What a look at the vectors shows."""

    residual: float  #: Norm of the couplings Xᴴ A X off the diagonal.
    turned: list[float]  #: For each share of gaps, the norm of the turn of pairs that it does not make strong.
    size: float  #: Norm of w.
    strong: list[int]  #: How many pairs are coupled by more than each share.


class Steps:
    """A matrix A, with or without a B, and vectors X: the steps of a refinement in NumPy's arrays.

    Parameters
    ----------
    a, b : array, shape (n, n)
    lower : bool
        The triangle that is read.

    Attributes
    ----------
    a, b : array, shape (n, n)
        Both triangles; `a` times a power of two.
    x : array, shape (n, n)
        The vectors, in columns.
    s : array, shape (n, n)
        Xᴴ A X, of which the lower triangle counts.
    w : array, shape (n,)
        The values.
    cluster : array of int32, shape (n,)
        The same number for vectors that were solved together.
    """

    xp: Any = np

    def __init__(self, a: Any, b: Any = None, *, lower: bool) -> None:
        self.n, self.dtype = len(a), a.dtype
        matrix, self.shift = load_matrix(a, lower=lower, overwrite=False, check_finite=False)
        self.a = _hermitian(matrix, True)
        self.b = None if b is None else _hermitian(b, lower)

    def begin(self, x: Any) -> None:
        """Take a copy of the vectors."""
        self.x = np.array(x, order="F")

    @functools.cached_property
    def probes(self) -> Any:
        """Random signs, shape (n, PROBES)."""
        return self.xp.asarray(_signs(self.n)).astype(self.dtype)

    def defect(self) -> float:
        """Return about the norm of Xᴴ B X - 1, in that of rounding."""
        return self._rounded(self._adjoint(self._weighted(self.x @ self.probes)) - self.probes, self.n + 4)

    def residual(self) -> float:
        """Return about the norm of Xᴴ (A X - B X w), in that of rounding."""
        apart = self.a @ (self.x @ self.probes) - self._weighted(self.x @ (self.w[:, None] * self.probes))
        return self._rounded(self._adjoint(apart), math.sqrt(self.n + 4) * _norm(self.xp, self.w))

    def orthonormalize(self) -> None:
        """Make Xᴴ B X one, by its Cholesky factor; raises numpy.linalg.LinAlgError if that is not positive definite."""
        import scipy.linalg

        factor = scipy.linalg.cholesky(self.x.conj().T @ self._weighted(self.x), lower=True, check_finite=False)
        self.x = scipy.linalg.solve_triangular(factor, self.x.conj().T, lower=True, check_finite=False).conj().T

    def look(self, shares: tuple[float, ...]) -> Seen:
        """Look at all pairs; `shares` of gaps ascend."""
        self.pencil()
        self.w = self.s.diagonal().real.copy()
        self.cluster = self.xp.arange(self.n, dtype=np.int32)
        return self.survey(shares)

    def pencil(self) -> None:
        """Make S."""
        self.s = _hermitian(self.x.conj().T @ (self.a @ self.x), True)

    def survey(self, shares: tuple[float, ...]) -> Seen:
        """Return what all pairs show."""
        coupling, gap = self._pairs()
        size = _norm(np, self.w)
        self._noise = float(np.finfo(self.dtype).eps) * size / math.sqrt(self.n)
        residual, found = _norm(np, coupling), np.abs(coupling)
        self._shares = np.where(np.tril(found > self._noise, -1), found / np.abs(gap), 0)
        turned = [math.sqrt(2) * _norm(np, np.where(self._shares > share, 0, self._shares)) for share in shares]
        return Seen(residual, turned, size, [int((self._shares > share).sum()) for share in shares])

    def pairs(self, share: float, count: int) -> tuple[np.ndarray, ...]:
        """Return i and j of the `count` pairs that are coupled by more than this share of their gap."""
        return (self._shares > share).nonzero()

    def turn(self, clusters: list[np.ndarray]) -> None:
        """Turn the vectors of clusters, shape (count, m) for each order m, so that nothing couples them."""
        xp, cluster = self.xp, np.arange(self.n, dtype=np.int32)
        for each in clusters:
            cluster[each] = each[:, :1]
        at, (rows, columns) = np.concatenate([each.ravel() for each in clusters]), _places(clusters)
        here, small = xp.asarray(at), self.s[xp.asarray(rows), xp.asarray(columns)]
        own = np.split(np.arange(len(at)), np.cumsum([each.size for each in clusters])[:-1])
        inner = _places([part.reshape(each.shape) for part, each in zip(own, clusters, strict=True)])
        turn = xp.zeros((len(at), len(at)), self.dtype)
        solved = _solved(small if xp is np else xp.asnumpy(small), clusters)
        turn[tuple(xp.asarray(each) for each in inner)] = xp.asarray(solved, self.dtype)
        vectors = self.x.T
        vectors[here] = turn.T @ vectors[here]
        turned = turn.T @ self.s.T[here]
        self.s[here], self.s.T[here] = turned.conj(), turned
        self.s[here[:, None], here] = turn.conj().T @ turned[:, here].T
        self.w = self.s.diagonal().real.copy()
        self.cluster = xp.asarray(cluster)

    def advance(self, share: float, *, exactly: bool, third: bool) -> None:
        """Correct the vectors and values, to the third order of turns, or to the second, up to `share` of a gap.

        The second needs single precision, as it has here, or not, if not `exactly`.
        """
        coupling, gap = self._pairs()

        def over_gaps(change: Any, which: Any) -> Any:
            return np.divide(change, gap, out=np.zeros_like(change), where=which & (gap != 0))

        def limited(change: Any) -> Any:
            return over_gaps(change, np.abs(change) <= share * np.abs(gap))

        coupling *= (self.cluster != self.cluster[:, None]) & (np.abs(coupling) > self._noise) & (gap != 0)
        turns = over_gaps(coupling, True)
        low = np.result_type(np.float32, *(["F"] if turns.dtype.kind == "c" else []))
        first, coupling = turns.astype(low), coupling.astype(low)
        both = _both(coupling @ first)
        w, more = self.w + both.diagonal().real / 2, limited((both / 2).astype(turns.dtype))
        turns += more
        if third:
            both = _both(coupling @ (more / 2).astype(low) + (both / 3 - more * gap / 2).astype(low) @ first)
            w = w + both.diagonal().real
            turns += limited(both.astype(turns.dtype))
        self.w = w.astype(self.w.dtype, copy=False)
        squared = turns @ turns
        turned = turns + squared / 2
        if third:
            turned += squared.astype(low) @ (turns / 6 + squared / 24).astype(low)
        self.x = self.x + self.x @ turned

    def result(self) -> tuple[Any, Any] | None:
        """Return values, ascending, and vectors; None where a value is beyond the range of its dtype."""
        order = self.xp.argsort(self.w)
        w = self.unscaled(self.w[order])
        return (w, self.x.T[order].T) if bool(self.xp.isfinite(w).all()) else None

    def unscaled(self, w: Any) -> Any:
        """Return the values of A for those of what it was multiplied to."""
        return np.ldexp(w, -self.shift)

    def _pairs(self) -> tuple[Any, Any]:
        """Return couplings, 0 on the diagonal, and gaps."""
        coupling = self.s.copy()
        coupling.reshape(-1)[:: self.n + 1] = 0
        return coupling, self.w - self.w[:, None]

    def _weighted(self, y: Any) -> Any:
        return y if self.b is None else self.b @ y

    def _adjoint(self, y: Any) -> Any:
        """Return Xᴴ Y, without a copy of X."""
        return (y.conj().T @ self.x).conj().T

    def _rounded(self, apart: Any, size: float) -> float:
        return _norm(self.xp, apart) / (math.sqrt(PROBES) * size * float(np.finfo(self.dtype).eps))


@functools.lru_cache(maxsize=4)
def _signs(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 2, (n, PROBES), np.int8) * 2 - 1


def _hermitian(a: Any, lower: bool) -> Any:
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    whole = strict + strict.conj().T
    whole.reshape(-1)[:: a.shape[-1] + 1] = a.diagonal().real
    return whole


def _both(a: Any) -> Any:
    return a + a.conj().T


def _norm(xp: Any, a: Any) -> float:
    return float(xp.linalg.norm(a.ravel()))


def _places(clusters: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the columns of all entries of the blocks of clusters, one order after the other."""
    rows = [np.repeat(each, each.shape[1], axis=1).ravel() for each in clusters]
    columns = [np.tile(each, each.shape[1]).ravel() for each in clusters]
    return np.concatenate(rows), np.concatenate(columns)


def _solved(s: np.ndarray, clusters: list[np.ndarray]) -> np.ndarray:
    """Return the eigenvectors of clusters, whose entries are given as in `_places`."""
    turns, start = [], 0
    for each in clusters:
        count, order = each.shape
        stop = start + count * order**2
        own = s[start:stop].reshape(count, order, order).astype(np.result_type(s, np.float64))
        turns.append(np.linalg.eigh(own)[1].ravel())
        start = stop
    return np.concatenate(turns)
