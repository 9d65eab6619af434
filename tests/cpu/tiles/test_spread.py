"""Matrices in parts, as several GPUs have them: parts on the host, and in place of a GPU's arrays."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import spectile
from spectile.nearsparse.multi.partition import cut_rows
from spectile.tiles import TileMatrix
from spectile.tiles.spread import Spread


def spread(x: TileMatrix, parts: int) -> TileMatrix:
    """Return a matrix in so many parts, all of them on the host."""
    cuts = cut_rows(x.layout.work(), np.ones(parts))
    return x._spread([contextlib.nullcontext()] * parts, np.array, tuple(cuts))


def assert_same(found: TileMatrix, wanted: TileMatrix) -> None:
    """Raise unless a matrix in parts has the tiles, norms and bounds of one that is not."""
    assert isinstance(found.data, Spread)
    assert np.array_equal(found.indptr, wanted.indptr)
    assert np.array_equal(found.indices, wanted.indices)
    assert found.products == wanted.products
    size = max(wanted.norm(), 1e-300)
    close = {"rtol": 1e-6, "atol": 1e-6 * size}
    np.testing.assert_allclose(found.data.get(), wanted.data, **close)
    np.testing.assert_allclose(found.norms, wanted.norms, **close)
    np.testing.assert_allclose(found.error, wanted.error, rtol=1e-4, atol=1e-12 * size)


@pytest.mark.parametrize("parts", [1, 2, 3, 23])
@pytest.mark.parametrize("sizes", [16, "unequal"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_operations_on_parts_are_those_on_the_whole(dtype: str, sizes: Any, parts: int) -> None:
    rng = np.random.default_rng(parts)
    n, i = 150, np.arange(150)
    sizes = rng.multinomial(n - 13, np.ones(13) / 13) + 1 if sizes == "unequal" else sizes
    m = np.exp(-abs(i[:, None] - i) / 3.0) * rng.normal(size=(n, n))
    m = m * np.exp(1j * rng.normal(size=(n, n))) if dtype.startswith("c") else m
    m = (m + m.conj().T).astype(dtype)
    z = TileMatrix.from_dense((m * rng.random((n, n))).astype(dtype), sizes, atol=0.1)
    z_parts = spread(z, parts)
    for hermitian in (True, False):
        x = TileMatrix.from_dense(m, sizes, hermitian=hermitian, atol=1e-3)
        y = spread(x, parts)
        assert_same(y.square(atol=1e-2), x.square(atol=1e-2))
        assert_same(y.multiply(z_parts, rtol=1e-2), x.multiply(z, rtol=1e-2))
        assert_same(y.multiply(z, atol=1e-1, norm="spectral"), x.multiply(z, atol=1e-1, norm="spectral"))
        assert_same(x.multiply(z_parts, atol=1e-2), x.multiply(z, atol=1e-2))
        for made, wanted in (
            (y.whole(), x.whole()), (y.T, x.T), (z_parts.H, z.H), (2.0 * z_parts - y, 2.0 * z - x), (-y, -x),
            (y.shifted(3.0), x.shifted(3.0)), (y.truncate(0.3), x.truncate(0.3)),
            (y.truncate(0.3, "spectral"), x.truncate(0.3, "spectral")),
            (y.astype("complex128"), x.astype("complex128")),
            ((z_parts + z.H).hermitian_part(), (z + z.H).hermitian_part()),
        ):  # fmt: skip
            assert_same(made, wanted)
        np.testing.assert_array_equal(y.to_dense(), x.to_dense())
        assert y.trace() == pytest.approx(x.trace(), rel=1e-5)
        assert y.dot(z_parts) == pytest.approx(x.dot(z), rel=1e-4)
        assert y.norm("spectral") == pytest.approx(x.norm("spectral"))
        if hermitian:
            assert y.eigenvalue_bounds() == pytest.approx(x.eigenvalue_bounds())


def test_parts_have_even_work_and_each_tile_once() -> None:
    i = np.arange(64 * 16)
    x = TileMatrix.from_dense(np.exp(-abs(i[:, None] - i) / 4.0), 16, hermitian=True, atol=1e-3)
    work = x.layout.work()
    square = x.whole().multiply(x.whole())
    upper = square.indices >= square.layout.tile_rows
    whole = x.whole().layout
    counted = np.zeros(64)
    for row, column in zip(square.layout.tile_rows[upper], square.indices[upper], strict=True):
        mine = whole.indices[whole.indptr[row] : whole.indptr[row + 1]]
        its = whole.indices[whole.indptr[column] : whole.indptr[column + 1]]
        counted[row] += len(np.intersect1d(mine, its))
    np.testing.assert_array_equal(work, counted)
    made = spread(x, 3)
    shares = [
        work[first:last].sum() / work.sum() for first, last in zip(made.data.cuts, made.data.cuts[1:], strict=False)
    ]
    assert max(shares) < 0.36
    assert sum(map(len, made.data.parts)) == len(x.data)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", ["sp2_accelerated", "trs4", "eigh", None])
def test_density_matrices_of_parts_keep_their_error(method: Any, overlap: bool, parts: int) -> None:
    rng = np.random.default_rng([parts, overlap])
    n, site = 240, np.arange(240)
    f = np.diag(np.where(site % 2, 1.0, -1.0) * (1 + rng.random(n)))
    f += 0.3 * np.exp(-abs(site[:, None] - site) / 1.5) * rng.normal(size=(n, n))
    f = (f + f.T) / 2
    s = np.eye(n) + 0.1 * np.eye(n, k=1) + 0.1 * np.eye(n, k=-1) if overlap else np.eye(n)
    root = np.linalg.cholesky(s)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ f @ inverse.T)
    vectors = inverse.T @ vectors[:, : n // 2]
    given = spread(TileMatrix.from_dense(f, 16, hermitian=True), parts)
    options: dict[str, Any] = {"electrons": n // 2, "error": 1e-5, "method": method}
    if overlap:
        options["s"] = TileMatrix.from_dense(s, 16, hermitian=True)
    found = spectile.density_matrix(given, **options)
    assert isinstance(found.matrix.data, Spread)
    assert np.linalg.norm(found.matrix.to_dense() - vectors @ vectors.T) <= found.error <= 1e-5
    assert abs(found.energy - values[: n // 2].sum()) <= found.energy_error + 1e-11
    again = spectile.density_matrix(given, **options, start=found)
    assert np.linalg.norm(again.matrix.to_dense() - vectors @ vectors.T) <= again.error <= 1e-5


@pytest.mark.parametrize("parts", [1, 3])
def test_fermi_functions_of_parts_keep_their_error(parts: int) -> None:
    n = 96
    f = np.eye(n, k=1) + np.eye(n, k=-1)
    values, vectors = np.linalg.eigh(f)
    given = spread(TileMatrix.from_dense(f, 16, hermitian=True), parts)
    found = spectile.density_matrix(given, mu=0.1, beta=4.0, error=1e-4)
    exact = (vectors / (1 + np.exp(4.0 * (values - 0.1)))) @ vectors.T
    assert np.linalg.norm(found.matrix.to_dense() - exact) <= found.error <= 1e-4


def test_parts_are_purified_where_no_method_is_named() -> None:
    h = spread(TileMatrix.from_dense(np.diag(np.arange(8.0)), 2, hermitian=True), 2)
    listed = spectile.explain(spectile.density_matrix, h, electrons=4)
    assert [one.kernel for one in listed if one.seconds is not None] == ["sp2_accelerated"]
    assert spectile.density_matrix(h, electrons=4).history
