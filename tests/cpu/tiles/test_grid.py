"""Matrices with room for every tile: results within their bounds, on arrays that stand in for CuPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import spectile
from spectile.core.devices import TABLE
from spectile.density import dense, projector
from spectile.tiles import TileMatrix
from spectile.tiles.cuda import grid as grid_kernels
from spectile.tiles.grid import GridMatrix, on_grid
from tests.cpu.tiles.test_device import cupy  # noqa: F401

ROWS = [7, 5, 7, 9, 7, 5]


def _hermitian(seed: int, dtype: str = "float64") -> Any:
    rng = np.random.default_rng(seed)
    i = np.arange(40)
    a = rng.normal(size=(40, 40)) * np.exp(-np.abs(i[:, None] - i) / 3)
    a = a + 1j * a[::-1] if np.dtype(dtype).kind == "c" else a
    return ((a + a.conj().T) / 2).astype(dtype)


def _grid(a: Any, atol: float = 0.0) -> GridMatrix:
    made = on_grid(TileMatrix.from_dense(a, ROWS, hermitian=True, atol=atol).to_device())
    assert isinstance(made, GridMatrix)
    return made


def _dense(x: Any) -> Any:
    return x.to_tiles().to_host().to_dense()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_products_and_sums_are_within_their_bounds(cupy: Any, dtype: str) -> None:  # noqa: F811
    a, b = _hermitian(1, dtype), _hermitian(2, dtype)
    wide = np.complex128 if dtype == "complex64" else np.float64
    x, y = _grid(a, 1e-2), _grid(b)
    commuting = _grid((a.astype(wide) @ a).astype(dtype))
    a, b, square = a.astype(wide), b.astype(wide), a.astype(wide) @ a
    single = 1e-4 if dtype == "complex64" else 0.0
    for atol in (0.0, 1e-3, 1.0, 1e3):
        for made, exact in (
            (x._times(x, atol, half="square"), a @ a),
            (x._times(y, atol), a @ b),
            (x._times(x._times(y, atol), atol), a @ a @ b),
            (x._times(commuting, atol, half="upper"), a @ square),
            (x._second_degree((0.1, 2.0, -1.0), 2 * atol, "fro")[0], 0.1 * np.eye(40) + 2 * a - a @ a),
            (x.truncate(atol), a),
        ):  # fmt: skip
            difference = _dense(made) - exact
            assert np.linalg.norm(difference) <= made.error.fro * (1 + 1e-6) + single
            assert np.linalg.norm(difference, 2) <= made.error.spectral * (1 + 1e-6) + single
            assert made.norm() == pytest.approx(np.linalg.norm(_dense(made)), rel=1e-5, abs=1e-12)
            assert made.norm("spectral") >= np.linalg.norm(_dense(made), 2) * (1 - 1e-5)
    for made, exact in (
        (-2.0 * x, -2 * a), (x + y, a + b), (x - y, a - b), (-x, -a), (x.shifted(-3.0), a - 3 * np.eye(40)),
    ):  # fmt: skip
        assert np.linalg.norm(_dense(made) - exact) <= made.error.fro + single
    assert abs(x.trace() - np.trace(_dense(x)).real) < 1e-4
    assert abs(x.dot(y) - np.vdot(_dense(x), _dense(y)).real) < 1e-3
    low, high = x.eigenvalue_bounds()
    values = np.linalg.eigvalsh(a)
    assert low <= values[0] and values[-1] <= high


def test_bounds_of_eigenvalues_see_what_is_within_tiles(cupy: Any) -> None:  # noqa: F811
    rng = np.random.default_rng(8)
    for far in (0.0, 1e-3, 0.1):
        a = far * _hermitian(8)
        for first in range(0, 40, 8):
            tile = rng.normal(size=(8, 8))
            a[first : first + 8, first : first + 8] += tile + tile.T
        x = on_grid(TileMatrix.from_dense(a, 8, hermitian=True).to_device())
        (low, high), values = x.eigenvalue_bounds(), np.linalg.eigvalsh(a)
        near = 2e-3 * np.ptp(values) + 8 * far
        assert values[0] - near <= low <= values[0] and values[-1] <= high <= values[-1] + near
    none = x.truncate(2 * x.norm())
    np.testing.assert_allclose(none.eigenvalue_bounds(), none.error.spectral * np.array([-1, 1]), rtol=1e-9)


@pytest.mark.parametrize("norm", ["fro", "spectral"])
def test_what_a_square_says_of_idempotency(cupy: Any, norm: Any) -> None:  # noqa: F811
    a = _hermitian(3) / 8
    apart = a - a @ a
    for allowed in (1e-8, 1e-2):
        made, found = _grid(a)._second_degree((0.0, 0.0, 1.0), allowed, norm)
        assert found.least <= np.linalg.norm(apart) <= found.fro <= np.linalg.norm(apart) + 2 * allowed
        if norm == "spectral":
            assert np.linalg.norm(apart, 2) <= found.spectral
        assert made.error[norm == "spectral"] <= allowed
        assert made.products <= 6 * 7 * 6 // 2


def test_what_is_left_out_is_not_read(cupy: Any) -> None:  # noqa: F811
    x = _grid(_hermitian(4))
    none = x.truncate(2 * x.norm())
    assert none.fill == 0 and none.error.fro >= x.norm() * (1 - 1e-12)
    assert not _dense(none + none).any() and none.trace() == 0 and none.dot(x) == 0
    np.testing.assert_allclose(_dense(none.shifted(2.0)), 2 * np.eye(40))


def test_a_matrix_that_overflows_is_refused(cupy: Any) -> None:  # noqa: F811
    x = _grid(_hermitian(5))
    with pytest.raises(ValueError, match="overflows"):
        x * math.inf


def test_a_matrix_stays_in_lists_where_it_has_no_place(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    a = _hermitian(6)
    for given in (
        TileMatrix.from_dense(a, ROWS, hermitian=True),
        TileMatrix.from_dense(a, 40, hermitian=True).to_device(),
        TileMatrix.from_dense(a * 1e-120, ROWS, hermitian=True).to_device(),
    ):
        assert on_grid(given) is given
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (10**4, 10**9))
    given = TileMatrix.from_dense(a, ROWS, hermitian=True).to_device()
    assert on_grid(given) is given


@pytest.mark.parametrize("rows", [ROWS, 8])
def test_an_overlap_goes_the_same_way(cupy: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Nothing goes by lists but what is given and returned; the next cycle starts from that."""
    i = np.arange(40)
    apart = np.abs(i[:, None] - i)
    s = np.eye(40) + 0.2 * np.exp(-apart) * (apart > 0)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * _hermitian(9)
    values, vectors = scipy.linalg.eigh(h, s)
    exact = vectors[:, :20] @ vectors[:, :20].T
    f, overlap = (TileMatrix.from_dense(x, rows, hermitian=True).to_device() for x in (h, s))
    monkeypatch.setattr(TileMatrix, "_times", None)
    start = None
    for error in (1e-3, 1e-6):
        found = spectile.density_matrix(f, overlap, electrons=20, error=error, start=start, method="sp2_accelerated")
        assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= error
        assert abs(found.energy - values[:20].sum()) <= found.energy_error
        assert found.homo[0] <= values[19] <= found.homo[1] and found.lumo[0] <= values[20] <= found.lumo[1]
        z = found.factor.to_host().to_dense()
        assert np.linalg.norm(z.T @ s @ z - np.eye(40)) < 1e-4
        start = found
    for electrons in (0, 40):
        found = spectile.density_matrix(f, overlap, electrons=electrons, error=1e-4, start=start, method="sp2")
        whole = electrons / 40 * np.linalg.inv(s)
        assert np.linalg.norm(found.matrix.to_host().to_dense() - whole) <= found.error


@pytest.mark.parametrize("rows", [ROWS, 8])
def test_what_is_not_hermitian_is_transposed_and_bounded(cupy: Any, rows: Any) -> None:  # noqa: F811
    a = _hermitian(10, "complex64")
    x = on_grid(TileMatrix.from_dense(a, rows, hermitian=True).to_device())
    y = x._times(on_grid(TileMatrix.from_dense(_hermitian(11, "complex64"), rows, hermitian=True).to_device()), 1e-2)
    dense = _dense(y)
    assert np.array_equal(_dense(y.H), dense.conj().T) and np.array_equal(_dense(y.H.H), dense) and y.H.error == y.error
    spectral = np.linalg.norm(dense, 2)
    assert spectral * (1 - 1e-5) <= y.norm("spectral") <= min(y.norm(), 6 * spectral)
    assert y._bounded(0.5).norm("spectral") == 0.5


@pytest.mark.parametrize(("method", "loose"), [("sp2_accelerated", 1.2), ("trs4", 1.2), ("sp2_accelerated", 100.0)])
def test_density_matrices_keep_their_error(
    cupy: Any,  # noqa: F811
    method: Any,
    loose: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last with budgets so large that the certificate has to be mended."""
    turned, as_it_is = [], GridMatrix._combined
    monkeypatch.setattr(projector, "_PESSIMISM", loose)
    monkeypatch.setattr(projector, "_NEAR", 3 * loose)

    def combined(self: Any, *words: Any, **options: Any) -> Any:
        turned.append(not self.hermitian)  # F Q less what Q is turned back by
        return as_it_is(self, *words, **options)

    monkeypatch.setattr(GridMatrix, "_combined", combined)
    i = np.arange(40)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * _hermitian(7)
    values, vectors = np.linalg.eigh(h)
    exact = vectors[:, :20] @ vectors[:, :20].T
    for error in (1e-3, 1e-7):
        found = spectile.density_matrix(
            TileMatrix.from_dense(h, ROWS, hermitian=True).to_device(), electrons=20, error=error, method=method
        )
        assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= error
        assert abs(found.energy - values[:20].sum()) <= found.energy_error
        assert found.homo[0] <= values[19] <= found.homo[1] and found.lumo[0] <= values[20] <= found.lumo[1]
    # F Q - Q F of either error, and more of it where Q is turned back.
    assert (sum(turned) > 2) == (loose > 10)


@pytest.mark.parametrize("overlap", [False, True])
def test_small_matrices_are_diagonalized(cupy: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    i = np.arange(40)
    h = np.diag(np.where(i % 2, 1.0, -1.0)) + 0.2 * _hermitian(7)
    s = np.eye(40) + 0.1 * np.exp(-np.abs(i[:, None] - i)) if overlap else None
    values, vectors = scipy.linalg.eigh(h, s)
    exact = vectors[:, :20] @ vectors[:, :20].T
    monkeypatch.setattr(dense.device, "describe", lambda: TABLE["H200"])

    def lowest(a: Any, **part: Any) -> list[Any]:
        return [cupy.asarray(x) for x in scipy.linalg.eigh(a.view(np.ndarray), **part)]

    monkeypatch.setattr(dense, "eigh", lowest)
    f, given = (None if x is None else TileMatrix.from_dense(x, ROWS, hermitian=True).to_device() for x in (h, s))
    for error in (1e-3, 1e-7):
        found = spectile.density_matrix(f, given, electrons=20, error=error)
        assert found.history == [] and type(found.matrix.data) is not np.ndarray
        assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= error
        assert found.homo[0] <= values[19] <= found.homo[1] and found.lumo[0] <= values[20] <= found.lumo[1]
        # What judges eigenvectors is dense: products of tiles are dozens of launches each.
        with monkeypatch.context() as without:
            for name in ("search_product", "multiply", "combine", "row_sums") if s is None else ():
                without.delattr(grid_kernels, name)
            again = spectile.density_matrix(f, given, electrons=20, error=error)
        assert again.error == found.error
    in_lists, on_the_grid = (dense.candidates(x, 1e-6, 20) for x in (f, on_grid(f)))
    assert in_lists == on_the_grid and in_lists[0].seconds < in_lists[1].seconds < 1
    assert dense.purified(f, 20, 50, listed=False) < dense.purified(f, 20, 50) < dense.purified(f, 20, 80)
