"""Matrices with room for every tile on a GPU: results within their bounds, against float64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.tiles import TileMatrix
from spectile.tiles.grid import GridMatrix, on_grid

pytestmark = pytest.mark.gpu

#: Rows of tiles: all of one size, and of many.
PARTITIONS = [[24] * 12, [17, 30, 24, 13, 32, 5, 24, 1], [8] * 33]


def _hermitian(n: int, dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    i = np.arange(n)
    decay = np.exp(-np.abs(i[:, None] - i) / 9)
    a = rng.normal(size=(n, n)) * decay
    a = a + 1j * rng.normal(size=(n, n)) * decay if np.dtype(dtype).kind == "c" else a
    return ((a + a.conj().T) / 2).astype(dtype)


def _grid(a: Any, rows: Any) -> GridMatrix:
    import cupy

    made = on_grid(TileMatrix.from_dense(cupy.asarray(a), rows, hermitian=True))
    assert isinstance(made, GridMatrix)
    return made


def _dense(x: Any) -> Any:
    return x.to_tiles().to_host().to_dense()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("rows", PARTITIONS, ids=["equal", "various", "many"])
def test_products_and_sums_are_within_their_bounds(dtype: str, rows: Any) -> None:
    n = sum(rows)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    a, b = _hermitian(n, dtype, 1), _hermitian(n, dtype, 2)
    exact_a, exact_b = a.astype(wide), b.astype(wide)
    square = (exact_a @ exact_a).astype(dtype)
    square = (square + square.conj().T) / 2
    x, y, s = _grid(a, rows), _grid(b, rows), _grid(square, rows)
    exact_s = square.astype(wide)
    # What stands for half of a product is exact where the factors commute to the last digit.
    apart = np.linalg.norm(exact_a @ exact_s - exact_s @ exact_a)
    for atol in (0.0, 1e-4, 1e-1, 10.0):
        for made, exact, slack in (
            (x._times(x, atol, half="square"), exact_a @ exact_a, 0.0),
            (x._times(y, atol), exact_a @ exact_b, 0.0),
            (x._times(x._times(y, atol), atol), exact_a @ exact_a @ exact_b, 0.0),
            (x._times(s, atol, half="upper"), exact_a @ exact_s, 2 * apart),
            (x._second_degree((0.1, 2.0, -1.0), 2 * atol, "fro")[0],
             0.1 * np.eye(n) + 2 * exact_a - exact_a @ exact_a, 0.0),
            (x.truncate(atol), exact_a, 0.0),
            (x + y, exact_a + exact_b, 0.0), (-2.0 * x, -2 * exact_a, 0.0), (x - y, exact_a - exact_b, 0.0),
            (x.shifted(-3.0), exact_a - 3 * np.eye(n), 0.0),
        ):  # fmt: skip
            found = _dense(made)
            slack += 1e-14 * np.linalg.norm(exact)
            assert np.linalg.norm(found - exact) <= made.error.fro + slack
            assert np.linalg.norm(found - exact, 2) <= made.error.spectral + slack
            assert made.norm() == pytest.approx(np.linalg.norm(found), rel=1e-6)
            assert made.norm("spectral") >= np.linalg.norm(found, 2) * (1 - 1e-6)
            assert not made.hermitian or np.array_equal(found, found.conj().T)
    bounds, values = x.eigenvalue_bounds(), np.linalg.eigvalsh(exact_a)
    assert bounds[0] <= values[0] and values[-1] <= bounds[1]
    assert x.trace() == pytest.approx(np.trace(exact_a).real, rel=1e-6)
    assert x.dot(y) == pytest.approx(np.vdot(exact_a, exact_b).real, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("rows", PARTITIONS, ids=["equal", "various", "many"])
def test_bounds_count_every_product_of_a_sum(dtype: str, rows: Any) -> None:
    a = _hermitian(sum(rows), dtype, 7)
    wanted = TileMatrix.from_dense(a, rows, hermitian=True).square().error
    x = _grid(a, rows)
    for made in (x._times(x, 0.0, half="square"), x._times(x, 0.0)):
        assert 0.9 * wanted.fro <= made.error.fro <= 3 * wanted.fro


@pytest.mark.parametrize("size", [8, 16, 24, 32])
def test_products_of_tiles_of_all_scales_are_within_their_bounds(size: int) -> None:
    """Some are made in float16, some in two, some in float64, and where entries are alike all roundings add up."""
    tiles = 7
    rng = np.random.default_rng(9)
    scales = np.kron(10.0 ** rng.integers(-9, 3, (tiles, tiles)), np.ones((size, size)))
    n = tiles * size
    for entries in (rng.normal(size=(n, n)), 1 + 2.0**-12 + 2.0**-18 * rng.uniform(size=(n, n))):
        a = np.triu(entries * scales)
        a = a + np.triu(a, 1).T
        x, wide = _grid(a, size), a.astype(np.longdouble)
        square = (wide @ wide).astype(float)
        for atol in np.linalg.norm(square) * 10.0 ** np.arange(-13, 0, 2):
            made = x._times(x, atol, half="square")
            off = np.linalg.norm(_dense(made) - square) - 1e-15 * np.linalg.norm(square)
            assert off <= made.error.fro <= 1.2 * atol + 1e-11 * np.linalg.norm(square)


@pytest.mark.parametrize("norm", ["fro", "spectral"])
def test_what_a_square_says_of_idempotency(norm: Any) -> None:
    a = _hermitian(288, "float64", 3) / 8
    apart = a - a @ a
    for allowed in (1e-8, 1e-2):
        made, found = _grid(a, 24)._second_degree((0.0, 0.0, 1.0), allowed, norm)
        assert found.least <= np.linalg.norm(apart) <= found.fro <= np.linalg.norm(apart) + 2 * allowed
        assert np.linalg.norm(apart, 2) <= found.spectral and made.error[norm == "spectral"] <= allowed


def test_less_is_multiplied_where_less_is_asked_for_and_the_same_every_time() -> None:
    x = _grid(_hermitian(768, "float64", 4), 24)
    counts = [x._times(x, atol, half="square").products for atol in (1e-8, 1e-3, 1.0)]
    assert 32 * 32 * 33 / 2 >= counts[0] > counts[1] > counts[2] > 0
    assert np.array_equal(*(_dense(x._times(x, 1e-3, half="square")) for _ in range(2)))


def test_what_is_left_out_is_not_read() -> None:
    import cupy

    x = _grid(_hermitian(288, "float64", 5), 24)
    none = x.truncate(2 * x.norm())
    cupy.copyto(none.data, cupy.nan)
    assert none.fill == 0 and none.trace() == 0 and none.dot(none) == 0
    assert not _dense(none + none).any() and not _dense(none._times(none, 0.0)).any()
    np.testing.assert_allclose(_dense(none.shifted(2.0)), 2 * np.eye(288))


def test_dense_matrices_of_any_order() -> None:
    import cupy

    rng = np.random.default_rng(6)
    a = _hermitian(146, "complex128", 6)
    order, rows = rng.permutation(146), np.concatenate([[0], np.cumsum(PARTITIONS[1])])
    made = GridMatrix.of_dense(cupy.asarray(a), rows, order)
    assert made is not None and made[1] == 0 and np.array_equal(_dense(made[0]), a)
    assert np.array_equal(made[0].to_dense().get(), a)
    few = made[0].truncate(made[0].norm() / 2)
    assert 0 < few.fill < 1 and np.array_equal(few.to_dense().get(), _dense(few))
    a[0, 1] += 1e-3
    made = GridMatrix.of_dense(cupy.asarray(a), rows, order)
    assert made is not None and made[1] == pytest.approx(1e-3 / 2**0.5)
    assert np.linalg.norm(_dense(made[0]) - a) <= made[0].error.fro
    for wrong in (np.nan, np.inf, 1e200):
        a[3, 3] = wrong
        with pytest.raises(ValueError, match="holds NaN or infinity, or overflows"):
            GridMatrix.of_dense(cupy.asarray(a), rows)


@pytest.mark.parametrize("rows", [24, [17, 30, 24, 13, 32, 5, 24] * 2])
def test_what_is_not_hermitian_is_transposed_and_bounded(rows: Any) -> None:
    import cupy

    n = 24 * 12 if rows == 24 else int(np.sum(rows))
    rng, apart = np.random.default_rng(3), np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    dense = [rng.normal(size=(n, n)) * np.exp(-apart / 9) for _ in range(2)]
    x, y = (on_grid(TileMatrix.from_dense(cupy.asarray((a + a.T) / 2), rows, hermitian=True)) for a in dense)
    product = x._times(y, 1e-3)
    exact = product.to_tiles().to_host().to_dense()
    assert np.array_equal(product.H.to_tiles().to_host().to_dense(), exact.T)
    spectral = np.linalg.norm(exact, 2)
    assert spectral * (1 - 1e-12) <= product.norm("spectral") <= product.norm()
