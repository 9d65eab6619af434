"""The steps of a refinement of eigenvectors, whose order :mod:`spectile.evd.refine` decides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

#: The largest power of two by which a matrix of either precision is multiplied at once.
MOST_POWER = {"float32": 120, "float64": 1000}


class Seen(NamedTuple):
    """What a look at the vectors shows.

    Attributes
    ----------
    residual, defect : float
        Norms of Xᴴ (A X - B X w) and of 1 - G off the diagonal.
    turned : float
        Norm of the turn of pairs that no share makes strong.
    size : float
        Norm of w.
    strong : list of int
        How many pairs are coupled by more than each share of their gap.
    """

    residual: float
    defect: float
    turned: float
    size: float
    strong: list[int]


class Steps:
    """A matrix A, with or without a B, and vectors X: the steps of a refinement in NumPy's arrays.

    Parameters
    ----------
    a, b : array, shape (n, n)
    lower : bool
        The triangle that is read.

    Attributes
    ----------
    x : array, shape (n, n)
        The vectors, in columns.
    s, g : array, shape (n, n)
        Xᴴ A X and Xᴴ B X, of which the lower triangle counts.
    scale, w : array, shape (n,)
        One over the lengths of the vectors in `s` and `g`, and their quotients.
    cluster : array of int32, shape (n,)
        The same number for vectors that were solved together.
    """

    xp: Any = np

    def __init__(self, a: Any, b: Any = None, *, lower: bool) -> None:
        self.n, self.dtype = len(a), a.dtype
        largest = float(np.abs(a).max())
        # The squares of entries and their sums are far from either end of the range then.
        most = MOST_POWER[a.real.dtype.name] if 0 < largest < math.inf else 0
        self.shift = int(np.clip(-math.frexp(largest)[1], -most, most))
        self._a = _hermitian(a, lower) * a.real.dtype.type(2.0**self.shift)
        self._b = None if b is None else _hermitian(b, lower)

    def begin(self, x: Any) -> None:
        """Take a copy of the vectors."""
        self.x = np.array(x, order="F")

    def pencil(self) -> None:
        """Make S and G."""
        adjoint = self.x.conj().T
        self.s = _hermitian(adjoint @ (self._a @ self.x), True)
        self.g = _hermitian(adjoint @ (self.x if self._b is None else self._b @ self.x), True)

    def look(self, shares: tuple[float, ...]) -> Seen:
        """Scale the vectors to a length of 1 and look at all pairs; `shares` of gaps ascend."""
        self.pencil()
        self.scale = 1 / self.g.diagonal().real ** 0.5
        self.w = self.s.diagonal().real * self.scale**2
        columns = self.x.T
        columns *= self.scale[:, None]
        self.cluster = self.xp.arange(self.n, dtype=np.int32)
        return self.survey(shares)

    def survey(self, shares: tuple[float, ...]) -> Seen:
        """Return what all pairs show."""
        r, coupling, gap = self._pairs()
        size = _norm(self.w)
        self._noise = float(np.finfo(self.dtype).eps) * size / math.sqrt(self.n)
        residual, found = _norm(coupling + r * gap / 2), np.abs(coupling)
        self._shares = np.where(np.tril(found > self._noise, -1), found / np.abs(gap), 0)
        turned = math.sqrt(2) * _norm(np.where(self._shares > shares[0], 0, self._shares))
        return Seen(residual, _norm(r), turned, size, [int((self._shares > share).sum()) for share in shares])

    def pairs(self, share: float, count: int) -> tuple[np.ndarray, ...]:
        """Return i and j of the `count` pairs that are coupled by more than this share of their gap."""
        return (self._shares > share).nonzero()

    def turn(self, clusters: list[np.ndarray]) -> None:
        """Turn the vectors of clusters, shape (count, m) for each order m, so that nothing couples them."""
        xp, cluster = self.xp, np.arange(self.n, dtype=np.int32)
        for each in clusters:
            cluster[each] = each[:, :1]
        at, (rows, columns) = np.concatenate([each.ravel() for each in clusters]), _places(clusters)
        here, i, j = (xp.asarray(each) for each in (at, rows, columns))
        lengths = self.scale[i] * self.scale[j]
        small = xp.stack([part[i, j] * lengths for part in (self.s, self.g)])
        s, g = small if xp is np else xp.asnumpy(small)
        own = np.split(np.arange(len(at)), np.cumsum([each.size for each in clusters])[:-1])
        inner = _places([part.reshape(each.shape) for part, each in zip(own, clusters, strict=True)])
        turn = xp.zeros((len(at), len(at)), self.dtype)
        turn[tuple(xp.asarray(each) for each in inner)] = xp.asarray(_solved(s, g, clusters), self.dtype)
        vectors = self.x.T
        vectors[here] = turn.T @ vectors[here]
        turn *= self.scale[here][:, None]
        self.scale[here] = 1
        for part in (self.s, self.g):
            turned = turn.T @ part.T[here]
            part[here], part.T[here] = turned.conj(), turned
            part[here[:, None], here] = turn.conj().T @ turned[:, here].T
        self.w = self.s.diagonal().real * self.scale**2
        self.cluster = xp.asarray(cluster)

    def advance(self, share: float, second: bool) -> None:
        """Correct the vectors, to the `second` order of turns up to `share`, or to the first."""
        r, coupling, gap = self._pairs()
        apart = (self.cluster != self.cluster[:, None]) & (gap != 0)
        turned = apart & (np.abs(coupling) > self._noise)
        gap[~apart] = 1
        coupling *= turned
        turns = coupling / gap
        y = turns + r / 2
        if second:
            low = np.result_type(np.float32, *(["F"] if y.dtype.kind == "c" else []))
            left, turns = (turns + r).astype(low), turns.astype(low)
            both = coupling.astype(low) @ turns
            both = (both + both.conj().T) / 2
            y += both * (apart & (np.abs(both) <= share * np.abs(gap))) / gap + left @ turns / 2
        self.x = self.x + self.x @ y

    def result(self) -> tuple[Any, Any] | None:
        """Return values, ascending, and vectors; None where a value is beyond the range of its dtype."""
        order = self.xp.argsort(self.w)
        w = self.unscaled(self.w[order])
        return (w, self.x.T[order].T) if bool(self.xp.isfinite(w).all()) else None

    def unscaled(self, w: Any) -> Any:
        """Return the values of A for those of what it was multiplied to."""
        return np.ldexp(w, -self.shift)

    def _pairs(self) -> tuple[Any, Any, Any]:
        """Return R, couplings and gaps, 0 on the diagonal."""
        both, w = self.scale * self.scale[:, None], self.w
        r = _without_diagonal(-self.g * both)
        return r, _without_diagonal(self.s * both) + r * ((w + w[:, None]) / 2), w - w[:, None]


def _hermitian(a: Any, lower: bool) -> Any:
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    whole = strict + strict.conj().T
    whole.reshape(-1)[:: a.shape[-1] + 1] = a.diagonal().real
    return whole


def _without_diagonal(a: Any) -> Any:
    a.reshape(-1)[:: a.shape[-1] + 1] = 0
    return a


def _norm(a: Any) -> float:
    return float(np.linalg.norm(a.ravel()))


def _places(clusters: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the columns of all entries of the blocks of clusters, one order after the other."""
    rows = [np.repeat(each, each.shape[1], axis=1).ravel() for each in clusters]
    columns = [np.tile(each, each.shape[1]).ravel() for each in clusters]
    return np.concatenate(rows), np.concatenate(columns)


def _solved(s: np.ndarray, g: np.ndarray, clusters: list[np.ndarray]) -> np.ndarray:
    """Return the eigenvectors of the pencils of clusters, whose entries are given as in `_places`; G is near 1."""
    turns, start = [], 0
    for each in clusters:
        count, order = each.shape
        stop = start + count * order**2
        a, b = (x[start:stop].reshape(count, order, order).astype(np.result_type(x, np.float64)) for x in (s, g))
        back = np.linalg.inv(np.linalg.cholesky(b)).conj().swapaxes(-1, -2)
        turns.append((back @ np.linalg.eigh(back.conj().swapaxes(-1, -2) @ a @ back)[1]).ravel())
        start = stop
    return np.concatenate(turns)
