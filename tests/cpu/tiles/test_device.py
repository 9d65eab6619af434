"""The code that a GPU runs, on arrays that stand in for CuPy's: they refuse to be mixed with NumPy's, as those do."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spectile
from spectile.density import api as density_api
from spectile.density import exp, projector
from spectile.tiles import TileMatrix, matrix, product, spread
from spectile.tiles.cuda import grid as grid_kernels
from spectile.tiles.cuda import launch
from spectile.tiles.spread import Spread
from tests.grid_kernels import GridKernels


class Device:
    """A device, and CuPy's context of it."""

    current: Device

    def __init__(self, index: int | None = None) -> None:
        self.id, self._before = Device.current.id if index is None else index, []

    def __enter__(self) -> None:
        self._before.append(Device.current)
        Device.current = self

    def __exit__(self, *_: Any) -> None:
        Device.current = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


Device.current = Device(0)


class DeviceArray(np.ndarray):
    """An array that NumPy's functions take together with others of its kind alone."""

    def __array_finalize__(self, given: Any) -> None:
        """Lie on the device of what it is a view of, or on the current one."""
        self._device = getattr(given, "_device", Device.current)

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self._device

    def copy(self, order: Any = None) -> DeviceArray:
        """Return a copy on the current device."""
        return _wrapped(np.array(self))

    def get(self) -> np.ndarray:
        """Return a copy on the host."""
        return np.array(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        for value in inputs:
            if type(value) is np.ndarray and value.ndim:
                raise TypeError(f"{ufunc.__name__}: Unsupported type <class 'numpy.ndarray'>")
        _require_here(*inputs)
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


def _require_here(*arrays: Any) -> None:
    for array in arrays:
        assert not isinstance(array, DeviceArray) or array.device == Device.current, "an array of another device"


def _wrapped(result: Any) -> Any:
    return np.asarray(result).view(DeviceArray) if isinstance(result, np.ndarray | np.generic) else result


def _on_device(name: str) -> Any:
    function = getattr(np, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        plain = []
        for value in arguments:
            if name not in ("asarray", "array"):
                _require_here(*(value if isinstance(value, list | tuple) else [value]))
            if name not in ("asarray", "array") and type(value) is np.ndarray and value.ndim:
                raise TypeError(f"{name}: Unsupported type <class 'numpy.ndarray'>")
            plain.append(value.view(np.ndarray) if isinstance(value, DeviceArray) else value)
        if name in ("concatenate", "stack"):
            plain[0] = [part.view(np.ndarray) for part in plain[0]]
        return _wrapped(function(*plain, **keywords))

    return call


class InPlaceOfKernels:
    """What the kernels do, in NumPy."""

    @staticmethod
    def tiles(data: Any, starts: Any, sizes: Any, pitch: int = 0) -> list[Any]:
        """Return views of tiles, whose rows begin `pitch` apart."""
        data, starts = np.asarray(data).view(np.ndarray), np.asarray(starts).view(np.ndarray)

        def view(at: int, size: Any) -> Any:
            strides = [(pitch or size[-1]) * data.itemsize] * (len(size) - 1) + [data.itemsize]
            return np.lib.stride_tricks.as_strided(data[at:], size, strides)

        return [view(at, size) for at, size in zip(starts, sizes, strict=False)]

    def of(self, data: Any, places: Any, pitch: int = 0) -> list[Any]:
        """Return views of all tiles."""
        return self.tiles(data, places.starts, list(zip(places.heights, places.widths, strict=True)), pitch)

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

    def gather(
        self, given: Any, sources: Any, flipped: Any, places: Any, out: Any, pitches: tuple[int, int] = (0, 0)
    ) -> None:
        """Make copies."""
        for at, turned, to in zip(sources, flipped, self.of(out, places, pitches[1]), strict=True):
            tile = self.tiles(given, [at], [to.shape[::-1] if turned else to.shape], pitches[0])[0]
            to[...] = tile.conj().T if turned else tile

    def add(self, factor: Any, given: Any, places: Any, targets: Any, out: Any) -> None:
        """Add multiples of tiles."""
        given_tiles = self.of(given, places)
        for tile, to in zip(given_tiles, self.tiles(out, targets, [tile.shape for tile in given_tiles]), strict=True):
            to += factor * tile

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
    def residuals(*given: Any) -> Any:
        """Return how far rows are from eigenvectors."""
        values, vectors, image, gram = (np.asarray(one).view(np.ndarray) for one in given)
        off = image - values[:, None] * vectors, gram - np.eye(len(gram))
        return _wrapped(np.stack([values, *((np.abs(one) ** 2).sum(axis=1) for one in off)]))

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
    def listed(maps: Any, tau: float, places: Any, pointer: Any, first: int, last: int) -> Any:
        """Return the tiles."""
        norms_a, norms_b, numbers_a, numbers_b = (one.view(np.ndarray) for one in maps)
        pairs = []
        for place in places.view(np.ndarray)[first:last]:
            i, j = divmod(place, norms_b.shape[1])
            both = norms_a[i] * norms_b[:, j]
            pairs += [(numbers_a[i, k], numbers_b[k, j]) for k in np.flatnonzero((both > 0) & (both >= tau))]
        assert len(pairs) == pointer[last] - pointer[first]
        return pointer[first : last + 1] - pointer[first], *_wrapped(np.array(pairs, np.int32).reshape(-1, 2)).T


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    # Whether devices read one another's memory.
    peers = "peers" not in request.fixturenames or request.getfixturevalue("peers")
    names = (
        "arange", "array", "asarray", "concatenate", "cumsum", "empty", "exp", "eye", "fill_diagonal", "flatnonzero",
        "log", "minimum", "ones", "searchsorted", "sqrt", "stack", "triu", "where", "zeros",
    )  # fmt: skip
    module = SimpleNamespace(**{name: _on_device(name) for name in names}, ndarray=DeviceArray)
    runtime = SimpleNamespace(
        getDevice=lambda: Device.current.id, getDeviceCount=lambda: 2, memGetInfo=lambda: (2**30, 2**31),
        deviceCanAccessPeer=lambda *_: peers, _deviceEnsurePeerAccess=lambda _: None,
    )  # fmt: skip
    stream = SimpleNamespace(record=lambda: None, wait_event=lambda _: None)
    module.cuda = SimpleNamespace(runtime=runtime, Device=Device, get_current_stream=lambda: stream)
    module.get_default_memory_pool = lambda: SimpleNamespace(
        free_bytes=lambda: 0, used_bytes=lambda: 0, get_limit=lambda: 0
    )
    places = GridKernels(_wrapped)
    for name in (name for name in dir(places) if not name.startswith("_") and name != "wrapped"):
        monkeypatch.setattr(grid_kernels, name, getattr(places, name))
    kernels = InPlaceOfKernels()
    names = "norms", "line_sums", "largest_line_sums", "gather", "add", "dots", "multiply", "left_out", "kept", "listed"
    for name in (*names, "residuals"):
        monkeypatch.setattr(launch, name, _here(name, getattr(kernels, name), peers))
    monkeypatch.setitem(sys.modules, "cupy", module)

    def module_of(data: Any) -> Any:
        first = data.parts[0] if isinstance(data, Spread) else data
        return module if isinstance(first, DeviceArray) else np

    monkeypatch.setattr(matrix, "_module", module_of)
    for one in (matrix, density_api):
        monkeypatch.setattr(one, "require_device", lambda instead: None)
    monkeypatch.setattr(projector, "eigvalsh", lambda a, **_: _wrapped(np.linalg.eigvalsh(a.view(np.ndarray))))
    spread._connected.cache_clear()
    return module


def _here(name: str, kernel: Any, peers: bool) -> Any:
    """Return what stands for a kernel, which is given arrays of the current device alone, but for those it reads."""

    def call(*given: Any) -> Any:
        reads_others = name == "gather" and peers
        _require_here(*(x for one in given[reads_others:] for x in (one if isinstance(one, tuple) else [one])))
        return kernel(*given)

    return call


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


def test_long_lists_of_products_are_made_in_pieces(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = TileMatrix.from_dense(np.random.default_rng(3).normal(size=(40, 40)), [7, 5, 7, 9, 7, 5]).to_device()
    whole = x @ x
    for most in (1, 7, 50):
        monkeypatch.setattr(product, "_LISTED", most)
        np.testing.assert_array_equal((x @ x).data.view(np.ndarray), whole.data.view(np.ndarray))


def test_functions_run_where_the_matrix_is(cupy: Any) -> None:
    i = np.arange(30)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * (np.eye(30, k=1) + np.eye(30, k=-1))
    host = TileMatrix.from_dense(h, 6, hermitian=True)
    there = host.to_device()
    for words in ({"electrons": 15}, {"mu": 0.0}, {"electrons": 15, "beta": 2.0}, {"electrons": 30}):
        method = {} if "beta" in words else {"method": "sp2"}
        x, y = (spectile.density_matrix(one, error=1e-4, **method, **words) for one in (there, host))
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


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_several_devices_share_a_matrix(cupy: Any, peers: bool, dtype: str) -> None:
    rng = np.random.default_rng(2)
    i = np.arange(40)
    a = (rng.normal(size=(40, 40)) * np.exp(-np.abs(i[:, None] - i) / 3)).astype(dtype)
    tolerance = 1e-4 if dtype == "complex64" else 1e-12
    host = TileMatrix.from_dense(a + a.conj().T, [7, 5, 7, 9, 7, 5], hermitian=True, atol=1e-3)
    there = host.to_devices([1, 0])
    assert [part.device.id for part in there.data.parts] == [1, 0] and "on GPUs 1, 0" in repr(there)
    other = TileMatrix.from_dense(a, np.diff(host.rows))
    for operation in (
        lambda x, y: x @ x,
        lambda x, y: x.square(),
        lambda x, y: x @ y,
        lambda x, y: x + y,
        lambda x, y: y.H @ x,
        lambda x, y: x.shifted(3.0).truncate(1e-1, "spectral"),
        lambda x, y: x.permuted(np.arange(40)[::-1]),
        lambda x, y: x.astype("complex128"),
    ):
        x, y = operation(there, other.to_device()), operation(host, other)
        assert [part.device.id for part in x.data.parts] == [1, 0]
        np.testing.assert_allclose(x.to_host().to_dense(), y.to_dense(), rtol=0, atol=tolerance)
        np.testing.assert_allclose(x.to_dense().get(), y.to_dense(), rtol=0, atol=tolerance)
        np.testing.assert_allclose(x.error, y.error, rtol=1e-2)
    assert abs(there.dot(there) - host.dot(host)) < 10 * tolerance
    assert isinstance(there.to_device().data, DeviceArray)
    assert Device.current.id == 0


@pytest.mark.parametrize("devices", [2, [1]])
@pytest.mark.parametrize("peers", [True, False])
def test_density_matrices_of_several_devices_keep_their_error(cupy: Any, peers: bool, devices: Any) -> None:
    i = np.arange(48)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * (np.eye(48, k=1) + np.eye(48, k=-1))
    s = np.eye(48) + 0.1 * (np.eye(48, k=1) + np.eye(48, k=-1))
    for overlap, words in ((None, {"electrons": 24}), (s, {"electrons": 24}), (None, {"mu": 0.0, "beta": 2.0})):
        words = words if "beta" in words else {**words, "method": "sp2"}
        wanted = spectile.density_matrix(h, overlap, error=1e-6, block=6, **words)
        found = spectile.density_matrix(h, overlap, error=1e-4, block=6, devices=devices, **words)
        assert len(found.matrix.data.parts) == (2 if devices == 2 else 1)
        assert np.linalg.norm(found.matrix.to_host().to_dense() - wanted.matrix.to_dense()) <= found.error + 1e-6
        assert abs(found.energy - wanted.energy) <= found.energy_error + wanted.energy_error
        again = spectile.density_matrix(h, overlap, error=1e-4, block=6, devices=devices, start=found, **words)
        assert abs(again.energy - wanted.energy) <= again.energy_error + wanted.energy_error
