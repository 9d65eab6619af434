"""The kernels' text on the host, through the code that launches them, against what they do in NumPy."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.tiles import TileMatrix, cuda, product
from spectile.tiles.cuda import launch
from spectile.tiles.cuda.launch import Places
from spectile.tiles.layout import Layout

from ...on_host import host_library
from .test_device import InPlaceOfKernels

FOLDERS = Path(__file__).parents[1] / "nearsparse/on_host", Path(cuda.__file__).parent
SOURCE = """
#include "ptx.cuh"
using std::isinf;
static HostIndex blockDim;

// C += A (16 x 8) B (8 x 8), each lane with what the matrix units want of it.
void mma_f64(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
  double x[4][32], y[2][32];
  for (int e = 0; e < 4; ++e) for (int lane = 0; lane < 32; ++lane) x[e][lane] = 0;
  for (int e = 0; e < 4; ++e) {
    const unsigned long long* all = of_all_lanes(bits_as<unsigned long long>(a[e]));
    for (int lane = 0; lane < 32; ++lane) x[e][lane] = bits_as<double>(all[lane]);
  }
  for (int e = 0; e < 2; ++e) {
    const unsigned long long* all = of_all_lanes(bits_as<unsigned long long>(b[e]));
    for (int lane = 0; lane < 32; ++lane) y[e][lane] = bits_as<double>(all[lane]);
  }
  const int lane = threadIdx.x % 32;
  for (int e = 0; e < 4; ++e)
    for (int p = 0; p < 8; ++p)
      c[e] += x[e / 2 + p / 4 * 2][lane / 4 * 4 + p % 4] * y[p / 4][(lane % 4 * 2 + e % 2) * 4 + p % 4];
}

#include "SOURCE"

template <typename... A, size_t... I>
int call(void (*kernel)(A...), void** given, std::index_sequence<I...>, unsigned grid, unsigned threads) {
  blockDim.x = threads;
  return launch([=] { kernel(*static_cast<std::remove_reference_t<A>*>(given[I])...); }, grid, threads, 0);
}
template <typename... A>
int call(void (*kernel)(A...), void** given, unsigned grid, unsigned threads, int count) {
  return count == sizeof...(A) ? call(kernel, given, std::index_sequence_for<A...>(), grid, threads) : -1;
}
"""
NAMES = {
    "tiles.cu": ("norms", "line_sums", "gather", "add", "dots", "residuals"),
    "product.cu": ("multiply",),
    "search.cu": ("left_out", "kept", "list"),
}


class Plain(np.ndarray):
    """An array of the host that stands in for one of a GPU."""

    def get(self) -> np.ndarray:
        """Return a copy."""
        return np.array(self)


@pytest.fixture(scope="module")
def libraries() -> dict[Any, Any]:
    return {}


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch, libraries: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let launches compile kernels for the host and run them there."""

    def kernel(unit: Any, name: str) -> Any:
        if unit not in libraries:
            (source,) = unit.sources
            entries = "".join(
                f'extern "C" int run_{one}(void** given, unsigned grid, unsigned threads, int count) '
                f"{{ return call({one}, given, grid, threads, count); }}\n"
                for one in NAMES[source]
            )
            flags = [f"-D{key}={value}" for key, value in unit.defines.items()]
            folders = [f"-I{path}" for path in FOLDERS]
            stem = tmp_path_factory.mktemp("tiles") / "kernels"
            text = SOURCE.replace("SOURCE", source) + entries
            libraries[unit] = host_library(stem, text, "-std=c++17", "-w", *flags, *folders)

        def run(shape: Any, *arguments: Any) -> None:
            held = [np.array(one.ctypes.data) if one.ndim else np.array(one) for one in map(np.asarray, arguments)]
            pointers = (ctypes.c_void_p * len(held))(*(one.ctypes.data for one in held))
            assert getattr(libraries[unit], f"run_{name}")(pointers, *shape.grid, shape.threads, len(held)) == 1

        return run

    monkeypatch.setattr(launch, "kernel", kernel)
    monkeypatch.setattr(launch, "require_here", lambda name, array: None)
    names = "arange", "asarray", "ascontiguousarray", "argsort", "cumsum", "diff", "flatnonzero", "zeros"
    module = SimpleNamespace(**{name: _plain(getattr(np, name)) for name in names})
    module.empty = lambda shape, dtype=float: np.full(shape, 7, dtype).view(Plain)
    monkeypatch.setitem(sys.modules, "cupy", module)


def _plain(function: Any) -> Any:
    return lambda *arguments, **keywords: np.asarray(function(*arguments, **keywords)).view(Plain)


def _places(layout: Layout) -> Places:
    return Places(layout.starts, layout.heights.astype(np.int32), layout.widths.astype(np.int32))


def _matrix(dtype: str, rows: Any, columns: Any, share: float, seed: int) -> TileMatrix:
    rng = np.random.default_rng(seed)

    def tile(i: int, j: int) -> Any:
        entries = rng.normal(size=(rows[i], columns[j]))
        return (entries + 1j * rng.normal(size=entries.shape) if np.dtype(dtype).kind == "c" else entries).astype(dtype)

    grid = np.argwhere(rng.random((len(rows), len(columns))) < share)
    return TileMatrix.from_tiles(tile, map(tuple, grid.tolist()), rows, columns, dtype=dtype)


DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_kernel_does_what_numpy_does(on_host: None, dtype: str) -> None:
    wanted = InPlaceOfKernels()
    x = _matrix(dtype, [1, 7, 40], [33, 5, 8], 0.9, 1)
    layout, places, data = x.layout, _places(x.layout), x.data
    np.testing.assert_allclose(launch.norms(data, places), wanted.norms(data, places).get(), rtol=1e-13)
    firsts = [np.cumsum(size) - size for size in (layout.heights, layout.widths)]
    counts = int(layout.heights.sum()), int(layout.widths.sum())
    for found, exact in zip(
        launch.line_sums(data, places, *firsts, *counts), wanted.line_sums(data, places, *firsts, *counts), strict=True
    ):
        np.testing.assert_allclose(found, exact.get(), rtol=1e-13)
    tile_sums = [[np.abs(tile.astype("c16")).sum(axis).max() for axis in (1, 0)] for tile in wanted.of(data, places)]
    np.testing.assert_allclose(launch.largest_line_sums(data, places), tile_sums, rtol=1e-13)

    some = np.arange(len(x.norms))[::-2]
    turned = np.arange(len(some)) % 2 == 0
    heights, widths = layout.heights[some], layout.widths[some]
    sizes = np.where(turned, widths, heights), np.where(turned, heights, widths)
    starts = np.concatenate([[0], np.cumsum(sizes[0] * sizes[1])])
    taken = layout.starts[some], turned, Places(starts, *(size.astype(np.int32) for size in sizes))
    out, exact = (np.zeros_like(data, shape=int(starts[-1])) for _ in range(2))
    launch.gather(data, *taken, out)
    wanted.gather(data, *taken, exact)
    np.testing.assert_array_equal(out, exact)
    dense, pitch = x.to_dense(), x.shape[1]
    np.testing.assert_array_equal(dense[1:8, 33:38], wanted.of(data, places)[list(layout.keys).index(4)])
    for turn in (False, True):  # from a dense matrix, as they are and turned, and back
        turned = np.full(len(x.norms), turn)
        sizes = (layout.widths, layout.heights) if turn else (layout.heights, layout.widths)
        at = Places(layout.starts, *(size.astype(np.int32) for size in sizes))
        launch.gather(dense.ravel(), layout.in_dense(), turned, at, out := np.zeros_like(data), (pitch, 0))
        wanted.gather(data, layout.starts[:-1], turned, at, exact := np.zeros_like(data))
        np.testing.assert_array_equal(out, exact)
        back = Places(layout.in_dense(), places.heights, places.widths)
        launch.gather(out, layout.starts[:-1], turned, back, again := np.zeros_like(dense.ravel()), (0, pitch))
        np.testing.assert_array_equal(again.reshape(dense.shape), dense)

    target = np.concatenate([data, data[::-1]])
    out, exact = target.copy(), target.copy()
    factor = data.dtype.type(-0.7 + 0.3j if data.dtype.kind == "c" else -0.7)
    launch.add(factor, data, places, layout.starts[:-1] + len(data), out)
    wanted.add(factor, data, places, layout.starts[:-1] + len(data), exact)
    np.testing.assert_allclose(out, exact, rtol=0, atol=4 * np.finfo(data.dtype).eps * abs(exact).max())

    pairs = data, layout.starts[some], target[3:].copy(), layout.starts[some], heights * widths
    np.testing.assert_allclose(launch.dots(*pairs), wanted.dots(*pairs).get(), atol=1e-12)

    image, vectors = dense[:, :40], dense[:, 3:43]  # parts, whose rows do not follow one another
    rows = np.arange(3.0, 51.0), vectors, image, vectors @ vectors.conj().T
    np.testing.assert_allclose(launch.residuals(*rows), wanted.residuals(*rows).get(), rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner", "columns"), [([24], [24, 24], [24]), ([1, 17, 40], [5, 33, 9], [7, 36, 8])])
def test_products_follow_the_lists(on_host: None, dtype: str, rows: Any, inner: Any, columns: Any) -> None:
    a, b = _matrix(dtype, rows, inner, 0.8, 2), _matrix(dtype, inner, columns, 0.8, 3)
    left, right = (product.Factor(x.layout, x.norms) for x in (a, b))
    lists = product.Skipping(left, right, False).lists(1e-4, False, dtype)
    exact = product.multiply(np, a.data, b.data, a.layout, b.layout, lists, np.dtype(dtype))
    c = np.full_like(exact, np.nan)
    largest, listed = (
        (int(lists.layout.heights.max()), int(lists.layout.widths.max())),
        lists.between(0, len(lists.pointer) - 1),
    )
    places = [_places(layout) for layout in (a.layout, b.layout, lists.layout)]
    launch.multiply(a.data, places[0], b.data, places[1], *listed, c, places[2], largest)
    np.testing.assert_allclose(c, exact, rtol=0, atol=1e-4 if dtype in ("float32", "complex64") else 1e-12)


def test_many_products_of_a_tile_and_none(on_host: None) -> None:
    """More than a warp reads at a time."""
    a, b = _matrix("float64", [3], [2] * 70, 1.0, 4), _matrix("float64", [2] * 70, [9], 1.0, 5)
    left, right = (product.Factor(x.layout, x.norms) for x in (a, b))
    lists = product.Skipping(left, right, False).lists(0.0, False, "float64")
    assert lists.products == 70
    c = np.full(27, np.nan)
    places = [_places(layout) for layout in (a.layout, b.layout, lists.layout)]
    launch.multiply(a.data, places[0], b.data, places[1], *lists.between(0, 1), c, places[2], (3, 9))
    np.testing.assert_allclose(c.reshape(3, 9), a.to_dense() @ b.to_dense(), atol=1e-12)
    none = np.zeros(0, np.int32)
    launch.multiply(a.data, places[0], b.data, places[1], np.zeros(1, np.int64), none, none, c[:0], places[2], (0, 0))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_norms_of_small_tiles_beside_large_ones(on_host: None, dtype: str) -> None:
    """No norm has anything of another tile, over the whole range of float64, and NaN stays where it is."""
    rng = np.random.default_rng(5)
    sizes = np.array([1e0, 1e-9, 1e150, 1e-300, 1e300, 1e-160, 0.0, 1e-320, 1e160, 3.0])
    with np.errstate(all="ignore"):
        tiles = [
            (rng.normal(size=(4, 5)) * size * (1 + 1j if dtype == "complex128" else 1)).astype(dtype) for size in sizes
        ]
        exact = np.array([np.linalg.norm(tile / size) for tile, size in zip(tiles, sizes, strict=True)])
    data = np.concatenate([tile.reshape(-1) for tile in tiles])
    places = Places(np.arange(11) * 20, *(np.full(10, size, np.int32) for size in (4, 5)))
    found = launch.norms(data, places)
    normal = sizes > 1e-307
    np.testing.assert_allclose(found[normal] / sizes[normal], exact[normal], rtol=1e-13)
    assert found[6] == 0 and 1e-321 < found[7] < 1e-318
    for value in (np.nan, np.inf, -np.inf):
        data[3 * 20 + 7] = value
        spoilt = launch.norms(data, places)
        assert np.flatnonzero(~np.isfinite(spoilt)).tolist() == [3]


@pytest.mark.parametrize(("seed", "upper"), [(0, False), (1, True)])
def test_a_search_of_maps_finds_what_the_host_finds(on_host: None, seed: int, upper: bool) -> None:
    rows, inner = [2, 3, 1, 4, 2], [3, 2] * 20
    columns = rows if upper else [1, 5, 2]
    a, b = _matrix("float64", rows, inner, 0.6, seed), _matrix("float64", inner, columns, 0.6, seed + 7)
    rng = np.random.default_rng(seed)
    left, right = (product.Factor(x.layout, x.norms * 10.0 ** rng.uniform(-9, 60, len(x.norms))) for x in (a, b))
    here, there = product.Skipping(left, right, False), product.MappedSkipping(left, right, False)
    maps = []
    for one in (left, right):
        maps.append(np.zeros(one.layout.grid))
        maps[-1].reshape(-1)[one.layout.keys] = one.norms
    for tau in (0.0, 1e30, 1e60, 1e100, np.inf):
        found, exact = there.lists(tau, upper, "float64"), here.lists(tau, upper, "float64")
        assert np.array_equal(found.layout.keys, exact.layout.keys) and found.layout.hermitian == upper
        np.testing.assert_array_equal(found.pointer, exact.pointer)
        tiles = len(exact.layout.indices)
        for first, last in ((0, tiles), (tiles // 3, tiles // 2)):
            for one, other in zip(found.between(first, last), exact.between(first, last), strict=True):
                np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(found.rounding, exact.rounding, rtol=1e-12)
        triples = maps[0][:, :, None] * maps[1]
        lost = np.where(triples < tau, triples, 0).sum(axis=1)
        norms = np.linalg.norm(lost), np.sqrt(lost.sum(0).max() * lost.sum(1).max())
        error = there.error(tau)
        np.testing.assert_allclose(error, (norms[0], min(norms)), rtol=1e-11)
        assert error.fro >= norms[0] and error.spectral >= min(norms) * (1 - 1e-13)
    for limit in (1e-5, 1e20, 1e55, 1e90, 1e121, 1e300):
        for spectral in (False, True):
            tau = product.threshold(there, limit, spectral)
            assert there.error(tau)[spectral] <= limit
            most = there.error(np.inf)[spectral]
            assert np.isinf(tau) if most <= limit else tau == 0 or there.error(1.03 * tau)[spectral] > 0.89 * limit


def test_maps_are_searched_where_few_of_their_places_are_zero(on_host: None) -> None:
    full, chain = _matrix("float64", [1] * 20, [1] * 20, 1.0, 0), TileMatrix.identity([1] * 200, hermitian=False)
    there = sys.modules["cupy"]
    for x, xp, kind in (
        (full, np, product.Skipping), (full, there, product.MappedSkipping), (chain, there, product.Skipping),
    ):  # fmt: skip
        factor = product.Factor(x.layout, x.norms)
        assert type(product.skipping(xp, factor, factor, False)) is kind
