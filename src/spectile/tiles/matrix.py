"""Near-sparse matrices as objects: block CSR of tiles with norms, and the error that they carry."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from spectile.core.arrays import host_array, on_device, to_device
from spectile.core.device import require_device
from spectile.core.host import canonical_csr, refuse_malformed
from spectile.core.options import flag, kind_of, number
from spectile.core.pictures import draw_sizes, shown, shown_html
from spectile.core.places import device_ids
from spectile.core.pointers import read_only
from spectile.nearsparse.multi.partition import cut_rows
from spectile.tiles import kernels, product
from spectile.tiles import layout as layouts
from spectile.tiles import norms as norms_
from spectile.tiles.cuda import launch
from spectile.tiles.layout import Layout, gather, offsets
from spectile.tiles.order import ranges
from spectile.tiles.spread import Spread, there
from spectile.tiles.types import EXACT, SLACK, Error, carried, excess, held_dtype, roundoff, underflow

# What to do without a GPU.
_STAY = "leave the matrix on the host, where all of it is computed as well"
NormName = Literal["fro", "spectral"]


class Apart(NamedTuple):
    """How far X is from X squared."""

    #: Frobenius norm of the difference, at most and at least.
    fro: float
    least: float
    spectral: float  #: Spectral norm, at most.

    @classmethod
    def of(cls, rest: Any) -> Apart:
        """Return what the difference, with its error, says."""
        least = max(0.0, rest.norm() * (1 - excess(rest.rows)) - rest.error.fro)
        return cls((rest.norm() + rest.error.fro) * SLACK, least, (rest.norm("spectral") + rest.error.spectral) * SLACK)


class TileMatrix:
    """A near-sparse matrix: the tiles that are not zero, their norms, and a guaranteed bound of its error.

    Rows and columns are divided into tiles, of one size or of many (atoms, molecules).  A Hermitian matrix stores the
    diagonal tiles and those above.  Every operation returns a new matrix, leaves its operands as they are, and bounds
    what the result differs by from that of the exact operands: what was left out, rounding, and the operands' own
    errors.  Make one by `from_dense`, `from_sparse`, `from_tiles` or `identity`.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    dtype : numpy.dtype
        float32, float64, complex64 or complex128.
    rows, columns : numpy.ndarray of int64
        Where tile rows and tile columns begin, and the end.
    hermitian : bool
        Whether only the diagonal tiles and those above are stored.
    permutation : numpy.ndarray of int64 or None
        Stored row i is row ``permutation[i]`` of the matrix, columns alike.
    error : Error
        Bounds ``(fro, spectral)`` of the difference from the exact matrix, in the Frobenius and the spectral norm.
    data, norms : array
        The stored tiles one after the other, each by rows, on the host or a GPU; their Frobenius norms, on the host.
    indptr, indices : numpy.ndarray of int64
        Tile columns of each tile row, as in CSR.
    products : int
        Products of tiles that were added up in it, where it is a product; 0 else.

    Notes
    -----
    Norms, errors and other matrices are made of these arrays, which are read-only on the host.  On a GPU, where arrays
    cannot be, do not write to `data`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> i = np.arange(512)
    >>> a = spectile.TileMatrix.from_dense(np.exp(-np.abs(i[:, None] - i) / 4.0), 32, hermitian=True, atol=1e-6)
    >>> c = a.square(atol=1e-6)
    >>> exact = np.linalg.matrix_power(np.exp(-np.abs(i[:, None] - i) / 4.0), 2)
    >>> bool(np.linalg.norm(c.to_dense() - exact) <= c.error.fro <= 1e-4)
    True
    """

    __array_ufunc__ = None  # NumPy leaves `array @ matrix` to us, which refuses it
    __slots__ = ("_data", "_fro", "_known", "_norms", "_spectral", "error", "layout", "permutation", "products")

    def __init__(
        self, layout: Layout, data: Any = None, *, error: Error = EXACT, permutation: Any = None, norms: Any = None,
        name: str = "the matrix",
    ) -> None:  # fmt: skip
        """Take tiles as they are, of a matrix that messages call `name`: see `from_dense` and the others."""
        if data is None:
            raise TypeError("make a TileMatrix by from_dense, from_sparse, from_tiles or identity")
        self.layout, self._data, self.error, self.permutation = layout, data, error, permutation
        self._norms = norms_.tile_norms(self._xp, data, layout) if norms is None else norms
        self._fro: float | None = None
        self._spectral: np.ndarray | None = None
        self._known = math.inf
        self.products = 0
        if not np.isfinite(self._norms).all():
            t = int(np.flatnonzero(~np.isfinite(self._norms))[0])
            i, j = int(layout.tile_rows[t]), int(layout.indices[t])
            raise ValueError(f"tile ({i}, {j}) of {name} holds NaN or infinity, or overflows: correct or scale {name}")

    # --- Making one ---

    @classmethod
    def from_dense(
        cls, a: Any, rows: Any = 32, columns: Any = None, *, hermitian: bool = False, atol: float = 0.0,
        permutation: Any = None,
    ) -> TileMatrix:  # fmt: skip
        """Return a dense matrix in tiles.

        Parameters
        ----------
        a : array of shape (m, n)
            Of any library, on the host or a GPU; of float32, float64, complex64 or complex128, or of integers, which
            become float64.
        rows, columns : int or sequence of int
            Rows of every tile, or of each; columns as rows, by default.
        hermitian : bool, default False
            Store half of it; it must be so to the last digit.
        atol : float, default 0
            Tiles are left out while they add up to at most this in the Frobenius norm.
        permutation : sequence of int, optional
            Order of rows and columns in which they are stored (of a square matrix), as `partition` gives it.

        Raises
        ------
        TypeError
            If the dtype is another.
        ValueError
            If partition or permutation do not fit, `a` is not Hermitian but should be, or has NaN, infinity or integers
            beyond 2**53.

        Examples
        --------
        >>> import numpy as np
        >>> TileMatrix.from_dense(np.eye(8), [3, 5]).norms.round(3).tolist()
        [1.732, 2.236]
        """
        return cls._of_dense("a", a, rows, columns, hermitian, atol, permutation)

    @classmethod
    def _of_dense(
        cls, name: str, a: Any, rows: Any, columns: Any = None, hermitian: bool = False, atol: float = 0.0,
        permutation: Any = None,
    ) -> TileMatrix:  # fmt: skip
        """Return what `from_dense` does of an operand that messages call `name`."""
        known = a.error if isinstance(a, TileMatrix) else EXACT
        a = to_device(a, name)[0] if on_device(a) else host_array(name, a)
        dtype = held_dtype(name, a.dtype)
        if a.ndim != 2:
            raise ValueError(f"{name} has shape {a.shape}: pass a matrix")
        a = _held(name, a).astype(dtype, copy=False)
        xp = _module(a)
        rows, columns = partitions(a.shape, rows, columns, hermitian)
        order = checked_permutation(permutation, a.shape)
        if hermitian and not bool((a == a.conj().T).all()):
            largest = float(xp.abs(a - a.conj().T).max())
            raise ValueError(
                f"{name} is not Hermitian, by up to {largest:.3g}: pass ({name} + {name}.conj().T) / 2, or "
                "hermitian=False"
            )
        if order is not None:
            index = xp.asarray(order)
            a = a[index[:, None], index]
        filled = [np.zeros((0, len(columns) - 1), bool)]
        for i in range(len(rows) - 1):
            own = (a[rows[i] : rows[i + 1]] != 0).any(axis=0)  # NaN is not zero
            filled.append(np.logical_or.reduceat(own if xp is np else own.get(), columns[:-1])[None])
        whole = np.concatenate(filled)
        layout = Layout.of_keys(rows, columns, np.flatnonzero(np.triu(whole) if hermitian else whole), hermitian)
        made = cls(layout, layouts.of_dense(xp, a, layout), error=known, permutation=order, name=name)
        return made.truncate(atol) if atol else made

    @classmethod
    def from_sparse(
        cls, a: Any, rows: Any = 32, columns: Any = None, *, hermitian: bool = False, atol: float = 0.0,
        permutation: Any = None,
    ) -> TileMatrix:  # fmt: skip
        """Return a sparse matrix of SciPy (CSR, BSR, any other) in tiles; entries at one place are summed.

        Sums of integers are exact.  Those of floats are rounded to their type, which no bound of an error counts.

        Parameters
        ----------
        a : scipy.sparse matrix or array of shape (m, n)
            Of the dtypes of `from_dense`.
        rows, columns, hermitian, atol, permutation
            As for `from_dense`.

        Raises
        ------
        TypeError, ValueError
            As `from_dense`, or if `a` is malformed.

        Examples
        --------
        >>> import scipy.sparse
        >>> TileMatrix.from_sparse(scipy.sparse.eye_array(96)).norms.round(3).tolist()
        [5.657, 5.657, 5.657]
        """
        return cls._of_sparse("a", a, rows, columns, hermitian, atol, permutation)

    @classmethod
    def _of_sparse(
        cls, name: str, a: Any, rows: Any, columns: Any = None, hermitian: bool = False, atol: float = 0.0,
        permutation: Any = None,
    ) -> TileMatrix:  # fmt: skip
        """Return what `from_sparse` does of an operand that messages call `name`."""
        if not hasattr(a, "tocoo"):
            raise TypeError(f"{name} is {kind_of(a)}, no sparse matrix: pass one of SciPy, or an array to from_dense")
        refuse_malformed(name, a)
        dtype = held_dtype(name, a.dtype)
        rows, columns = partitions(a.shape, rows, columns, hermitian)
        order = checked_permutation(permutation, a.shape)
        a = a if a.format in ("coo", "csr", "csc", "bsr") else a.tocsr()  # other formats hold no entry twice
        _held(name, a.data)
        a = canonical_csr(_of_integers(name, a) if a.dtype.kind in "iu" else a, dtype)
        if not a.data.all():
            a = a.copy()
            a.eliminate_zeros()
        if hermitian:
            turned, values = a.T.tocsr(), a.data.conj() if dtype.kind == "c" else a.data
            pairs = (turned.indptr, a.indptr), (turned.indices, a.indices), (turned.data, values)
            if not all(np.array_equal(*pair) for pair in pairs):
                raise ValueError(f"{name} is not Hermitian: pass ({name} + {name}.conj().T) / 2, or hermitian=False")
            del turned, values, pairs
        if order is not None:
            a = a[order][:, order]
        owner = layouts.owners(np, columns)
        given = a.indptr, a.indices, rows, owner, hermitian
        indptr, mark = np.zeros(len(rows), np.int64), np.full(len(columns) - 1, -1)
        kernels.tiles_of_rows(*given, mark, indptr, np.zeros(0, np.int64))
        mark[:], indices = -1, np.empty(np.cumsum(indptr, out=indptr)[-1], np.int64)
        kernels.tiles_of_rows(*given, mark, indptr, indices)
        layout = Layout(rows, columns, indptr, indices, hermitian)
        data = np.zeros(int(layout.starts[-1]), dtype)
        kernels.fill_tiles(*given, columns, mark, indptr, indices, layout.starts, a.data, data)
        made = cls(layout, data, permutation=order, name=name)
        return made.truncate(atol) if atol else made

    @classmethod
    def from_tiles(
        cls, function: Callable[[int, int], Any], pattern: Iterable[tuple[int, int]], rows: Any, columns: Any = None, *,
        hermitian: bool = False, dtype: Any = np.float64, permutation: Any = None,
    ) -> TileMatrix:  # fmt: skip
        """Return the matrix whose tiles a function gives.

        Parameters
        ----------
        function : callable
            ``function(i, j)`` is tile (i, j), an array that can be read as one of its shape.
        pattern : iterable of pairs of int
            Which tiles there are, each once; of a Hermitian matrix those on and above the diagonal.
        rows, columns : sequence of int
            Rows and columns of each tile; columns as rows, by default.
        hermitian, permutation
            As for `from_dense`.
        dtype : dtype, default float64
            Of the matrix.

        Raises
        ------
        ValueError
            If a tile is named twice or lies outside, is below the diagonal of a Hermitian matrix, or has another shape.

        Examples
        --------
        >>> TileMatrix.from_tiles(lambda i, j: [[i + 1.0]], [(0, 0), (1, 1)], [1, 1]).to_dense().tolist()
        [[1.0, 0.0], [0.0, 2.0]]
        """
        dtype = held_dtype("dtype", dtype)
        rows = offsets("rows", None, rows)
        columns = rows if columns is None else offsets("columns", None, columns)
        shape = int(rows[-1]), int(columns[-1])
        partitions(shape, np.diff(rows), np.diff(columns), hermitian)
        order = checked_permutation(permutation, shape)
        pairs = np.array(sorted(pattern), np.int64).reshape(-1, 2)
        grid = len(rows) - 1, len(columns) - 1
        if (pairs < 0).any() or (pairs >= grid).any():
            raise ValueError(f"pattern names a tile outside of the {grid[0]} x {grid[1]} tiles: leave it out")
        if hermitian and (pairs[:, 0] > pairs[:, 1]).any():
            raise ValueError("pattern names a tile below the diagonal: name its mirror image above")
        keys = pairs[:, 0] * grid[1] + pairs[:, 1]
        if (np.diff(keys) == 0).any():
            raise ValueError("pattern names a tile twice: name each once")
        layout = Layout.of_keys(rows, columns, keys, hermitian)
        data = np.empty(int(layout.starts[-1]), dtype)
        for t, (i, j) in enumerate(pairs.tolist()):
            tile = _held(f"tile ({i}, {j})", host_array(f"tile ({i}, {j})", function(i, j)))
            wanted = int(layout.heights[t]), int(layout.widths[t])
            if tile.shape != wanted:
                raise ValueError(f"tile ({i}, {j}) has shape {tile.shape}, and {wanted} is needed")
            if hermitian and i == j and not (tile == tile.conj().T).all():
                raise ValueError(f"tile ({i}, {j}) is not Hermitian: correct it, or pass hermitian=False")
            with np.errstate(over="ignore"):  # what is infinite then is named
                data[layout.starts[t] : layout.starts[t + 1]] = tile.astype(dtype, casting="same_kind").reshape(-1)
        return cls(layout, data, permutation=order)

    @classmethod
    def identity(cls, rows: Any, *, hermitian: bool = True, dtype: Any = np.float64) -> TileMatrix:
        """Return the identity, whose tiles have so many rows each.

        Examples
        --------
        >>> TileMatrix.identity([2, 3]).trace()
        5.0
        """
        sizes = offsets("rows", None, rows)
        layout = Layout.of_keys(sizes, sizes, np.arange(len(sizes) - 1) * len(sizes), hermitian)
        data = np.zeros(int(layout.starts[-1]), held_dtype("dtype", dtype))
        data[layout.on_diagonal()] = 1
        return cls(layout, data)

    # --- What it is ---

    @property
    def _xp(self) -> Any:
        return _module(self._data)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tiles."""
        return np.dtype(self._data.dtype)

    @property
    def rows(self) -> np.ndarray:
        """Where tile rows begin, and the end."""
        return read_only(self.layout.rows)

    @property
    def columns(self) -> np.ndarray:
        """Where tile columns begin, and the end."""
        return read_only(self.layout.columns)

    @property
    def indptr(self) -> np.ndarray:
        """Where the tiles of each tile row begin, and the end."""
        return read_only(self.layout.indptr)

    @property
    def indices(self) -> np.ndarray:
        """Tile column of each tile."""
        return read_only(self.layout.indices)

    @property
    def data(self) -> Any:
        """The stored tiles one after the other, each by rows."""
        return read_only(self._data)

    @property
    def norms(self) -> np.ndarray:
        """Frobenius norms of the stored tiles."""
        return read_only(self._norms)

    @property
    def hermitian(self) -> bool:
        """Whether half of the matrix is stored."""
        return self.layout.hermitian

    @property
    def nbytes(self) -> int:
        """Bytes of tiles, norms and indices."""
        host = self._norms.nbytes + self.indptr.nbytes + self.indices.nbytes
        return int(self._data.nbytes) + host + self.rows.nbytes + self.columns.nbytes

    @property
    def fill(self) -> float:
        """Share of the tiles, mirror images included, that are stored or mirrored."""
        total = self.layout.grid[0] * self.layout.grid[1]
        return float(self.layout.copies.sum() / total) if total else 0.0

    __repr__ = shown
    _repr_html_ = shown_html

    def plot(self, axes: Any = None) -> Any:
        """Draw the norms of the tiles, mirrored ones included.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            Without Matplotlib.
        """
        sizes = np.zeros(self.layout.grid)
        rows = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        sizes[rows, self.indices] = self._norms
        if self.hermitian:
            sizes[self.indices, rows] = self._norms
        return draw_sizes(sizes, axes)

    def _told(self) -> list[str]:
        sizes = np.unique(np.concatenate([np.diff(self.rows), np.diff(self.columns)])).tolist()
        tiles = "tiles of " + " to ".join(str(size) for size in sorted({*sizes[:1], *sizes[-1:]}))
        place = "" if self._xp is np else f" on {self._place()}"
        return [
            f"{self.shape[0]} x {self.shape[1]} {self.dtype}",
            *(["Hermitian"] if self.hermitian else []),
            tiles,
            f"{self.fill:.3g} of them stored in {self.nbytes / 1e6:.3g} MB{place}",
            f"norm {self.norm():.4g}",
            f"error {self.error.fro:.2g}",
        ]

    def _place(self) -> str:
        """Return where the tiles are."""
        if self._xp is np:
            return "the host"
        if isinstance(self._data, Spread):
            return "GPUs " + ", ".join(str(part.device.id) for part in self._data.parts)
        return f"GPU {self._data.device.id}"

    # --- Numbers ---

    def norm(self, kind: NormName = "fro") -> float:
        """Return a norm of the stored matrix, rounded up.

        Parameters
        ----------
        kind : {"fro", "spectral"}
            The Frobenius norm, to some 1e-12 of itself; or a bound of the spectral norm by sums over rows and columns
            and the norms of tiles.

        Examples
        --------
        >>> round(TileMatrix.identity([2, 2]).norm("spectral"), 9)
        1.0
        """
        if self._fro is None:
            self._fro = norms_.root_of_squares(self._norms, self.layout.copies)
        if _spectral(kind):
            # Rows and columns have nothing to add to what is known better.
            return min(self._fro, self._known if self._known < self._fro else self._moduli_norm())
        return self._fro

    def _moduli_norm(self) -> float:
        """Return a bound of the spectral norm of the matrix of the moduli."""
        return norms_.spectral_bound(self._spectral_norms(), self.layout)

    def _bounded(self, norm: float) -> TileMatrix:
        """Return the matrix, of whose spectral norm this bound is known."""
        made = self._with()
        made._known = min(self._known, norm)
        return made

    @property
    def spectral_norms(self) -> np.ndarray:
        """Bounds of the spectral norms of the tiles."""
        return read_only(self._spectral_norms())

    def _spectral_norms(self) -> np.ndarray:
        if self._spectral is None:
            self._spectral = norms_.spectral_tile_norms(self._xp, self._data, self.layout, self._norms)
        return self._spectral

    def trace(self) -> Any:
        """Return the trace of the stored matrix, summed in float64.

        Raises
        ------
        ValueError
            If the matrix is not square.
        """
        value = self.diagonal().sum()
        return complex(value) if self.dtype.kind == "c" and not self.hermitian else float(value.real)

    def diagonal(self) -> np.ndarray:
        """Return the diagonal in the stored order, on the host, as float64 or complex128.

        Raises
        ------
        ValueError
            If the matrix is not square with one partition of rows and columns.
        """
        self._require_square("a diagonal")
        layout, on = self.layout, self.layout.diagonal
        out = np.zeros(self.shape[0], np.complex128 if self.dtype.kind == "c" else np.float64)
        sizes = layout.heights[on]
        if len(on):
            out[ranges(self.rows[layout.tile_rows[on]], sizes)] = _on_diagonal(self._xp, self._data, layout)
        return out

    def _column_of_tiles(self, number: int) -> np.ndarray:
        """Return a tile column of a square matrix, all rows of it, on the host."""
        layout = self.layout
        mine = np.flatnonzero((layout.indices == number) | (self.hermitian & (layout.tile_rows == number)))
        some, flipped = layout.of_tiles(mine), layout.indices[mine] != number
        rows = np.where(flipped, some.indices, some.tile_rows)
        out = np.zeros((self.shape[0], int(np.diff(self.columns)[number])), self.dtype)
        flat = gather(self._xp, self._data, layout, some, mine)
        flat = flat if self._xp is np else flat.get()
        for tile, row in enumerate(rows.tolist()):
            block = flat[some.starts[tile] : some.starts[tile + 1]].reshape(some.heights[tile], -1)
            out[self.rows[row] : self.rows[row + 1]] = block.conj().T if flipped[tile] else block
        return out

    def _diagonal_tiles(self) -> list[Any]:
        """Return the tiles on the diagonal that are stored, those of one size in one array; none of parts."""
        layout, on = self.layout, self.layout.diagonal
        if isinstance(self._data, Spread):
            return []
        return stacked(self._xp, self._data, layout.starts[on], layout.heights[on])

    def dot(self, other: TileMatrix) -> Any:
        """Return the inner product ``trace(self.conj().T @ other)`` of the stored matrices, summed in float64.

        Raises
        ------
        TypeError, ValueError
            If `other` is no tile matrix, or has other partitions or another permutation.

        Examples
        --------
        >>> TileMatrix.identity([2, 2]).dot(TileMatrix.identity([2, 2]))
        4.0
        """
        self._require_like(other)
        if self.hermitian != other.hermitian:
            return self.whole().dot(other.whole())
        self, other = _together(self, other)
        keys = self.layout.keys, other.layout.keys
        mine, its = np.intersect1d(*keys, assume_unique=True, return_indices=True)[1:]
        if isinstance(self._data, Spread):
            return sum(self._data.each(lambda number: self._part(number).dot(other._part(number))))
        dtype, sizes = np.result_type(self.dtype, other.dtype), np.diff(self.layout.starts)[mine]
        x, y = (one._data.astype(dtype, copy=False) for one in (self, other))
        at = self.layout.starts[mine], other.layout.starts[its]
        if self._xp is np:
            parts = np.empty((len(sizes), 2))
            kernels.dots(x, at[0], y, at[1], sizes, parts)
        else:
            parts = launch.dots(x, at[0], y, at[1], sizes).get()
        value = (parts * self.layout.copies[mine, None]).sum(axis=0)
        return complex(*value) if dtype.kind == "c" and not self.hermitian else float(value[0])

    def eigenvalue_bounds(self) -> tuple[float, float]:
        """Return an interval that holds all eigenvalues of the exact matrix (Gershgorin, widened by the error).

        Raises
        ------
        ValueError
            If the matrix is not stored as Hermitian.

        Examples
        --------
        >>> import numpy as np
        >>> a = TileMatrix.from_dense(np.array([[2.0, 1.0], [1.0, 2.0]]), 2, hermitian=True)
        >>> [round(bound, 9) for bound in a.eigenvalue_bounds()]
        [1.0, 3.0]
        """
        if not self.hermitian:
            raise ValueError("the matrix is not stored as Hermitian: make it with hermitian=True")
        if self.shape[0] == 0:
            return 0.0, 0.0
        layout, d = self.layout, self.diagonal().real
        rows, columns = norms_.absolute_sums(self._xp, self._data, layout)
        radii = np.bincount(ranges(self.rows[layout.tile_rows], layout.heights), rows, self.shape[0])
        twice = np.repeat(layout.mirrored, layout.widths)
        below = ranges(self.columns[layout.indices], layout.widths)[twice]
        radii = (radii + np.bincount(below, columns[twice], self.shape[0])) * SLACK - np.abs(d)
        slack = (SLACK - 1) * float((np.abs(d) + radii).max())
        low, high = float((d - radii).min()) - slack, float((d + radii).max()) + slack
        return low - self.error.spectral, high + self.error.spectral

    # --- Other forms ---

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the matrix as a dense array of NumPy.

        Raises
        ------
        TypeError
            If its tiles are on a GPU.
        ValueError
            If a copy is not allowed.
        """
        if self._xp is not np:
            raise TypeError("the tiles are on a GPU: use .to_host(), or .to_dense() for an array of CuPy")
        if copy is False:
            raise ValueError("a dense array of tiles is a copy: leave out copy=False")
        return self.to_dense().astype(self.dtype if dtype is None else dtype, copy=False)

    def to_dense(self) -> Any:
        """Return the matrix as an array, NumPy's or CuPy's, in the order of the given one.

        Examples
        --------
        >>> TileMatrix.identity([1, 1]).to_dense().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        if isinstance(self._data, Spread):
            return self._with(data=self._data.here()).to_dense()
        return given_order(self._xp, layouts.to_dense(self._xp, self._data, self.layout), self.permutation)

    def to_csr(self) -> Any:
        """Return the matrix as a ``scipy.sparse.csr_array`` on the host, zeros inside of tiles left out.

        Examples
        --------
        >>> TileMatrix.identity([2, 2]).to_csr().nnz
        4
        """
        import scipy.sparse

        whole = self.to_host().whole()
        layout, count = whole.layout, int(np.count_nonzero(whole._data))
        index = np.int32 if max(count, *self.shape) < 2**31 else np.int64
        indptr, indices = np.zeros(self.shape[0] + 1, index), np.empty(count, index)
        values = np.empty(count, self.dtype)
        given = layout.rows, layout.columns, layout.indptr, layout.indices, layout.starts, whole._data
        kernels.rows_of_tiles(*given, indptr, indices, values)
        out = scipy.sparse.csr_array((values, indices, indptr), self.shape)
        if self.permutation is None:
            return out
        back = np.argsort(self.permutation)
        return out[back][:, back]

    def to_host(self) -> TileMatrix:
        """Return the matrix with its tiles in the memory of the host."""
        given = self._xp is np and not isinstance(self._data, Spread)
        return self if given else self._with(data=self._data.get())

    def to_device(self) -> TileMatrix:
        """Return the matrix with its tiles on CuPy's current GPU; raises RuntimeError where there is none."""
        require_device(_STAY)
        import cupy

        return self._with(data=cupy.asarray(self._data.here() if isinstance(self._data, Spread) else self._data))

    def to_devices(self, devices: int | Sequence[int], work: Any = None) -> TileMatrix:
        """Return the matrix with its tiles on several GPUs of this host, which share what is done with it.

        Each has the tiles of some tile rows, cut so that all have the same work; of another matrix it reads the tiles
        that its products need.  Matrices that are made of it lie in the same way.

        Parameters
        ----------
        devices : int or sequence of int
            How many GPUs, or which ones.
        work : sequence of float, optional
            Of each tile row, in any unit; by default the products of a square.

        Raises
        ------
        RuntimeError
            If there is no usable GPU.
        TypeError, ValueError
            If `devices` names none, or the matrix is not square with one partition.
        """
        self._require_square("a matrix on several GPUs")
        require_device(_STAY)
        import cupy

        ids = device_ids(devices, cupy.cuda.runtime.getDeviceCount())
        places = [cupy.cuda.Device(index) for index in ids]
        ends = cut_rows(self.layout.work() if work is None else work, np.ones(len(ids)))
        return self._spread(places, cupy.asarray, tuple(ends))

    def _spread(self, places: Sequence[Any], take: Callable[[Any], Any], ends: tuple[int, ...]) -> TileMatrix:
        """Return the matrix in parts, at these places, as `take` copies tiles of the host there."""
        layout, tiles = self.layout, self.to_host()._data
        parts = []
        for place, (some, _) in zip(places, layout.parts(ends), strict=True):
            with place:
                parts.append(take(tiles[layout.starts[some.start] : layout.starts[some.stop]]))
        return self._with(data=Spread(parts, ends))

    def _beside(self, other: Any) -> TileMatrix:
        """Return the matrix with its tiles where those of another one are."""
        if isinstance(other._data, Spread):
            if isinstance(self._data, Spread) and self._data.cuts == other._data.cuts:
                return self
            places = [there(part) for part in other._data.parts]
            return self._spread(places, other._xp.array, other._data.cuts)
        return self.to_host() if other._xp is np else self.to_device()

    def _part(self, number: int) -> TileMatrix:
        """Return one of the matrices whose sum this one is, each on its device."""
        some, own = self.layout.parts(self._data.cuts)[number]
        return TileMatrix(own, self._data.parts[number], norms=self._norms[some])

    def astype(self, dtype: Any) -> TileMatrix:
        """Return the matrix in another dtype, what is rounded added to the error.

        Raises
        ------
        TypeError
            If the dtype is none of float32, float64, complex64 and complex128, or real where the matrix is complex.
        """
        dtype = held_dtype("dtype", dtype)
        if self.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"the matrix is {self.dtype}, and {dtype} would drop imaginary parts: take .real yourself")
        with np.errstate(over="ignore", under="ignore"):
            made = TileMatrix(self.layout, self._data.astype(dtype), error=self.error, permutation=self.permutation)
        if roundoff(dtype) > roundoff(self.dtype):
            lost = 2 * roundoff(dtype) * self._norms + _underflow(self.layout, dtype)
            made.error = made.error + norms_.bound_of_map(lost, self.layout)
        return made

    def whole(self) -> TileMatrix:
        """Return the matrix with all tiles stored, those below the diagonal as well."""
        if not self.hermitian:
            return self
        layout, source, flipped = self.layout.whole
        data = gather(self._xp, self._data, self.layout, layout, source, flipped)
        return TileMatrix(layout, data, error=self.error, permutation=self.permutation, norms=self._norms[source])

    def hermitian_part(self) -> TileMatrix:
        """Return ``(X + X.H) / 2``, stored as Hermitian; what it differs from X by counts as its error.

        Raises
        ------
        ValueError
            If rows and columns do not have one partition.

        Examples
        --------
        >>> import numpy as np
        >>> TileMatrix.from_dense(np.array([[1.0, 2.0], [2.0, 3.0]]), 1).hermitian_part().hermitian
        True
        """
        self._require_square("a Hermitian part")
        if self.hermitian:
            return self
        off = 0.5 * (self - self.H).norm()
        mean = 0.5 * (self + self.H) if off else self
        kept = np.flatnonzero(mean.indices >= mean.layout.tile_rows)
        layout = Layout.of_keys(mean.layout.rows, mean.layout.columns, mean.layout.keys[kept], hermitian=True)
        data = gather(self._xp, mean._data, mean.layout, layout, kept)
        made = TileMatrix(layout, _symmetric_diagonal(self._xp, data, layout), permutation=self.permutation)
        lost = (8 * roundoff(self.dtype) * made.norm() + off) * SLACK if off else 0.0
        made.error = self.error + Error.of(lost, lost)
        return made

    @property
    def T(self) -> TileMatrix:
        """The transpose."""
        if self.hermitian:
            return self if self.dtype.kind != "c" else self._with(data=self._data.conj())
        layout, order = self.layout.transposed()
        data = gather(self._xp, self._data, self.layout, layout, order, np.ones(len(order), bool))
        data = data.conj() if data.dtype.kind == "c" else data
        made = TileMatrix(layout, data, error=self.error, permutation=self.permutation, norms=self._norms[order])
        return made._bounded(self._known)

    @property
    def H(self) -> TileMatrix:
        """The conjugate transpose."""
        if self.hermitian:
            return self
        turned = self.T
        return turned if self.dtype.kind != "c" else turned._with(data=turned._data.conj())

    def permuted(self, permutation: Any, rows: Any = None) -> TileMatrix:
        """Return the same matrix stored in another order; results in the order of the given matrix stay the same.

        Parameters
        ----------
        permutation : sequence of int
            Stored row i is row ``permutation[i]`` of the matrix.
        rows : int or sequence of int, optional
            Tiles; by default as they are.

        Raises
        ------
        ValueError
            If it is no permutation, or the tiles do not fit.
        """
        tiles = np.diff(self.rows) if rows is None else rows
        self._require_square("a permutation")
        made = TileMatrix.from_sparse(self.to_csr(), tiles, hermitian=self.hermitian, permutation=permutation)
        made.error = self.error
        return made._beside(self)

    # --- Algebra ---

    def __neg__(self) -> TileMatrix:
        """Return the matrix with all signs changed."""
        return self._with(data=-self._data)

    def __mul__(self, factor: Any) -> TileMatrix:
        """Return a multiple."""
        number = _number(factor)
        if number is None:
            return self._refuse(factor)
        if number.imag and self.hermitian:
            return self.whole() * number
        if not np.isfinite(number):
            raise ValueError(f"the factor is {factor}: pass a finite number")
        return self._combined(number)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> TileMatrix:
        """Return the matrix times the reciprocal of a number."""
        number = _number(divisor)
        if number is None:
            return self._refuse(divisor)
        if number == 0:
            raise ZeroDivisionError("the matrix is divided by zero")
        reciprocal = 1 / number
        if not np.isfinite(reciprocal):
            raise ValueError(f"the divisor is {divisor}: pass a number whose reciprocal is finite")
        return self * reciprocal

    def __add__(self, other: TileMatrix) -> TileMatrix:
        """Return a sum."""
        if not isinstance(other, TileMatrix):
            return self._refuse(other)
        return self._combined(1.0, other, 1.0)

    def __sub__(self, other: TileMatrix) -> TileMatrix:
        """Return a difference."""
        return self._combined(1.0, other, -1.0) if isinstance(other, TileMatrix) else self._refuse(other)

    def _refuse(self, other: Any) -> Any:
        # Left to the other, arrays of SciPy and NumPy, the result would be dense, without its error.
        raise TypeError(
            f"a TileMatrix and {kind_of(other)} do not go together here: make both tile matrices, or take "
            ".to_dense() or .to_csr() of this one (and numbers go with * and / alone)"
        )

    @property
    def ndim(self) -> int:
        """Not told: SciPy's products ask for it, to go on with the dense matrix, without its error."""
        raise AttributeError("SciPy multiplies no TileMatrix: make both tile matrices, or take this one's .to_csr()")

    __radd__ = __rsub__ = __rmatmul__ = __rtruediv__ = _refuse

    def shifted(self, shift: complex) -> TileMatrix:
        """Return the matrix plus a multiple of the identity: as a whole one, complex, where the number is complex.

        Raises
        ------
        TypeError, ValueError
            If `shift` is no number, or the matrix not square with one partition.
        """
        self._require_square("a shift")
        number = _number(shift)
        if number is None or not np.isfinite(number):
            raise (TypeError if number is None else ValueError)(f"shift is {shift!r}: pass a finite number")
        if number.imag and (self.hermitian or self.dtype.kind != "c"):
            return self.whole().astype(np.result_type(self.dtype, np.complex64)).shifted(number)
        return self._combined(1.0, shift=number if self.dtype.kind == "c" else number.real)

    def __matmul__(self, other: TileMatrix) -> TileMatrix:
        """Return the product with nothing left out."""
        return self.multiply(other) if isinstance(other, TileMatrix) else self._refuse(other)

    def multiply(
        self, other: TileMatrix, *, atol: float | None = None, rtol: float | None = None,
        rtol_factors: float | None = None, norm: NormName = "fro", hermitian: bool = False,
    ) -> TileMatrix:  # fmt: skip
        """Return the product of two matrices, small products of tiles left out within an error.

        Parameters
        ----------
        other : TileMatrix
            Whose tile rows are this one's tile columns.
        atol : float, optional
            What this product may be off by, rounding included; the errors of the operands come on top.
        rtol : float, optional
            The same, relative to the product's own norm.
        rtol_factors : float, optional
            The same, relative to the product of the factors' norms, which is larger, often several times.
        norm : {"fro", "spectral"}
            In which norm; that of the product, or of the factors, is the same one, from below.
        hermitian : bool, default False
            The exact product is Hermitian, as of matrices that commute: half of it is computed and stored.

        Returns
        -------
        TileMatrix
            `error` bounds what it differs by from the product of the exact matrices.

        Raises
        ------
        TypeError
            If `other` is no tile matrix.
        ValueError
            If partitions or permutations do not fit, or rounding alone may be more than the error that is asked for.

        Examples
        --------
        >>> one = TileMatrix.identity([32, 32])
        >>> one.multiply(one, rtol=1e-6).trace()
        64.0
        """
        half = "upper" if flag("hermitian", hermitian) else None
        return self._multiply(other, atol, rtol, norm, half, rtol_factors)

    def square(
        self, *, atol: float | None = None, rtol: float | None = None, rtol_factors: float | None = None,
        norm: NormName = "fro",
    ) -> TileMatrix:  # fmt: skip
        """Return the product of a matrix with itself, at half the work where it is Hermitian.

        Parameters
        ----------
        atol, rtol, rtol_factors, norm
            As for `multiply`.

        Raises
        ------
        ValueError
            As `multiply`.

        Examples
        --------
        >>> TileMatrix.identity([32, 32]).square().trace()
        64.0
        """
        return self._multiply(self, atol, rtol, norm, "square" if self.hermitian else None, rtol_factors)

    def _multiply(
        self, other: TileMatrix, atol: float | None, rtol: float | None, norm: NormName, half: str | None,
        rtol_factors: float | None = None, strict: bool = True,
    ) -> TileMatrix:  # fmt: skip
        if not isinstance(other, TileMatrix):
            raise TypeError(f"other is {kind_of(other)}: pass a TileMatrix, as TileMatrix.from_dense makes it")
        if not np.array_equal(self.columns, other.rows):
            raise ValueError("the tile columns of the one are not the tile rows of the other: give both one partition")
        _require_one_order(self, other)
        if half and not np.array_equal(self.rows, other.columns):
            raise ValueError("a Hermitian product needs one partition of rows and columns")
        spectral = _spectral(norm)
        asked = {"atol": atol, "rtol": rtol, "rtol_factors": rtol_factors}
        given = {name: _tolerance(name, x) for name, x in asked.items() if x is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: pass one of them")
        atol, rtol, rtol_factors = map(given.get, asked)
        dtype = np.result_type(self.dtype, other.dtype)
        self, other = _together(self, other)
        a = self.whole()
        b = a if other is self else other.whole()
        xp = a._xp
        left, right = product.Factor(a.layout, a._norms, self.layout), product.Factor(b.layout, b._norms, other.layout)
        skipping = product.skipping(xp, left, right, same=half == "square")

        def at(limit: float | None) -> tuple[TileMatrix, Error]:
            tau = 0.0
            if limit is not None:
                # What rounding may take is known when the products are, and small but in single precision.
                reserve = min(product.rounding_at_most(skipping, dtype), limit / 2)
                tau = product.threshold(skipping, (limit - reserve) * factor, spectral)
            lists = skipping.lists(tau, half is not None, dtype)
            if limit is not None:
                both, room = (lists.skipped + lists.rounding)[spectral], limit * factor - lists.rounding[spectral]
                if both > limit * factor and room > 0:  # rounding took more than its reserve
                    lists = skipping.lists(product.threshold(skipping, 0.9 * room, spectral), half is not None, dtype)
            data = product.multiply(
                xp, a.data.astype(dtype, copy=False), b.data.astype(dtype, copy=False), a.layout, b.layout, lists, dtype
            )
            own = lists.skipped + lists.rounding
            if half == "upper":
                own = _mirrored(own)
            if half:
                data = _symmetric_diagonal(xp, data, lists.layout)
            made = TileMatrix(lists.layout, data, permutation=self.permutation)
            made.products = lists.products
            if half and len(made._norms):
                own = own + norms_.bound_of_map(roundoff(dtype) * made._norms, lists.layout)
            return made, own

        factor = 1 / math.sqrt(2) if half == "upper" else 1.0
        limit, wanted = atol, " and ".join(f"{name} = {x}" for name, x in given.items())
        if rtol_factors is not None:
            limit = rtol_factors * _least(self, EXACT, norm) * _least(other, EXACT, norm)
        if rtol is None:
            made, own = at(limit)
        else:
            limit = rtol * product.product_norm_estimate(left, right) / 8
            made, own = at(limit)
            if own[spectral] > rtol * _least(made, own, norm):
                limit = rtol * _least(made, own, norm) / (1 + 2 * rtol)
                made, own = at(limit)
            limit = rtol * _least(made, own, norm)
        if strict and limit is not None and own[spectral] > limit * SLACK:
            relative = rtol or rtol_factors
            whole = limit / relative if relative else 1.0
            share = own[spectral] / whole if whole else math.inf
            raise ValueError(
                f"{wanted} is below what rounding to {dtype} alone may take here, {share:.2g}: ask for more than that"
                + (", or use float64" if roundoff(dtype) > 1e-10 else "")
            )
        inherited = carried(self, other)
        made.error = own + (_mirrored(inherited) if half == "upper" else inherited)
        return made

    def _combined(
        self, alpha: complex, other: TileMatrix | None = None, beta: complex = 0.0, shift: complex = 0.0
    ) -> TileMatrix:
        """Return ``alpha self + beta other + shift I``."""
        layout, places, terms = self.layout, [np.arange(len(self._norms))], [(self, complex(alpha))]
        if other is not None:
            self._require_like(other)
            if self.hermitian != other.hermitian:
                return self.whole()._combined(alpha, other.whole(), beta, shift)
            self, other = _together(self, other)
            layout, places = layouts.joined(layout, other.layout)
            terms.append((other, complex(beta)))
        if shift:
            self._require_square("a shift")
            if len(layout.diagonal) < layout.grid[0]:
                return self._combined(alpha, other, beta)._combined(1.0, self._identity(self.hermitian), shift)
        dtype = np.result_type(*(one.dtype for one, _ in terms), *(np.complex64 for _, each in terms if each.imag))
        lost, parts = len(terms) * _underflow(layout, dtype), []
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for (one, factor), place in zip(terms, places, strict=True):
                held = dtype.type(factor if dtype.kind == "c" else factor.real)
                parts.append((one._data, one.layout, place, held))
                if abs(factor) != 1:
                    # A factor may underflow in the dtype, and what it is rounded by in float64 before the norms come.
                    off = 6 * roundoff(dtype) * (abs(factor) * one._norms) + abs(complex(held) - factor) * one._norms
                    lost[place if len(place) < len(lost) else ...] += off
            data = _summed(self._xp, parts, layout, dtype, shift)
        made = TileMatrix(layout, data, permutation=self.permutation)
        # Sums are rounded, entries of the diagonal once more, and the shift before.
        lost += 2 * roundoff(dtype) * made._norms * (len(terms) - 1)
        if shift:
            sizes = abs(shift) * np.sqrt(np.diff(self.rows))
            lost[layout.diagonal] += 2 * roundoff(dtype) * (made._norms[layout.diagonal] + sizes)
        made.error = sum((one.error.times(abs(factor)) for one, factor in terms), norms_.bound_of_map(lost, layout))
        return made

    def _times(self, other: TileMatrix, atol: float, norm: NormName = "fro", half: str | None = None) -> TileMatrix:
        """Return the product, of which what is left out is within an error or, where rounding is more, within that.

        `half` is "square" for the square of a Hermitian matrix and "upper" for another product that is Hermitian.
        """
        return self._multiply(other, atol, None, norm, half, strict=False)

    def _second_degree(
        self, coefficients: tuple[float, ...], allowed: float, norm: NormName
    ) -> tuple[TileMatrix, Apart]:  # fmt: skip
        """Return ``c + b X + a X^2`` within an error, tiles left out of the square and of the sum, and X - X^2."""
        constant, linear, quadratic = coefficients
        square = self._times(self, allowed / 2 / abs(quadratic), norm, "square")
        apart = Apart.of(self - square)
        made = square if coefficients == (0.0, 0.0, 1.0) else self._combined(linear, square, quadratic, constant)
        made = made.truncate(allowed / 4, norm)
        made.products = square.products
        return made, apart

    def truncate(self, atol: float, norm: NormName = "fro") -> TileMatrix:
        """Return the matrix without its smallest tiles, which add up to at most an error.

        Parameters
        ----------
        atol : float
            What the tiles that are left out add up to, at most.
        norm : {"fro", "spectral"}
            In which norm: the Frobenius norm, or the spectral one, of which the largest sums over a row and a column
            are the bound, so that it does not grow with the matrix.

        Raises
        ------
        ValueError
            If `atol` is negative or not finite.

        Examples
        --------
        >>> import numpy as np
        >>> kept = TileMatrix.from_dense(np.diag([1.0, 1e-9]), 1).truncate(1e-6)
        >>> kept.fill, 1e-9 <= kept.error.fro <= 1.001e-9
        (0.25, True)
        """
        atol = _tolerance("atol", atol)
        layout = self.layout
        if _spectral(norm):
            small = np.flatnonzero(self._norms <= atol)
            order, sums = small[np.argsort(self._norms[small], kind="stable")], np.zeros((2, max(layout.grid)))
            count = kernels.drop_by_sums(
                order, layout.tile_rows, layout.indices, self._norms, layout.hermitian, atol / SLACK, sums
            )
            dropped = np.zeros(len(self._norms), bool)
            dropped[order[:count]] = True
        else:
            dropped = _smallest(self._norms, layout.copies, atol)
        if not dropped.any():
            return self
        kept = np.flatnonzero(~dropped)
        some = layout.of_tiles(kept)
        data = gather(self._xp, self._data, layout, some, kept)
        lost = norms_.bound_of_map(np.where(dropped, self._norms, 0.0), layout)
        return TileMatrix(some, data, error=self.error + lost, permutation=self.permutation, norms=self._norms[kept])

    # --- Inside ---

    def _with(self, **changed: Any) -> TileMatrix:
        """Return the matrix with another error or permutation, or with tiles of the same norms."""
        held = {"error": self.error, "permutation": self.permutation, "norms": self._norms} | changed
        made = TileMatrix(self.layout, held.pop("data", self._data), **held)
        made._known, made._fro = self._known, self._fro
        return made

    def _identity(self, hermitian: bool = False) -> TileMatrix:
        """Return the identity in the same tiles, where those of this matrix are."""
        one = TileMatrix.identity(np.diff(self.rows), hermitian=hermitian, dtype=self.dtype)
        return one._beside(self)._with(permutation=self.permutation)

    def _require_square(self, what: str) -> None:
        if not np.array_equal(self.rows, self.columns):
            raise ValueError(f"{what} needs a square matrix with one partition of rows and columns")

    def _require_like(self, other: TileMatrix) -> None:
        if not isinstance(other, TileMatrix):
            raise TypeError(f"other is {kind_of(other)}: pass a TileMatrix, as TileMatrix.from_dense makes it")
        if not (np.array_equal(self.rows, other.rows) and np.array_equal(self.columns, other.columns)):
            raise ValueError("the tiles of the two matrices are not the same: give both one partition")
        _require_one_order(self, other)


def _mirrored(error: Error) -> Error:
    """Return the error of a matrix whose one half stands for the other, too: it counts twice in squares."""
    return Error.of(math.sqrt(2) * error.fro * SLACK, math.sqrt(2) * error.fro * SLACK)


def _least(made: TileMatrix, own: Error, norm: NormName) -> float:
    """Return what the norm of the matrix that `made` is off by `own` from is at least.

    The spectral norm is at least the Frobenius norm of so many columns over the root of their number.
    """
    least = made.norm() if norm == "fro" else norms_.spectral_least(made._norms, made.layout)
    return max(0.0, least * (1 - excess(made.rows) - excess(made.columns)) - own[norm == "spectral"])


def _smallest(norms: np.ndarray, weights: np.ndarray, atol: float) -> np.ndarray:
    """Return which norms, the smallest, have a root of the sum of their squares of at most `atol`."""
    dropped = norms <= atol
    if atol == 0 or not dropped.any():
        return dropped
    small = np.flatnonzero(dropped)
    norms = norms[small]
    with np.errstate(under="ignore"):
        shares = (norms / atol) ** 2 * weights[small]
    # By their first digits, and by all of them where these do not decide.
    bins = norms.view(np.int64) >> 47
    bins -= bins.min()
    sums = np.cumsum(np.bincount(bins, shares))
    first = int(np.searchsorted(sums * SLACK**3, 1.0, side="right"))
    inside = np.flatnonzero(bins == first)
    order = inside[np.argsort(norms[inside], kind="stable")]
    rising = (sums[first - 1] if first else 0.0) + np.cumsum(shares[order])
    dropped[small] = bins < first
    dropped[small[order[: int(np.searchsorted(rising * SLACK**3, 1.0, side="right"))]]] = True
    return dropped


def _underflow(layout: Layout, dtype: Any) -> np.ndarray:
    return np.full(len(layout.indices), underflow(1, dtype) * layout.largest)


def _summed(xp: Any, terms: list[tuple[Any, Layout, Any, Any]], layout: Layout, dtype: Any, shift: complex) -> Any:
    """Return the tiles of a sum: of each term its tiles, layout, places in the sum and factor."""
    if isinstance(first := terms[0][0], Spread):

        def part(number: int) -> Any:
            some, own = layout.parts(first.cuts)[number]
            of_part = []
            for data, given, place, factor in terms:
                tiles, in_part = given.parts(first.cuts)[number]
                of_part.append((data.parts[number], in_part, place[tiles] - some.start, factor))
            return _summed(xp, of_part, own, dtype, shift)

        return first.made(part)
    out = cast(Any, None)
    for data, given, place, factor in terms:
        if out is None and len(place) == len(layout.indices):
            out = data.astype(dtype, copy=False) * factor
            continue
        out = xp.zeros(int(layout.starts[-1]), dtype) if out is None else out
        if xp is np:
            kernels.add(factor, data, given.starts, layout.starts[place], out)
        else:
            launch.add(factor, data.astype(dtype, copy=False), given.placed(), layout.starts[place], out)
    if shift:
        out[xp.asarray(layout.on_diagonal())] += dtype.type(shift)
    return out


def _on_diagonal(xp: Any, data: Any, layout: Layout) -> np.ndarray:
    """Return the entries of the diagonal tiles that are stored, on the host."""
    if isinstance(data, Spread):
        own = layout.parts(data.cuts)
        return np.concatenate(data.each(lambda at: _on_diagonal(xp, data.parts[at], own[at][1])))
    found = data[xp.asarray(layout.on_diagonal())]
    return found if xp is np else found.get()


def _symmetric_diagonal(xp: Any, data: Any, layout: Layout) -> Any:
    """Return tiles with those on the diagonal made Hermitian to the last digit, by their mean with the transposed."""
    if isinstance(data, Spread):
        own = layout.parts(data.cuts)
        return data.made(lambda at: _symmetric_diagonal(xp, data.parts[at], own[at][1]))
    on = layout.diagonal
    if not len(on):
        return data
    if xp is np:
        kernels.symmetric(data, layout.starts[on], layout.heights[on])
        return data
    some = Layout.of_keys(layout.rows, layout.columns, layout.keys[on])
    tiles = gather(xp, data, layout, some, on)
    turned = gather(xp, tiles, some, some, np.arange(len(on)), np.ones(len(on), bool))
    tile = layouts.owners(xp, some.starts)
    data[xp.asarray(layout.starts[on] - some.starts[:-1])[tile] + xp.arange(len(tile))] = tiles / 2 + turned / 2
    return data


def _number(factor: Any) -> complex | None:
    if np.ndim(factor) or not isinstance(factor, numbers.Number):
        return None
    try:
        return complex(factor)  # type: ignore[call-overload]
    except OverflowError:  # of an integer
        return complex(math.inf)


def _tolerance(name: str, value: Any) -> float:
    value = number(name, value)
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}: pass a number from 0 on")
    return value


def _spectral(norm: str) -> bool:
    if norm not in ("fro", "spectral"):
        raise ValueError(f"norm is {norm!r}: choose one of fro, spectral")
    return norm == "spectral"


def stacked(xp: Any, data: Any, starts: np.ndarray, sizes: np.ndarray) -> list[Any]:
    """Return square tiles that begin at these places of a flat array, those of one size in one array."""
    made = []
    for size in np.unique(sizes).tolist():
        at = xp.asarray(starts[sizes == size])[:, None] + xp.arange(size * size)
        made.append(data[at].reshape(-1, size, size))
    return made


def _together(x: TileMatrix, y: TileMatrix) -> tuple[TileMatrix, TileMatrix]:
    """Return two matrices in the same parts, where one of them is in parts."""
    if x is y or not any(isinstance(one._data, Spread) for one in (x, y)):
        return x, y
    return (x, y._beside(x)) if isinstance(x._data, Spread) else (x._beside(y), y)


def _module(data: Any) -> Any:
    if isinstance(data.parts[0] if isinstance(data, Spread) else data, np.ndarray):
        return np
    import cupy

    return cupy


def _held(name: str, a: Any) -> Any:
    """Return an array whose integers, if it has any, float64 holds."""
    if a.dtype.kind in "iu" and a.dtype.itemsize > 4 and a.size and max(int(a.max()), -int(a.min())) > 2**53:
        raise _beyond(name)
    return a


def _beyond(name: str) -> ValueError:
    return ValueError(f"{name} has integers beyond 2**53, of which float64 does not hold all: convert it")


def _of_integers(name: str, a: Any) -> Any:
    """Return a sparse matrix of integers that float64 holds with those at one place summed, if it holds the sums."""
    a = a.astype(np.int64, copy=False)
    if a.nnz and int(abs(a.data).max()) * a.nnz >= 2**63:  # far less than that where few share a place
        most = canonical_csr(abs(a), np.float64).data.max()
        if most >= 2**62:
            raise _beyond(name)
    a = canonical_csr(a, np.int64)
    _held(name, a.data)
    return a


def partitions(shape: Any, rows: Any, columns: Any, hermitian: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where tile rows and tile columns begin, and the ends, of a partition as a caller gives it."""
    if columns is None and np.ndim(rows) and shape[0] != shape[1]:
        raise ValueError("rows has the rows of each tile, and the matrix is not square: pass columns as well")
    down = offsets("rows", shape[0], rows)
    across = offsets("columns", shape[1], rows if columns is None else columns)
    if hermitian and not np.array_equal(down, across):
        raise ValueError("a Hermitian matrix is square, with one partition of rows and columns")
    return down, across


def checked_permutation(permutation: Any, shape: Any) -> np.ndarray | None:
    """Return an order of the rows of a square matrix as a caller gives it."""
    if permutation is None:
        return None
    order = host_array("permutation", permutation)
    if shape[0] != shape[1] or order.ndim != 1 or not np.array_equal(np.sort(order), np.arange(shape[0])):
        raise ValueError(f"permutation is no order of the {shape[0]} rows of a square matrix: name each row once")
    return read_only(order.astype(np.int64))  # one matrix hands it on to the next


def given_order(xp: Any, a: Any, permutation: Any) -> Any:
    """Return a dense matrix, as it is stored, in the order of the given one."""
    if permutation is None:
        return a
    order, out = xp.asarray(permutation), xp.empty(a.shape, a.dtype)
    out[order[:, None], order] = a
    return out


def _require_one_order(x: TileMatrix, y: TileMatrix) -> None:
    same = x.permutation is y.permutation or (
        x.permutation is not None and y.permutation is not None and np.array_equal(x.permutation, y.permutation)
    )
    if not same:
        raise ValueError("the two matrices are stored in different orders: use .permuted on one of them")
    if x._xp is not y._xp:
        raise ValueError("one of the matrices is on a GPU and the other is not: use .to_device() or .to_host()")
