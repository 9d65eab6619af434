"""The code that a GPU runs, on arrays that stand in for CuPy's: they refuse to be mixed with NumPy's, as those do."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spectile
from spectile.density import exp
from spectile.tiles import TileMatrix, matrix
from spectile.tiles.cuda import grid as grid_kernels
from spectile.tiles.cuda import launch
from tests.grid_kernels import GridKernels


class DeviceArray(np.ndarray):
    """An array that NumPy's functions take together with others of its kind alone."""

    device = SimpleNamespace(id=0)

    def get(self) -> np.ndarray:
        """Return a copy on the host."""
        return np.array(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        for value in inputs:
            if type(value) is np.ndarray and value.ndim:
                raise TypeError(f"{ufunc.__name__}: Unsupported type <class 'numpy.ndarray'>")
        plain = [value.view(np.ndarray) if isinstance(value, DeviceArray) else value for value in inputs]
        out = keywords.pop("out", None)
        result = getattr(ufunc, method)(*plain, **keywords)
        if out is not None:
            out[0].view(np.ndarray)[...] = result
            return out[0]
        return _wrapped(result)

    def __getitem__(self, index: Any) -> Any:
        return _wrapped(super().__getitem__(_checked(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(value) is np.ndarray:
            raise TypeError("an array of the host is assigned")
        super().__setitem__(_checked(index), value)


def _checked(index: Any) -> Any:
    for part in index if isinstance(index, tuple) else (index,):
        if type(part) is np.ndarray:
            raise TypeError("an array of the host is an index")
    return index


def _wrapped(result: Any) -> Any:
    return np.asarray(result).view(DeviceArray) if isinstance(result, np.ndarray | np.generic) else result


def _on_device(name: str) -> Any:
    function = getattr(np, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        plain = []
        for value in arguments:
            if name != "asarray" and type(value) is np.ndarray and value.ndim:
                raise TypeError(f"{name}: Unsupported type <class 'numpy.ndarray'>")
            plain.append(value.view(np.ndarray) if isinstance(value, DeviceArray) else value)
        if name in ("concatenate", "stack"):
            plain[0] = [part.view(np.ndarray) for part in plain[0]]
        return _wrapped(function(*plain, **keywords))

    return call


class InPlaceOfKernels:
    """What the kernels do, in NumPy."""

    @staticmethod
    def tiles(data: Any, starts: Any, sizes: Any) -> list[Any]:
        """Return views of tiles."""
        data, starts = np.asarray(data).view(np.ndarray), np.asarray(starts).view(np.ndarray)
        return [data[at : at + np.prod(size)].reshape(size) for at, size in zip(starts, sizes, strict=False)]

    def of(self, data: Any, places: Any) -> list[Any]:
        """Return views of all tiles."""
        return self.tiles(data, places.starts, list(zip(places.heights, places.widths, strict=True)))

    def norms(self, data: Any, places: Any) -> Any:
        """Return the norms, of entries whose squares float64 holds."""
        with np.errstate(all="ignore"):
            found = [np.linalg.norm(tile.astype("c16")) for tile in self.of(data, places)]
        return _wrapped(np.array(found, np.float64))

    def line_sums(self, data: Any, places: Any, first_rows: Any, first_columns: Any, rows: int, columns: int) -> Any:
        """Return the sums over lines."""
        sums = [[np.abs(tile.astype("c16")).sum(axis) for tile in self.of(data, places)] for axis in (1, 0)]
        found = [np.concatenate([np.zeros(0), *one]) for one in sums]
        assert (len(found[0]), len(found[1])) == (rows, columns)
        return [_wrapped(one) for one in found]

    def largest_line_sums(self, data: Any, places: Any) -> Any:
        """Return the largest of them."""
        found = [[np.abs(tile.astype("c16")).sum(axis).max() for axis in (1, 0)] for tile in self.of(data, places)]
        return _wrapped(np.array(found))

    def gather(self, given: Any, sources: Any, flipped: Any, places: Any, size: int) -> Any:
        """Return copies."""
        out = np.empty(size, given.dtype)
        for at, turned, to in zip(sources, flipped, self.of(out, places), strict=True):
            tile = self.tiles(given, [at], [to.shape[::-1] if turned else to.shape])[0]
            to[...] = tile.conj().T if turned else tile
        return _wrapped(out)

    def add(self, given: Any, places: Any, targets: Any, out: Any) -> None:
        """Add tiles."""
        given_tiles = self.of(given, places)
        for tile, to in zip(given_tiles, self.tiles(out, targets, [tile.shape for tile in given_tiles]), strict=True):
            to += tile

    def dots(self, x: Any, at_x: Any, y: Any, at_y: Any, sizes: Any) -> Any:
        """Return the inner products."""
        pairs = zip(
            *(self.tiles(one, at, [(size,) for size in sizes]) for one, at in ((x, at_x), (y, at_y))), strict=True
        )
        found = [np.vdot(left.astype("c16"), right) for left, right in pairs]
        return _wrapped(np.array([(one.real, one.imag) for one in found]).reshape(-1, 2))

    def multiply(
        self, a: Any, in_a: Any, b: Any, in_b: Any, pointer: Any, left: Any, right: Any, c: Any, in_c: Any, largest: Any
    ) -> None:  # fmt: skip
        """Write the sums of products."""
        of_a, of_b = self.of(a, in_a), self.of(b, in_b)
        for t, to in enumerate(self.of(c, in_c)):
            assert to.shape[0] <= largest[0] and to.shape[1] <= largest[1]
            listed = range(pointer[t], pointer[t + 1])
            to[...] = sum((of_a[left[p]] @ of_b[right[p]] for p in listed), np.zeros_like(to))

    @staticmethod
    def left_out(maps: Any, taus: Any) -> Any:
        """Return the sums of small products of norms."""
        triples = maps.a.view(np.ndarray)[:, :, None] * maps.b.view(np.ndarray)
        return _wrapped(np.array([np.where(triples < tau, triples, 0).sum(axis=1) for tau in taus]))

    @staticmethod
    def kept(maps: Any, sizes: Any, tau: float, upper: bool) -> Any:
        """Return counts, sums and terms of the other ones."""
        triples = maps.a.view(np.ndarray)[:, :, None] * maps.b.view(np.ndarray)
        kept = (triples > 0) & (triples >= tau)
        kept &= np.triu(np.ones(kept.shape[::2], bool))[:, None] if upper else True
        found = kept.sum(axis=1), np.where(kept, triples, 0).sum(axis=1), (kept * sizes[:, None]).sum(axis=1)
        return [_wrapped(one) for one in found]

    @staticmethod
    def listed(maps: Any, tau: float, places: Any, pointer: Any, products: int) -> Any:
        """Return the tiles."""
        norms_a, norms_b, numbers_a, numbers_b = (one.view(np.ndarray) for one in maps)
        pairs = []
        for place in places.view(np.ndarray):
            i, j = divmod(place, norms_b.shape[1])
            both = norms_a[i] * norms_b[:, j]
            pairs += [(numbers_a[i, k], numbers_b[k, j]) for k in np.flatnonzero((both > 0) & (both >= tau))]
        assert len(pairs) == products
        return _wrapped(np.array(pairs, np.int32).reshape(-1, 2)).T


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = (
        "arange", "asarray", "concatenate", "cumsum", "empty", "exp", "eye", "fill_diagonal", "flatnonzero", "log",
        "minimum", "ones", "searchsorted", "sqrt", "stack", "where", "zeros",
    )  # fmt: skip
    module = SimpleNamespace(**{name: _on_device(name) for name in names}, ndarray=DeviceArray)
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0, memGetInfo=lambda: (2**30, 2**31)))
    module.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 0)
    module.linalg = SimpleNamespace(cholesky=lambda a: np.linalg.cholesky(a.view(np.ndarray)))
    places = GridKernels(_wrapped)
    for name in (name for name in dir(places) if not name.startswith("_") and name != "wrapped"):
        monkeypatch.setattr(grid_kernels, name, getattr(places, name))
    kernels = InPlaceOfKernels()
    names = "norms", "line_sums", "largest_line_sums", "gather", "add", "dots", "multiply", "left_out", "kept", "listed"
    for name in names:
        monkeypatch.setattr(launch, name, getattr(kernels, name))
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(errstate=lambda **_: contextlib.nullcontext()))
    monkeypatch.setattr(matrix, "_module", lambda data: module if isinstance(data, DeviceArray) else np)
    return module


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("hermitian", [True, False])
def test_operations_are_those_of_the_host(cupy: Any, dtype: str, hermitian: bool) -> None:
    rng = np.random.default_rng(1)
    i = np.arange(40)
    a = rng.normal(size=(40, 40)) * np.exp(-np.abs(i[:, None] - i) / 3)
    a = (a + 1j * a[::-1] if dtype == "complex64" else a).astype(dtype)
    a = (a + a.conj().T) / 2 if hermitian else a
    rows = [7, 5, 7, 9, 7, 5]
    host = TileMatrix.from_dense(a, rows, hermitian=hermitian, atol=1e-3)
    there = host.to_device()
    tolerance = 1e-4 if dtype == "complex64" else 1e-12

    def same(x: TileMatrix, y: TileMatrix) -> None:
        assert isinstance(x.data, DeviceArray) and np.array_equal(x.indices, y.indices)
        np.testing.assert_allclose(x.to_host().to_dense(), y.to_dense(), rtol=0, atol=tolerance)
        np.testing.assert_allclose(x.norms, y.norms, rtol=tolerance)
        np.testing.assert_allclose(x.error, y.error, rtol=1e-2)

    for operation in (
        lambda x: x @ x,
        lambda x: x + x.truncate(1e-2),
        lambda x: -2.0 * x,
        lambda x: x.T,
        lambda x: x.H,
        lambda x: x.whole(),
        lambda x: x.hermitian_part(),
        lambda x: x.shifted(3.0),
        lambda x: x.truncate(1e-1, "spectral"),
        lambda x: x.permuted(np.arange(40)[::-1]),
        lambda x: x.astype("complex128"),
    ):
        same(operation(there), operation(host))
    # What is left out is searched in another way there.
    for words in ({"atol": 1e-2}, {"rtol": 1e-3, "norm": "spectral"}):
        x, y = there.square(**words), host.square(**words)
        assert 0.3 * y.products < x.products < 3 * y.products
        difference = np.linalg.norm(x.to_host().to_dense() - y.to_dense())
        assert difference <= x.error.fro + y.error.fro and x.error.fro < 3 * y.error.fro
    np.testing.assert_allclose(there.to_dense().get(), host.to_dense(), atol=tolerance)
    np.testing.assert_allclose(there.to_csr().toarray(), host.to_csr().toarray(), atol=tolerance)
    assert abs(there.trace() - host.trace()) < tolerance and abs(there.dot(there) - host.dot(host)) < 10 * tolerance
    assert abs(there.norm("spectral") - host.norm("spectral")) < 1e-4 and "on GPU 0" in repr(there)
    if hermitian:
        np.testing.assert_allclose(there.eigenvalue_bounds(), host.eigenvalue_bounds(), rtol=1e-6)
    with pytest.raises(ValueError, match="on a GPU"):
        there + host
    with pytest.raises(TypeError, match="the tiles are on a GPU"):
        np.asarray(there)


def test_functions_run_where_the_matrix_is(cupy: Any) -> None:
    i = np.arange(30)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * (np.eye(30, k=1) + np.eye(30, k=-1))
    host = TileMatrix.from_dense(h, 6, hermitian=True)
    there = host.to_device()
    for words in ({"electrons": 15}, {"mu": 0.0}, {"electrons": 15, "beta": 2.0}, {"electrons": 30}):
        x, y = (spectile.density_matrix(one, error=1e-4, method="sp2", **words) for one in (there, host))
        assert isinstance(x.matrix.data, DeviceArray)
        assert np.linalg.norm(x.matrix.to_host().to_dense() - y.matrix.to_dense()) <= x.error + y.error
        assert abs(x.energy - y.energy) <= x.energy_error + y.energy_error
    s = TileMatrix.from_dense(np.eye(30) + 0.1 * (np.eye(30, k=1) + np.eye(30, k=-1)), 6, hermitian=True)
    x, y = (
        spectile.density_matrix(*pair, electrons=15, error=1e-4, method="sp2")
        for pair in ((there, s.to_device()), (host, s))
    )
    assert np.linalg.norm(x.matrix.to_host().to_dense() - y.matrix.to_dense()) <= x.error + y.error
    assert isinstance(exp(there).data, DeviceArray)
