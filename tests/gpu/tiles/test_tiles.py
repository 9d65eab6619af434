"""Tile matrices on a GPU: results and bounds as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.tiles import TileMatrix

pytestmark = pytest.mark.gpu


def _matrix(n: int, dtype: str, hermitian: bool, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    i = np.arange(n)
    a = rng.normal(size=(n, n)) * np.exp(-np.abs(i[:, None] - i) / 6)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.normal(size=(n, n)) * np.exp(-np.abs(i[:, None] - i) / 6)
    a = a.astype(dtype)
    return (a + a.conj().T) / 2 if hermitian else a


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize("rows", [32, [17, 30, 40, 13, 100, 50, 50]])
def test_operations_are_those_of_the_host_within_their_bounds(dtype: str, hermitian: bool, rows: Any) -> None:
    import cupy

    a = _matrix(300, dtype, hermitian)
    host = TileMatrix.from_dense(a, rows, hermitian=hermitian, atol=1e-3)
    there = TileMatrix.from_dense(cupy.asarray(a), rows, hermitian=hermitian, atol=1e-3)
    assert isinstance(there.data, cupy.ndarray) and isinstance(there.to_dense(), cupy.ndarray)
    single = dtype in ("float32", "complex64")
    for operation in (
        lambda x: x,
        lambda x: x @ x,
        lambda x: x + x.truncate(1e-2),
        lambda x: -2.0 * x,
        lambda x: x.T,
        lambda x: x.H,
        lambda x: x.whole(),
        lambda x: x.hermitian_part(),
        lambda x: x.shifted(3.0),
        lambda x: x.truncate(1e-1, "spectral"),
        lambda x: x.permuted(np.arange(300)[::-1], 25),
        lambda x: x.astype("complex128"),
    ):
        x, y = operation(there), operation(host)
        assert isinstance(x.data, cupy.ndarray) and np.array_equal(x.indices, y.indices)
        np.testing.assert_allclose(x.to_host().to_dense(), y.to_dense(), rtol=0, atol=1e-4 if single else 1e-12)
        np.testing.assert_allclose(x.norms, y.norms, rtol=1e-4 if single else 1e-12)
        np.testing.assert_allclose(x.error, y.error, rtol=1e-2, atol=1e-12)
    # What is left out is searched in another way there.
    exact = a.astype(np.complex128) @ a.astype(np.complex128)
    for words in ({"atol": 1e-1}, {"rtol": 1e-2, "norm": "spectral"}):
        x, y = there.square(**words), host.square(**words)
        assert np.linalg.norm(x.to_host().to_dense() - exact) <= x.error.fro < 3 * y.error.fro
        assert 0.3 * y.products < x.products < 3 * y.products
    assert abs(there.trace() - host.trace()) < 1e-3 and abs(there.dot(there) - host.dot(host)) < 1e-2
    if hermitian:
        np.testing.assert_allclose(there.eigenvalue_bounds(), host.eigenvalue_bounds(), rtol=1e-6)
    with pytest.raises(ValueError, match="on a GPU"):
        there + host


def test_range_of_entries() -> None:
    import cupy

    for size in (1e-300, 1e-170, 1e170, 1e300):
        a = cupy.asarray(size * _matrix(40, "float64", False))
        x = TileMatrix.from_dense(a, 12)
        norm = float(np.linalg.norm(cupy.asnumpy(a) / size))
        assert norm * (1 - 1e-12) <= x.norm() / size <= 12 * norm
    with pytest.raises(ValueError, match="overflows"):
        TileMatrix.from_dense(cupy.full((4, 4), 1e200), 2).square()


def test_products_are_the_same_every_time() -> None:
    there = TileMatrix.from_dense(_matrix(400, "float64", True), 16, hermitian=True).to_device()
    whole = there.square().to_host().to_dense()
    assert np.array_equal(there.square().to_host().to_dense(), whole)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("sizes", [(1, 9, 3), (33, 8, 40), (16, 32, 64), (130, 5, 20)])
def test_products_of_tiles_of_any_size(dtype: str, sizes: tuple[int, ...]) -> None:
    import cupy

    rng = np.random.default_rng(4)
    rows, inner, columns = (rng.permutation([*sizes, size]) for size in sizes)
    a, b = (rng.normal(size=(x.sum(), y.sum())).astype(dtype) for x, y in ((rows, inner), (inner, columns)))
    if a.dtype.kind == "c":
        a, b = a + 1j * a[::-1], b - 2j * b[:, ::-1]
    x, y = TileMatrix.from_dense(cupy.asarray(a), rows, inner), TileMatrix.from_dense(cupy.asarray(b), inner, columns)
    product, exact = x @ y, a.astype(np.complex128) @ b.astype(np.complex128)
    assert np.linalg.norm(product.to_host().to_dense() - exact) <= product.error.fro + 1e-14 * np.linalg.norm(exact)
    assert product.error.fro <= (1e-3 if dtype in ("float32", "complex64") else 1e-11) * np.linalg.norm(exact)
