"""Complex products as real ones of their parts: the kernels' source on the host, and the product of the valid tiles."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse.cuda import kernels, parts
from spectile.nearsparse.cuda.geometry import fill
from spectile_study.cases.spamm import reference

from ...on_host import host_library

# A block after another and a thread after another: entries are apart.
SOURCE = """
#include <cmath>
#include <cstring>
using std::hypot;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct Index { unsigned x; } static blockIdx, threadIdx, gridDim;
#include "complex.cu"
template <typename Run>
static void launch(unsigned blocks, Run run) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) run();
}
extern "C" void run_expand(const Expand* p, unsigned blocks) { launch(blocks, [p] { expand(*p); }); }
extern "C" void run_pair_norms(const PairNorms* p, unsigned blocks) { launch(blocks, [p] { pair_norms(*p); }); }
"""
BLOCK = 8


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, flags = tmp_path_factory.mktemp("complex"), ("-w", f"-I{Path(kernels.__file__).parent}")
    return {
        f"float{bits}": host_library(folder / str(bits), SOURCE, *flags, f"-DINPUT_BITS={bits}") for bits in (32, 64)
    }


def random(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_the_real_form_of_b(libraries: dict[str, Any], dtype: str, blocks: int) -> None:
    rng = np.random.default_rng(1)
    for wide, rows, columns in (((4, 7), 4, 7), ((9, 12), 5, 11), ((3, 6, 8), 6, 5), ((2, 1, 1), 1, 1)):
        b = random(rng, *wide).astype(dtype)[..., :rows, :columns]
        wanted = parts.expanded(b)
        found = np.full_like(wanted, np.nan)
        # What the launch has: strides in entries, 0 for a matrix that is no batch.
        places = {"b": b.ctypes.data, "out": found.ctypes.data, "leading": b.strides[-2] // b.itemsize}
        places["stride"] = b.strides[0] // b.itemsize if b.ndim == 3 else 0
        sizes = {"rows": rows, "columns": columns, "batches": len(b) if b.ndim == 3 else 1}
        p = fill(np.zeros((), parts.EXPAND), places | sizes)
        libraries[found.dtype.name].run_expand(ctypes.c_void_p(p.ctypes.data), blocks)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("shape", [(16, 24, 8), (9, 4, 5), (7, 21, 13), (1, 1, 1), (20, 12, 28)])
def test_the_real_product_of_the_valid_tiles_is_the_complex_one(
    libraries: dict[str, Any], shape: tuple[int, int, int], items: int
) -> None:
    rng = np.random.default_rng(3)
    m, k, n = shape
    a, b = random(rng, items, m, k), random(rng, items, k, n)
    a[:, : m // 2], b[..., n // 2 :] = 1e-3 * a[:, : m // 2], 1e-3 * b[..., n // 2 :]
    assert np.shares_memory(parts.real_view(a), a)
    real_a, real_b = parts.real_view(a), parts.expanded(b)
    maps_a = np.stack([reference.norm_map(x, BLOCK) for x in real_a])
    maps_b = np.stack([np.ascontiguousarray(reference.norm_map(x, BLOCK).T) for x in real_b])
    wanted = [np.stack([reference.norm_map(x, BLOCK) for x in one]) for one in (a, b)]
    tiles = [np.full(wanted[0].shape, np.nan), np.full(wanted[1].swapaxes(1, 2).shape, np.nan)]
    arrays = {"norms_a": maps_a, "norms_b": maps_b, "complex_a": tiles[0], "complex_b": tiles[1]}
    sizes = {"rows_a": maps_a.shape[1], "rows_b": maps_b.shape[1], "depth": maps_a.shape[2]}
    sizes |= {"batches_a": items, "batches_b": items}
    p = fill(np.zeros((), parts.PAIR_NORMS), sizes | {name: x.ctypes.data for name, x in arrays.items()})
    libraries["float64"].run_pair_norms(ctypes.c_void_p(p.ctypes.data), 2)
    np.testing.assert_allclose(tiles[0], wanted[0], rtol=1e-14)
    np.testing.assert_allclose(tiles[1].swapaxes(1, 2), wanted[1], rtol=1e-14)
    np.testing.assert_array_equal(maps_a[..., ::2], tiles[0])
    np.testing.assert_array_equal(maps_b[:, ::2, ::2], tiles[1])
    for x, y, one, other, norms_a, norms_b in zip(a, b, real_a, real_b, maps_a, maps_b, strict=True):
        products = np.sort((norms_a[:, None] * norms_b[None]).ravel())
        for tau in (0.0, float(products[products.size // 2]) * (1 - 1e-9), 2 * float(products[-1])):
            found = np.zeros((m, 2 * n))
            for i, q, j in np.argwhere(reference.valid_set(norms_a, norms_b.T, tau)):
                rows, inner, columns = (slice(BLOCK * t, BLOCK * t + BLOCK) for t in (i, q, j))
                found[rows, columns] += one[rows, inner] @ other[inner, columns]
            np.testing.assert_allclose(found, reference.spamm_flat(x, y, tau, BLOCK).view(float), atol=1e-13)
