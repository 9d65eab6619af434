"""What the kernels of matrices with room for every tile do, in NumPy, on arrays that stand in for CuPy's."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any

import numpy as np

from spectile.tiles.cuda.grid import APART, LOST, MAPS, NORMS, PRODUCTS, SEARCH, SKIPPED, Room
from spectile.tiles.types import gamma


def _plain(array: Any) -> Any:
    return None if array is None else np.asarray(array).view(np.ndarray)


class GridKernels:
    """The functions of `spectile.tiles.cuda.grid`; `wrapped` makes arrays of the device."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    @staticmethod
    def _tiles(room: Room, data: Any, norms: Any = None) -> dict[tuple[int, int], Any]:
        rows, data = _plain(room.rows), _plain(data)
        found = {}
        for i, j in itertools.product(range(room.size), repeat=2):
            height, width = rows[i + 1] - rows[i], rows[j + 1] - rows[j]
            start = rows[i] * room.n + height * rows[j]
            tile = data[start : start + height * width].reshape(height, width)
            found[i, j] = tile if norms is None or norms[i, j] > 0 else np.zeros_like(tile)
        return found

    def _searched(self, measure: Any, candidates: Any, limit: float, share: float, least: float, spectral: bool) -> Any:
        everything = measure(math.inf)
        allowed = limit - min(share * everything[0] + least, limit / 2)
        taus = sorted({*candidates, math.inf})
        # The larger a threshold, the more it leaves out.
        first = bisect.bisect_left(taus, True, key=lambda tau: measure(tau)[spectral] > allowed)
        best = (taus[first - 1], 0.0, 0.0, *measure(taus[first - 1])) if first else (0.0,) * 5
        return self.wrapped(np.array([*best, *[np.nan] * (SEARCH - 5)]))

    def search_product(
        self, room: Room, a: Any, turned_a: Any, b: Any, turned_b: Any, units: tuple[float, float], hermitian: bool,
        limit: float, guess: float, share: float, least: float, spectral: bool, halves: bool,
    ) -> Any:  # fmt: skip
        """Return the largest threshold, and what it leaves out; nothing is made in float16."""
        a, b = _plain(a), _plain(b)
        assert np.linalg.norm(a) <= units[0] and np.linalg.norm(b) <= units[1]
        assert np.array_equal(_plain(turned_a), a.T) and np.array_equal(_plain(turned_b), b.T)
        triples = a[:, :, None] * b

        def measure(tau: float) -> tuple[float, float]:
            out = np.where(triples < tau, triples, 0).sum(axis=1)
            if hermitian:
                out = np.triu(out, 1) + np.triu(out, 1).T + math.sqrt(2) * np.diag(np.diag(out))
            fro = np.linalg.norm(out) * (1 + 1e-10)
            return fro, min(fro, out.sum(axis=1).max() * (1 + 1e-10))

        present = np.sort(triples[triples > 0])
        return self._searched(measure, present[:: max(1, len(present) // 50)], limit, share, least, spectral)

    def search_tiles(self, room: Room, norms: Any, unit: float, limit: float, guess: float, spectral: bool) -> Any:
        """Return the largest threshold of tiles, and what it drops."""
        norms = _plain(norms)
        assert norms.max() <= unit

        def measure(tau: float) -> tuple[float, float]:
            out = np.where(norms < tau, norms, 0)
            fro = np.linalg.norm(out) * (1 + 1e-10)
            return fro, min(fro, out.sum(axis=1).max() * (1 + 1e-10))

        return self._searched(measure, norms[norms > 0].tolist(), limit, 0.0, 0.0, spectral)

    def drop(self, norms: Any, found: Any) -> None:
        """Drop tiles."""
        norms = _plain(norms)
        norms[norms < _plain(found)[0]] = 0

    def _written(
        self, room: Room, dense: dict, apart: dict, lost: Any, count: Any, skipped: Any, dtype: Any, half: bool
    ) -> Any:  # fmt: skip
        data = np.full(room.n * room.n, np.nan, dtype)  # what is not written is not read
        maps = np.zeros((MAPS, room.size, room.size))
        for place, to in self._tiles(room, data).items():
            i, j = place
            if half and j < i:
                continue
            tile = dense[place]
            if half and i == j:
                tile = np.triu(tile) + np.triu(tile, 1).conj().T
            maps[NORMS][place] = np.linalg.norm(tile) * (1 + 1e-12)
            maps[APART][place] = np.linalg.norm(apart[place]) * (1 + 1e-12)
            maps[LOST][place], maps[PRODUCTS][place], maps[SKIPPED][place] = lost[place], count[place], skipped[place]
            if half and i == j:
                maps[SKIPPED][place] *= math.sqrt(2)
            if maps[NORMS][place] > 0:
                to[...] = tile
            if half and i != j:
                maps[:, j, i] = maps[:, i, j]
                maps[PRODUCTS, j, i] = 0
                if maps[NORMS][place] > 0:
                    self._tiles(room, data)[j, i][...] = tile.conj().T
        return self.wrapped(data), self.wrapped(maps)

    def halved(self, room: Room, a: Any, norms: Any) -> Any:
        """Return what products that are as good as in float64 do not read."""
        return a

    def multiply(
        self, room: Room, a: Any, norms_a: Any, b: Any, turned_b: Any, d: Any, norms_d: Any, found: Any, unit: float,
        alpha: float, beta: float, shift: float, hermitian: bool, hermitian_b: bool, *halves: Any,
    ) -> Any:  # fmt: skip
        """Return a product and a sum, with bounds as if products below the second threshold were in float16."""
        norms_a, norms_b, norms_d = _plain(norms_a), _plain(turned_b).T, _plain(norms_d)
        of_a, of_b = self._tiles(room, a, norms_a), self._tiles(room, b, norms_b)
        of_d = None if d is None else self._tiles(room, d, norms_d)
        (tau, twofold, fine), least = _plain(found)[:3].tolist(), float(np.finfo(a.dtype).eps) / 2
        made, apart, lost, count, skipped = {}, {}, {}, {}, {}
        for i, j in itertools.product(range(room.size), repeat=2):
            both = norms_a[i] * norms_b[:, j]
            kept = np.flatnonzero((both > 0) & (both >= tau))
            product = sum((of_a[i, k] @ of_b[k, j] for k in kept), np.zeros_like(of_a[i, j]))
            other = np.zeros_like(product) if of_d is None else of_d[i, j]
            eye = np.eye(len(product)) if i == j else 0
            made[i, j] = (alpha * product + beta * other + shift * eye).astype(a.dtype)
            apart[i, j], count[i, j] = other - product, len(kept)
            terms = sum(of_a[i, k].shape[1] for k in kept)
            norm_d = 0 if norms_d is None else norms_d[i, j]
            sums = abs(alpha) * both[kept].sum() + abs(beta) * norm_d + abs(shift) * np.linalg.norm(eye)
            lost[i, j] = (abs(alpha) * gamma(terms, a.dtype) * both[kept].sum() + 8 * least * sums) * 1.5
            rough = both[kept][both[kept] < fine]
            one, two = rough[rough < twofold], rough[rough >= twofold]
            off = 2.0**-10 * 1.06 * one.sum() + 2.0**-17 * 1.2 * two.sum()
            off += (len(one) + 3 * len(two)) * 2.0**-23 * rough.sum()
            lost[i, j] += abs(alpha) * off * (math.sqrt(2) if i == j else 1)
            skipped[i, j] = both.sum() - both[kept].sum()
        return self._written(room, made, apart, lost, count, skipped, a.dtype, hermitian)

    def adjoint(self, room: Room, a: Any, norms: Any) -> Any:
        """Return the conjugate transpose, where its map of norms is not 0."""
        out = np.full(room.n * room.n, np.nan, a.dtype)
        of_a = self._tiles(room, a)
        for (i, j), tile in self._tiles(room, out).items():
            if norms[i, j] > 0:
                tile[...] = of_a[j, i].conj().T
        return self.wrapped(out)

    def combine(
        self, room: Room, a: Any, norms_a: Any, alpha: float, b: Any, norms_b: Any, beta: float, shift: float,
        hermitian: bool,
    ) -> Any:  # fmt: skip
        """Return a sum."""
        of_a = self._tiles(room, a, norms_a)
        of_b = None if b is None else self._tiles(room, b, norms_b)
        made, lost = {}, {}
        for place, tile in of_a.items():
            other = np.zeros_like(tile) if of_b is None else of_b[place]
            eye = np.eye(len(tile)) if place[0] == place[1] else np.zeros(tile.shape)
            made[place] = (alpha * tile + beta * other + shift * eye).astype(a.dtype)
            sums = sum(map(np.linalg.norm, (alpha * tile, beta * other, shift * eye)))
            lost[place] = 8 * float(np.finfo(a.dtype).eps) / 2 * sums
        zero = dict.fromkeys(made, 0.0)
        return self._written(room, made, zero, lost, zero, zero, a.dtype, hermitian)

    def of_dense(self, room: Room, a: Any, hermitian: bool) -> Any:
        """Return a dense matrix in tiles, or its Hermitian part."""
        rows, a, order = _plain(room.rows), _plain(a), _plain(room.order)
        a = a if order is None else a[np.ix_(order, order)]
        part = (a + a.conj().T) / 2 if hermitian else a

        def tiles(x: Any) -> dict[tuple[int, int], Any]:
            spans = [slice(*ends) for ends in itertools.pairwise(rows)]
            return {(i, j): x[down, across] for i, down in enumerate(spans) for j, across in enumerate(spans)}

        made = tiles(part)
        zero = dict.fromkeys(made, 0.0)
        return self._written(room, made, tiles(a - part), zero, zero, zero, a.dtype, hermitian)

    def dots(self, room: Room, a: Any, norms_a: Any, b: Any, norms_b: Any) -> Any:
        """Return inner products of tiles."""
        of_a, of_b = self._tiles(room, a, norms_a), self._tiles(room, b, norms_b)
        found = np.array([np.vdot(of_a[place].astype("c16"), of_b[place]) for place in of_a])
        return self.wrapped(np.array([found.real, found.imag]).reshape(2, room.size, room.size))

    def _dense(self, room: Room, a: Any, norms: Any) -> Any:
        tiles = self._tiles(room, a, norms)
        return np.block([[tiles[i, j] for j in range(room.size)] for i in range(room.size)])

    def row_sums(self, room: Room, a: Any, norms: Any) -> Any:
        """Return sums of moduli over rows."""
        return self.wrapped(np.abs(self._dense(room, a, norms)).sum(axis=1).astype(float))

    def diagonal(self, room: Room, a: Any, norms: Any) -> Any:
        """Return the diagonal."""
        return self.wrapped(self._dense(room, a, norms).diagonal().real.astype(float))

    def to_dense(self, room: Room, a: Any, norms: Any) -> Any:
        """Return a dense matrix."""
        found, order = self._dense(room, a, norms), _plain(room.order)
        out = np.empty_like(found)
        out[np.ix_(order, order) if order is not None else ...] = found
        return self.wrapped(out)

    def copy(self, room: Room, flat: Any, starts: Any, places: Any, grid: Any, to_grid: bool) -> None:
        """Copy tiles."""
        tiles = self._tiles(room, grid)
        for start, place in zip(_plain(starts), _plain(places), strict=False):
            tile = tiles[divmod(int(place), room.size)]
            one = _plain(flat)[start : start + tile.size].reshape(tile.shape)
            if to_grid:
                tile[...] = one
            else:
                one[...] = tile

    def spectral_bound(self, room: Room, norms: Any, steps: int) -> Any:
        """Return a bound of the spectral norm."""
        return self.wrapped(np.array([np.linalg.norm(_plain(norms), 2) * 1.001]))

    def totals(self, room: Room, maps: Any) -> Any:
        """Return numbers of maps."""
        maps = _plain(maps)
        return self.wrapped(
            np.array([[np.linalg.norm(m), m.sum(axis=1).max(), m.sum(), np.count_nonzero(m)] for m in maps])
        )
