"""Complex products as real ones of their parts, on NumPy's arrays in the place of CuPy's."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import reference
from spectile.nearsparse.cuda import parts

BLOCK = 8


class NormMaps:
    """The norm maps of two real matrices, that of the second transposed, as the device takes them."""

    def __init__(self, a: Any, b: Any, block: int) -> None:
        assert a.shape[1] == b.shape[0]
        self.a, self.b = (
            np.ascontiguousarray(x) for x in (reference.norm_map(a, block), reference.norm_map(b, block).T)
        )

    def __call__(self) -> None:
        pass


@pytest.mark.parametrize("shape", [(16, 24, 8), (9, 4, 5), (7, 21, 13), (1, 1, 1), (20, 12, 28)])
def test_the_real_product_of_the_valid_tiles_is_the_complex_one(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "empty", "negative", "moveaxis", "hypot", "ascontiguousarray", "repeat"
    array = lambda shape, dtype, memptr, strides: np.ndarray(shape, dtype, memptr, 0, strides)  # noqa: E731
    stand_in = SimpleNamespace(ndarray=array, **{name: getattr(np, name) for name in names})
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setattr(parts, "NormMaps", NormMaps)
    rng = np.random.default_rng(3)
    m, k, n = shape
    a, b = (rng.standard_normal(x) + 1j * rng.standard_normal(x) for x in ((m, k), (k, n)))
    a[: m // 2], b[:, n // 2 :] = 1e-3 * a[: m // 2], 1e-3 * b[:, n // 2 :]
    assert np.shares_memory(parts.real_view(a), a)
    maps = parts.norm_maps(a, b, BLOCK)
    np.testing.assert_allclose(maps.a, reference.norm_map(a, BLOCK), rtol=1e-14)
    np.testing.assert_allclose(maps.b.T, reference.norm_map(b, BLOCK), rtol=1e-14)
    one = np.sort((maps.a[:, None] * maps.b[None]).ravel())
    real_a, real_b, tiles = parts.real_view(a), parts.expanded(b), parts.of_real_tiles(maps)
    for tau in (0.0, float(one[one.size // 2]) * (1 - 1e-9), 2 * float(one[-1])):
        valid = reference.valid_set(tiles.a, tiles.b.T, tau)
        found = np.zeros((m, 2 * n))
        for i, q, j in np.argwhere(valid):
            rows, inner, columns = (slice(BLOCK * x, BLOCK * x + BLOCK) for x in (i, q, j))
            found[rows, columns] += real_a[rows, inner] @ real_b[inner, columns]
        wanted = reference.spamm_flat(a, b, tau, BLOCK)
        np.testing.assert_allclose(found, wanted.view(float), atol=1e-13)
