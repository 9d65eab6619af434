"""Square matrices on a GPU with room for every tile, whose norms, selections and errors stay there.

Where most tiles are stored somewhere in a calculation, lists of them cost more than the places of the others.  A tile
that is dropped gets the norm 0, and is read no more; a product is one search for its threshold, one kernel and one look
at what it is off by.  The operations are those of `TileMatrix` that purifications and their certificates use.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core import memory
from spectile.core.progress import MATRICES, count
from spectile.tiles.cuda import grid as kernels
from spectile.tiles.cuda.grid import APART, LOST, NORMS, PRODUCTS, SEARCH, SKIPPED, Room
from spectile.tiles.cuda.units import MOST_ROWS, in_blocks
from spectile.tiles.layout import Layout, owners
from spectile.tiles.matrix import Apart, NormName, TileMatrix, checked_permutation, stacked
from spectile.tiles.spread import Spread
from spectile.tiles.types import EXACT, SLACK, Error, carried, excess, gamma, roundoff, underflow

#: Norms of a matrix whose squares, and the squares of whose inverse, float64 holds with room to spare.
_RANGE = 1e-100, 1e100
#: Matrices of a calculation, and the share of free memory that they may take.
_MATRICES, _SHARE = 16, 0.8
#: Iterations of a bound by a positive vector.
_SHARPENED = 8
#: Squarings of the tiles on the diagonal, for their eigenvalues.
_SQUARINGS = 11
#: Tile rows from which a look at all triples of tiles would cost more than lists of those that are stored.
_MOST_TILES = 4096


class Sizes(NamedTuple):
    """What is known of a map of norms: root of squares, largest sum over a row, sum, how many are not 0."""

    fro: float
    row: float
    total: float
    filled: float

    def bounds(self, hermitian: bool = True) -> Error:
        """Bounds of the norms of a matrix with these tiles, whose columns are not known but where it is Hermitian."""
        return Error.of(self.fro * SLACK, (self.row if hermitian else self.fro) * SLACK)


def on_grid(x: TileMatrix | GridMatrix) -> TileMatrix | GridMatrix:
    """Return a matrix with room for every tile, where it is on a GPU that has the memory and its tiles are small."""
    return x if isinstance(x, GridMatrix) or not has_room(x) else GridMatrix.of_tiles(x)


def has_room(x: TileMatrix | GridMatrix) -> bool:
    """Return whether a matrix has room for every tile, or would have it: see `on_grid`."""
    if isinstance(x, GridMatrix):
        return True
    if x._xp is np or isinstance(x._data, Spread) or not len(x.indices) or not np.array_equal(x.rows, x.columns):
        return False
    return _fits(x.rows, x.dtype) and _RANGE[0] < x.norm() < _RANGE[1]


def in_lists(x: TileMatrix | GridMatrix) -> TileMatrix:
    """Return a matrix with the tiles that are not zero."""
    return x.to_tiles() if isinstance(x, GridMatrix) else x


def _fits(rows: np.ndarray, dtype: Any, matrices: int = _MATRICES) -> bool:
    """Return whether the current GPU has room for so many matrices, and kernels for the tiles."""
    heights, n = np.diff(rows), int(rows[-1])
    if not len(heights) or heights.max() > MOST_ROWS or len(heights) > _MOST_TILES:
        return False
    return matrices * n * n * np.dtype(dtype).itemsize <= _SHARE * memory.free_bytes()


class GridMatrix:
    """A square matrix with room for every tile, on CuPy's current GPU.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        Where tile rows begin, and the end; tile columns are alike.
    hermitian : bool
        Whether it is; all of it is stored all the same.
    error : Error
        As of a `TileMatrix`.
    norms : cupy.ndarray of float64, shape (tile rows, tile columns)
        Frobenius norms of the tiles; where they are 0 the tile is, whatever `data` has there.
    products : int
        Products of tiles that were added up in it.
    """

    def __init__(
        self, room: Room, data: Any, norms: Any, sizes: Sizes, error: Error, hermitian: bool, products: int = 0,
        name: str = "the matrix",
    ) -> None:  # fmt: skip
        self.room, self.rows, self.permutation = room, room.starts, room.permutation
        self.data, self.norms, self._sizes, self.error = data, norms, sizes, error
        self.hermitian, self.products = hermitian, products
        self._turned: Any = None
        self._halves: Any = None
        self._trace: float | None = None
        self._ends: tuple[float, float] | None = None
        self._known = math.inf
        if not math.isfinite(sizes.row) or not math.isfinite(sizes.fro):
            raise ValueError(f"a tile of {name} holds NaN or infinity, or overflows: correct or scale {name}")

    @classmethod
    def of_dense(
        cls, a: Any, rows: np.ndarray, permutation: Any = None, name: str = "the matrix"
    ) -> tuple[TileMatrix | GridMatrix, float] | None:
        """Return the Hermitian part of a dense matrix of CuPy, and the norm of the rest, or raise as `from_dense`.

        It is in lists where there is no room for a calculation, and None where not for these.  `a` is contiguous, of a
        dtype of tile matrices; `rows` is where tile rows begin, and the end.
        """
        order = checked_permutation(permutation, a.shape)
        stays = _fits(rows, a.dtype)
        if not (stays or _fits(rows, a.dtype, 2)):
            return None
        room = Room.of(rows, order)
        data, maps = kernels.of_dense(room, a, hermitian=True)
        sizes = _sizes_of(room, maps)
        skew = sizes[APART].bounds()
        made = cls(room, data, maps[NORMS].copy(), sizes[NORMS], EXACT, True, name=name)
        if skew.fro:
            lost = 8 * roundoff(a.dtype) * made.norm()
            made.error = skew + Error.of(lost, lost)
        if not _RANGE[0] < made.norm() < _RANGE[1]:
            return None
        return made if stays else made.to_tiles(), skew.fro

    @classmethod
    def of_tiles(cls, x: TileMatrix) -> GridMatrix:
        """Return the same matrix with room for every tile."""
        import cupy

        whole, room = x.whole(), Room.of(x.rows, x.permutation)
        data, norms = cupy.empty(room.n * room.n, x.dtype), cupy.zeros((room.size, room.size))
        places = cupy.asarray(whole.layout.keys)
        kernels.copy(room, whole._data, cupy.asarray(whole.layout.starts), places, data, to_grid=True)
        norms.ravel()[places] = cupy.asarray(whole.norms)
        return cls(room, data, norms, _sizes_of(room, norms[None])[0], x.error, x.hermitian)

    def to_tiles(self) -> TileMatrix:
        """Return the same matrix with the tiles that are not zero."""
        import cupy

        told = self.norms.get()
        kept = np.flatnonzero(np.triu(told) if self.hermitian else told)
        layout = Layout.of_keys(self.rows, self.rows, kept, self.hermitian)
        flat = cupy.empty(int(layout.starts[-1]), self.dtype)
        starts, places = cupy.asarray(np.array([layout.starts[:-1], kept]))
        kernels.copy(self.room, flat, starts, places, self.data, to_grid=False)
        norms = told.ravel()[kept]
        made = TileMatrix(layout, flat, error=self.error, permutation=self.permutation, norms=norms)
        made.products = self.products
        return made

    def tiles_of(self, a: Any) -> TileMatrix:
        """Return the Hermitian part of a dense matrix of CuPy in the same tiles and order, without a look at it."""
        made = self._with(EXACT)
        made.data, maps = kernels.of_dense(self.room, a, hermitian=True)
        made.norms = maps[NORMS]
        return made.to_tiles()

    def to_dense(self) -> Any:
        """Return the matrix as an array, in the order of the given one."""
        return kernels.to_dense(self.room, self.data, self.norms)

    # --- What it is ---

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.room.n, self.room.n

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tiles."""
        return np.dtype(self.data.dtype)

    @property
    def fill(self) -> float:
        """Share of the tiles that are not zero."""
        return self._sizes.filled / self.room.size**2

    def norm(self, kind: NormName = "fro") -> float:
        """Return a norm of the stored matrix, rounded up: the Frobenius norm, or a bound of the spectral one."""
        fro = self._sizes.fro * SLACK
        if kind != "spectral":
            return fro
        if self.hermitian:
            return min(fro, self._sizes.row * SLACK, self._known)
        if not math.isfinite(self._known):
            # By sums over rows and columns of the entries: of a matrix like the identity those of tiles are too large.
            lines = [
                float(kernels.row_sums(self.room, one.data, one.norms).max()) * (1 + self.room.n * 2.0**-52)
                for one in (self, self.H)
            ]
            self._known = math.sqrt(lines[0]) * math.sqrt(lines[1]) * SLACK
        return min(fro, self._known)

    def _moduli_norm(self) -> float:
        """Return a bound of the spectral norm of the matrix of the moduli of a Hermitian one."""
        return self._sizes.row * SLACK

    def _bounded(self, norm: float) -> GridMatrix:
        """Return the matrix, of whose spectral norm this bound is known."""
        made = self._with(self.error)
        made._known = min(self._known, norm)
        return made

    def trace(self) -> float:
        """Return the trace of the stored matrix, of a complex one that is not Hermitian its real part."""
        if self._trace is None:
            self._trace = float(kernels.diagonal(self.room, self.data, self.norms).sum())
        return self._trace

    def dot(self, other: GridMatrix) -> float:
        """Return the real part of ``trace(self.conj().T @ other)``."""
        return float(kernels.dots(self.room, self.data, self.norms, other.data, other.norms)[0].sum())

    def eigenvalue_bounds(self) -> tuple[float, float]:
        """Return an interval that holds all eigenvalues of the exact matrix.

        By Gershgorin's theorem and, where all tiles are of one size, by the eigenvalues of the tiles on the diagonal
        and the norms of the others: ``x* H x`` is at most ``y^T M y``, where y are the norms of the parts of x, and M
        has the largest eigenvalue of each tile on its diagonal.
        """
        import cupy

        if self._ends is not None:
            return self._ends
        d = kernels.diagonal(self.room, self.data, self.norms)
        radii = kernels.row_sums(self.room, self.data, self.norms) * SLACK - abs(d)
        ends = cupy.stack([radii - d, radii + d]).max(axis=1)
        if self.room.uniform:
            (tiles,) = self._diagonal_tiles()
            most, between = _largest_within(cupy.stack([-tiles, tiles])), self.norms.copy()
            least, bounds = most.min(axis=1), []
            for diagonal in most - least[:, None]:
                between.ravel()[:: self.room.size + 1] = diagonal
                bounds.append(kernels.spectral_bound(self.room, between, 2 * _SHARPENED))
            ends = cupy.minimum(ends, least + cupy.concatenate(bounds) * SLACK)
        low, high, scale = cupy.concatenate([ends, (abs(d) + radii).max(keepdims=True)]).get().tolist()
        lost = 64 * self.room.largest * roundoff(self.dtype) + 16 * self.room.largest**2 * roundoff(np.float64)
        slack = (SLACK - 1 + lost) * scale + self.error.spectral
        self._ends = -low - slack, high + slack
        return self._ends

    def diagonal(self) -> np.ndarray:
        """Return the real parts of the diagonal, on the host."""
        return kernels.diagonal(self.room, self.data, self.norms).get()

    def _diagonal_tiles(self) -> list[Any]:
        """Return the tiles on the diagonal, those of one size in one array."""
        import cupy

        sizes = np.diff(self.rows)
        flat, starts = self._tiles_at(np.arange(self.room.size) * (self.room.size + 1), sizes * sizes)
        return stacked(cupy, flat, starts, sizes)

    def _column_of_tiles(self, number: int) -> Any:
        """Return a tile column."""
        sizes = np.diff(self.rows)
        flat, _ = self._tiles_at(np.arange(self.room.size) * self.room.size + number, sizes * sizes[number])
        return flat.reshape(self.room.n, -1)

    def _tiles_at(self, places: np.ndarray, counts: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return tiles at places of the map, of so many entries each, one after the other, and where they begin."""
        import cupy

        starts, at = np.concatenate([[0], np.cumsum(counts)]), cupy.asarray(places)
        flat = cupy.empty(int(starts[-1]), self.dtype)
        kernels.copy(self.room, flat, cupy.asarray(starts), at, self.data, to_grid=False)
        return cupy.where(self.norms.ravel()[at][owners(cupy, starts)] > 0, flat, 0), starts[:-1]

    def whole(self) -> GridMatrix:
        """Return the matrix itself, all of which is stored."""
        return self

    @property
    def H(self) -> GridMatrix:
        """The conjugate transpose."""
        if self.hermitian:
            return self
        data, sizes = kernels.adjoint(self.room, self.data, self.turned), _sizes_of(self.room, self.turned[None])[0]
        made = GridMatrix(self.room, data, self.turned, sizes, self.error, False, self.products)
        made._turned, made._known = self.norms, self._known
        return made

    # --- Algebra ---

    def __neg__(self) -> GridMatrix:
        return self._combined(-1.0)

    def __mul__(self, factor: float) -> GridMatrix:
        return self._combined(float(factor))

    __rmul__ = __mul__

    def __add__(self, other: GridMatrix) -> GridMatrix:
        return self._combined(1.0, other, 1.0)

    def __sub__(self, other: GridMatrix) -> GridMatrix:
        return self._combined(1.0, other, -1.0)

    def shifted(self, shift: float) -> GridMatrix:
        """Return the matrix plus a multiple of the identity."""
        return self._combined(1.0, shift=shift)

    def _combined(
        self, alpha: float, other: GridMatrix | None = None, beta: float = 0.0, shift: float = 0.0
    ) -> GridMatrix:
        both = self.hermitian and (other is None or other.hermitian)
        data, norms = (None, None) if other is None else (other.data, other.norms)
        c, maps = kernels.combine(self.room, self.data, self.norms, alpha, data, norms, beta, shift, both)
        made = self._made(c, maps, _sizes_of(self.room, maps), both)
        made.error = made.error + self.error.times(alpha)
        if other is not None:
            made.error = made.error + other.error.times(beta)
        return made

    def _times(self, other: GridMatrix, atol: float, norm: NormName = "fro", half: str | None = None) -> GridMatrix:
        """Return the product, as `TileMatrix._times`."""
        found = self._search(other, atol, norm, half)
        c, maps = self._multiplied(other, found, 1.0, None, 0.0, 0.0, half)
        sizes = _sizes_of(self.room, maps)
        made, inherited = self._made(c, maps, sizes, half is not None), carried(self, other)
        if half == "upper":
            inherited = Error.of(math.sqrt(2) * inherited.fro, math.sqrt(2) * inherited.fro)
        made.error = made.error + sizes[SKIPPED].bounds(half is not None) + inherited
        return made

    def _second_degree(
        self, coefficients: tuple[float, ...], allowed: float, norm: NormName
    ) -> tuple[GridMatrix, Apart]:  # fmt: skip
        """Return a polynomial of the second degree, as `TileMatrix._second_degree`."""
        constant, linear, quadratic = coefficients
        found = self._search(self, allowed / 2 / abs(quadratic), norm, "square")
        c, maps = self._multiplied(self, found, quadratic, self, linear, constant, "square")
        unit = _unit(abs(quadratic) * self.norm() ** 2 + abs(linear) * self.norm() + abs(constant) * self.room.n)
        drops = kernels.search_tiles(
            self.room, maps[NORMS], unit, allowed / 4, self._guess(allowed / 4), norm == "spectral"
        )
        kernels.drop(maps[NORMS], drops)
        sharp = kernels.spectral_bound(self.room, maps[APART], _SHARPENED) * SLACK
        trace = kernels.diagonal(self.room, c, maps[NORMS]).sum(keepdims=True)
        sizes, told = _sizes_of(self.room, maps, drops, sharp, trace)
        made = self._made(c, maps, sizes, True)
        made._trace = told[SEARCH + 1]
        skipped, dropped = sizes[SKIPPED].bounds(), Error.of(told[3], told[4])
        own = (skipped + carried(self, self)).times(quadratic) + self.error.times(linear)
        made.error = made.error + own + dropped
        # What rounding takes of the square alone is part of what it takes of the polynomial, but for the factor.
        off = skipped + carried(self, self) + self.error + sizes[LOST].bounds().times(1 / abs(quadratic))
        off = off + Error.of(2 * roundoff(self.dtype) * self.norm(), math.inf)
        apart = sizes[APART]
        return made, Apart(
            (apart.fro + off.fro) * SLACK,
            max(0.0, apart.fro * (1 - excess(self.rows)) - off.fro),
            (min(apart.fro, told[SEARCH]) + off.spectral) * SLACK,
        )

    def truncate(self, atol: float, norm: NormName = "fro") -> GridMatrix:
        """Return the matrix without its smallest tiles, which add up to at most an error."""
        found = kernels.search_tiles(
            self.room, self.norms, _unit(self.norm()), atol, self._guess(atol), norm == "spectral"
        )
        norms = self.norms.copy()
        kernels.drop(norms, found)
        sizes, told = _sizes_of(self.room, norms[None], found)
        lost = Error.of(told[3], told[4] if self.hermitian else told[3])
        return GridMatrix(self.room, self.data, norms, sizes[0], self.error + lost, self.hermitian, self.products)

    # --- Inside ---

    def _identity(self) -> GridMatrix:
        """Return the identity in the same tiles, as one that is not Hermitian."""
        one = TileMatrix.identity(np.diff(self.rows), hermitian=False, dtype=self.dtype)
        return GridMatrix.of_tiles(one._with(permutation=self.permutation).to_device())

    def _with(self, error: Error) -> GridMatrix:
        """Return the matrix with another error."""
        made = copy.copy(self)
        made.error, made._ends = error, None
        return made

    @property
    def halves(self) -> Any:
        """The tiles as two float16 for each number, where they are in blocks, or None."""
        if self._halves is None and in_blocks(self.dtype.name, self.room.largest, self.room.uniform):
            self._halves = kernels.halved(self.room, self.data, self.norms)
        return self._halves

    @property
    def turned(self) -> Any:
        """The map of the norms of the transpose."""
        if self.hermitian:
            return self.norms
        if self._turned is None:
            self._turned = self.norms.T.copy()
        return self._turned

    def _guess(self, atol: float) -> float:
        return max(atol, 1e-290) / self.room.size

    def _search(self, other: GridMatrix, atol: float, norm: NormName, half: str | None) -> Any:
        # Of a product whose one half stands for the other the search looks at what that makes.
        share = float(gamma(self.room.n, self.dtype)) * SLACK
        least = float(underflow(self.room.n, self.dtype)) * self.room.n
        room, units = self.room, (_unit(self.norm()), _unit(other.norm()))
        # They are made first: the device is busy while the host asks for the search.
        halves = self.halves is not None
        return kernels.search_product(
            room, self.norms, self.turned, other.norms, other.turned, units, half is not None, atol,
            self._guess(atol), share, least, norm == "spectral" and half is not None, halves,
        )  # fmt: skip

    def _multiplied(
        self, other: GridMatrix, found: Any, scale: float, plus: GridMatrix | None, weight: float, shift: float,
        half: str | None,
    ) -> tuple[Any, Any]:  # fmt: skip
        count(MATRICES)
        data, norms = (None, None) if plus is None else (plus.data, plus.norms)
        unit = _unit(self.norm()) * _unit(other.norm())
        return kernels.multiply(
            self.room, self.data, self.norms, other.data, other.turned, data, norms, found, unit, scale, weight, shift,
            half is not None, other.hermitian, self.halves, other.halves if other.hermitian else None,
        )  # fmt: skip

    def _made(self, data: Any, maps: Any, sizes: list[Sizes], hermitian: bool) -> GridMatrix:
        lost, norms = sizes[LOST].bounds(hermitian), maps[NORMS].copy()  # which lets go of the other maps
        return GridMatrix(self.room, data, norms, sizes[NORMS], lost, hermitian, int(sizes[PRODUCTS].total))


def _unit(norm: float) -> float:
    """Return a power of two that is no smaller."""
    return 2.0 ** math.frexp(norm)[1] if norm > 0 else 1.0


def _largest_within(tiles: Any) -> Any:
    """Return bounds of the largest eigenvalues of Hermitian tiles, but for rounding, to a thousandth of their range.

    Of a matrix B without negative eigenvalues the largest is at most ``||B^k||_F^(1/k)``; here k is 2^_SQUARINGS.
    """
    import cupy

    b = tiles.astype(np.result_type(tiles.dtype, np.float64))
    diagonal = b.diagonal(axis1=-2, axis2=-1).real
    low = (diagonal + abs(diagonal) - abs(b).sum(axis=-1)).min(axis=-1)  # Gershgorin
    b, norms = b - low[..., None, None] * cupy.eye(b.shape[-1]), []
    for _ in range(_SQUARINGS + 1):
        square = b @ b  # whose trace is the square of the norm of B
        norms.append(cupy.sqrt(square.diagonal(axis1=-2, axis2=-1).real.sum(axis=-1)) + 1e-140)
        b = square / norms[-1][..., None, None] ** 2
    return low + cupy.exp((cupy.log(cupy.stack(norms)).T / 2.0 ** cupy.arange(_SQUARINGS + 1)).sum(axis=-1).T)


def _sizes_of(room: Room, maps: Any, *searches: Any) -> Any:
    """Return what is known of each map, and the numbers of searches if there are any: one look at the device."""
    import cupy

    totals = kernels.totals(room, maps)
    both = cupy.concatenate([totals.ravel(), *searches]).get() if searches else totals.get().ravel()
    count = 4 * len(maps)
    sizes = [Sizes(*both[at : at + 4].tolist()) for at in range(0, count, 4)]
    return (sizes, both[count:].tolist()) if searches else sizes
