"""The product in float32, run on the host: tiles at every edge, rows that begin anywhere, tiles that blocks share."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectile import core
from spectile.core.pointers import address
from spectile.nearsparse.cpu.norms import norm_map
from spectile.nearsparse.cuda import kernels
from spectile.nearsparse.cuda.product import PRODUCT
from spectile.nearsparse.cuda.tuning import PORTABLE
from spectile.nearsparse.cuda.units import portable_unit

from ...on_host import host_library

FOLDERS = Path(__file__).parent / "on_host", Path(kernels.__file__).parent, Path(core.__file__).parent
TUNED = PORTABLE["fp32"]
# Lists of 128 steps: a long k takes several.
STEPS = 128
SOURCE = """
#include "ptx.cuh"
#include "product.cu"
extern "C" int run(const Product* p, unsigned grid, int splits, long shared_bytes) {
  gridDim.y = 1, gridDim.z = splits;
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    if (!launch([p] { product(*p); }, grid, 128, shared_bytes)) return 0;
  gridDim.z = 2;
  for (blockIdx.z = 0; splits > 1 && blockIdx.z < gridDim.z; ++blockIdx.z)
    if (!launch([p, splits] { join_parts(*p, splits); }, grid, 128, 0)) return 0;
  return 1;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    folder, made = tmp_path_factory.mktemp("product"), {}
    for aligned in (True, False):
        defines = portable_unit("fp32", TUNED, aligned).defines | {"LIST_STEPS": STEPS}
        flags = "-w", "-fpermissive", *(f"-I{path}" for path in FOLDERS), *(f"-D{k}={v}" for k, v in defines.items())
        made[aligned] = host_library(folder / f"aligned_{aligned}", SOURCE, *flags)
    return made


def by_the_kernel(library: Any, a: Any, b: Any, tau: float, splits: int, shift: int, c: Any = None) -> Any:
    """Return 2 A B, or 2 A B - C, over the valid products of tiles of 32; `shift` is where rows of C begin."""
    (m, k), n = a.shape, b.shape[1]
    maps = [np.ascontiguousarray(x) for x in (norm_map(a, 32), norm_map(b, 32).T)]
    around, tiles = np.full((m + 2, n + 8), np.nan, np.float32), (-(-m // 64), -(-n // 64))
    out = around[1:-1, shift : shift + n]
    parts = np.full(splits * tiles[0] * tiles[1] * TUNED.tile_elements, np.nan, np.float32)
    p = np.zeros((), PRODUCT)
    places = {"a": a, "b": b, "out": out, "norms_a": maps[0], "norms_b": maps[1], "parts": parts}
    pitches = {"lda": a.strides[0] // 4, "ldb": b.strides[0] // 4, "ldc": n, "ldo": n + 8}
    sizes = {"m": m, "k": k, "n": n, "norm_k": -(-k // 32), "log2_block": 5, "tiles_m": tiles[0], "tiles_n": tiles[1]}
    values = {name: address(x) for name, x in places.items()} | pitches | sizes | {"tau": tau, "alpha": 2.0}
    if c is not None:
        values |= {"beta": -1.0, "c": address(c)}
    for name, value in values.items():
        p[name] = value
    shared = ctypes.c_long(TUNED.shared_bytes("float32"))
    assert library.run(p.ctypes.data_as(ctypes.c_void_p), tiles[0] * tiles[1], splits, shared)
    written = np.isfinite(around)
    assert written.sum() == m * n and written[1:-1, shift : shift + n].all()
    return out


@pytest.mark.parametrize("skipped", [0.6, 0.95])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("m", "k", "n", "shift"),
    [(64, 64, 64, 0), (70, 200, 132, 0), (1, 5000, 67, 1), (33, 97, 31, 2), (65, 31, 1, 3), (130, 40, 300, 3)],
)
def test_the_valid_products_are_summed(
    libraries: dict[bool, Any], m: int, k: int, n: int, shift: int, splits: int, skipped: float
) -> None:
    rng = np.random.default_rng([m, k, n])
    # Around the operands is what must not be read into C.
    around = [np.full((rows + 2, columns + 8), np.nan, np.float32) for rows, columns in ((m, k), (k, n))]
    a, b = (
        x[1 : 1 + rows, shift : shift + columns] for x, (rows, columns) in zip(around, ((m, k), (k, n)), strict=True)
    )
    for x in (a, b):
        decay = np.exp(-rng.uniform(0, 12, [-(-size // 32) for size in x.shape]))
        x[:] = rng.standard_normal(x.shape) * decay.repeat(32, 0).repeat(32, 1)[: x.shape[0], : x.shape[1]]
    aligned = all(address(x) % 16 == x.strides[0] % 16 == 0 for x in (a, b)) and n % 4 == 0
    norms_a, norms_b = norm_map(a, 32), norm_map(b, 32)
    products = norms_a[:, :, None] * norms_b[None]
    tau, c = float(np.quantile(products, skipped)), rng.standard_normal((m, n)).astype(np.float32)
    wanted = np.zeros((m, n))
    for i, inside, j in np.argwhere(products >= tau):
        rows, inner, columns = (slice(32 * at, 32 * at + 32) for at in (i, inside, j))
        wanted[rows, columns] += a[rows, inner].astype("f8") @ b[inner, columns].astype("f8")
    largest = abs(a.astype("f8")) @ abs(b.astype("f8"))
    for added in (None, c):
        found = by_the_kernel(libraries[aligned], a, b, tau, splits, shift, added)
        exact = 2 * wanted - (0 if added is None else added)
        assert (abs(found - exact) <= 1e-5 * (largest + 1)).all()
