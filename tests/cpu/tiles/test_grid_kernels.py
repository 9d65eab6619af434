"""The kernels of matrices with room for every tile, run on the host, against what they should do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.tiles.cuda import grid
from tests.cuda_on_host import compiled, launch
from tests.grid_kernels import GridKernels


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`spectile.tiles.cuda.grid`, whose launches run on the host."""
    libraries: dict[int, Any] = {}

    def kernel(unit: Any, name: str) -> Any:
        if id(unit) not in libraries:
            libraries[id(unit)] = compiled(tmp_path, unit)
        return lambda shape, *arguments: launch(libraries[id(unit)], name, shape, *arguments)

    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(grid, "kernel", kernel)
    monkeypatch.setattr(grid, "require_here", lambda *_: None)
    return grid


def _matrix(kernels: Any, room: Any, seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    i = np.arange(room.n)
    a = rng.normal(size=(room.n, room.n)) * np.exp(-np.abs(i[:, None] - i) / 6)
    a = (a + a.T) / 2
    data, maps = kernels.of_dense(room, a, True)
    return a, data, maps


def _assert_alike(found: Any, wanted: Any, room: Any, to_dense: Any) -> None:
    (data, maps), (other, others) = found, wanted
    off = np.linalg.norm(to_dense(data, maps[grid.NORMS]) - other)
    lost = maps[grid.LOST]
    assert off <= np.linalg.norm(lost)
    np.testing.assert_allclose(maps[grid.NORMS], others[grid.NORMS], rtol=1e-9, atol=1e-12 + off)
    np.testing.assert_allclose(maps[grid.APART], others[grid.APART], rtol=1e-9, atol=1e-12 + off)
    np.testing.assert_array_equal(maps[grid.PRODUCTS], others[grid.PRODUCTS])
    np.testing.assert_allclose(maps[grid.SKIPPED], others[grid.SKIPPED], rtol=1e-9, atol=1e-13)
    assert (lost <= 1.01 * others[grid.LOST]).all() and (2 * lost >= others[grid.LOST] * 0.6).all()


@pytest.mark.parametrize("rows", [[24] * 3, [5, 8, 3, 7]], ids=["equal", "various"])
def test_kernels_do_what_they_should(kernels: Any, rows: Any) -> None:
    room = kernels.Room.of(np.concatenate([[0], np.cumsum(rows)]))
    should = GridKernels(np.asarray)
    a, x, of_x = _matrix(kernels, room, 1)
    b, y, of_y = _matrix(kernels, room, 2)
    places = np.arange(room.size**2)
    heights = np.diff(room.rows)
    starts = np.concatenate([[0], np.cumsum(np.outer(heights, heights).ravel())])

    def by_rows(data: Any) -> Any:
        flat = np.empty(room.n * room.n)
        kernels.copy(room, flat, starts, places, data, to_grid=False)
        return flat

    def dense(data: Any, norms: Any) -> Any:
        return should._dense(room, by_rows(data), norms)

    np.testing.assert_array_equal(dense(x, of_x[grid.NORMS]), a)
    back = np.empty_like(x)
    kernels.copy(room, by_rows(x), starts, places, back, to_grid=True)
    np.testing.assert_array_equal(back, x)
    norms_x, norms_y = of_x[grid.NORMS], of_y[grid.NORMS]
    norms_x[norms_x < 1e-3] = 0
    order = np.random.default_rng(3).permutation(room.n)
    turned_room = room._replace(order=order)
    np.testing.assert_array_equal(kernels.to_dense(room, x, norms_x), dense(x, norms_x))
    np.testing.assert_array_equal(kernels.to_dense(turned_room, x, norms_x)[np.ix_(order, order)], dense(x, norms_x))
    np.testing.assert_array_equal(kernels.of_dense(turned_room, kernels.to_dense(turned_room, x, norms_x), True)[0], x)
    tau = float(np.median(norms_x) * np.median(norms_y))
    threshold, unit = tau * np.array([1, *((8, 60) if len(set(rows)) == 1 else (0, 0))]), 2.0**14
    flat_x, flat_y = by_rows(x), by_rows(y)
    for hermitian in (True, False):
        other, turned = (x, norms_x) if hermitian else (y, norms_y.T.copy())
        # The second time another factor is what came of the first, which is not Hermitian.
        for hermitian_b in (True, False)[: 2 - hermitian]:
            mixed = x, norms_x, other, turned, y, norms_y, threshold, unit, -1.5, 0.5, 2.0, hermitian, hermitian_b
            found = kernels.multiply(room, *mixed)
            mixed = flat_x, norms_x, by_rows(other), turned, flat_y, norms_y, *mixed[6:]
            wanted = should.multiply(room, *mixed)
            _assert_alike(found, (should._dense(room, wanted[0], wanted[1][grid.NORMS]), wanted[1]), room, dense)
            other, turned = found[0], found[1][grid.NORMS].T.copy()
        if not hermitian:
            back = kernels.adjoint(room, other, turned)
            np.testing.assert_array_equal(dense(back, turned), dense(other, turned.T).T)
        found = kernels.combine(room, x, norms_x, -1.5, y, norms_y, 0.5, 2.0, hermitian)
        wanted = should.combine(room, flat_x, norms_x, -1.5, flat_y, norms_y, 0.5, 2.0, hermitian)
        _assert_alike(found, (should._dense(room, wanted[0], wanted[1][grid.NORMS]), wanted[1]), room, dense)
    exact = dense(x, norms_x)
    np.testing.assert_allclose(kernels.row_sums(room, x, norms_x), np.abs(exact).sum(axis=1))
    np.testing.assert_allclose(kernels.diagonal(room, x, norms_x), exact.diagonal())
    np.testing.assert_allclose(kernels.dots(room, x, norms_x, y, norms_y)[0].sum(), (exact * b).sum())
    np.testing.assert_allclose(kernels.totals(room, of_x), should.totals(room, of_x))
    largest = np.linalg.norm(of_x[grid.NORMS], 2)
    first, last = (float(kernels.spectral_bound(room, of_x[grid.NORMS], steps)[0]) for steps in (1, 8))
    assert largest * (1 - 1e-12) <= last <= 1.05 * largest and last < first == pytest.approx(
        of_x[grid.NORMS].sum(axis=1).max()
    )


@pytest.mark.parametrize("size", [8, 24])
def test_products_in_float16_are_within_their_bounds(kernels: Any, size: int) -> None:
    """Tile by tile, whatever the scales of the tiles are, and where all roundings go to one side."""
    tiles = 4
    room = kernels.Room.of(np.arange(tiles + 1) * size)
    rng = np.random.default_rng(4)
    scales = 10.0 ** rng.integers(-9, 4, (tiles, tiles))
    for entries in (
        rng.normal(size=(room.n, room.n)), 1 + 2.0**-12 + 2.0**-18 * rng.uniform(size=(room.n, room.n)),
        10.0 ** rng.uniform(-12, 0, (room.n, room.n)),
    ):  # fmt: skip
        a = np.triu(entries * np.kron(scales, np.ones((size, size))))
        a = a + np.triu(a, 1).T
        data, maps = kernels.of_dense(room, a, True)
        norms = maps[grid.NORMS]
        norms[1, 3] = norms[3, 1] = 0
        data.reshape(tiles, tiles, -1)[[1, 3], [3, 1]] = np.nan  # is not read
        a[size : 2 * size, 3 * size : 4 * size] = a[3 * size : 4 * size, size : 2 * size] = 0
        of_a = a.reshape(tiles, size, tiles, size).transpose(0, 2, 1, 3)
        unit = 2.0 ** (2 * np.ceil(np.log2(np.linalg.norm(a))))
        some = np.median(norms) ** 2
        for twofold, fine in ((1e3 * some, 1e6 * some), (np.inf, np.inf), (0.0, np.inf)):
            made, maps = kernels.multiply(
                room, data, norms, data, norms, None, None, np.array([0.0, twofold, fine]), unit, 1.0, 0.0, 0.0, True,
                True,
            )  # fmt: skip
            flat = np.empty_like(data)
            numbers = np.arange(tiles**2)
            kernels.copy(room, flat, numbers * size**2, numbers, made, to_grid=False)
            wide = of_a.astype(np.longdouble)
            for i, j in np.ndindex(tiles, tiles):
                off = flat.reshape(tiles, tiles, size, size)[i, j] - sum(wide[i, k] @ wide[k, j] for k in range(tiles))
                both = norms[i] * norms[:, j]
                assert np.linalg.norm(off.astype(float)) <= maps[grid.LOST, i, j]
                rough = 2e-3 * both[both < twofold].sum() + 2e-5 * both[both < fine].sum()
                assert maps[grid.LOST, i, j] <= rough + 1e-11 * both.sum()


def test_thresholds_leave_out_what_is_allowed_and_little_less(kernels: Any) -> None:
    size = 5
    rng = np.random.default_rng(3)
    i = np.arange(size)
    a, b = (np.exp(-np.abs(i[:, None] - i) / 4) * rng.uniform(0.1, 1, (size, size)) for _ in range(2))
    b[rng.uniform(size=b.shape) < 0.3] = 0
    a, h = a + a.T, b + b.T
    s = h * 10.0 ** (-4.5 * np.abs(i[:, None] - i))  # products from 1 to 1e-18
    room = SimpleNamespace(size=size)
    units = 2.0 ** np.ceil(np.log2(np.linalg.norm(a))), 2.0 ** np.ceil(np.log2(np.linalg.norm(b)))

    def left_out(left: Any, right: Any, tau: float, hermitian: bool) -> tuple[float, float]:
        out = np.array([np.where(row[:, None] * right < tau, row[:, None] * right, 0).sum(axis=0) for row in left])
        if hermitian:
            out = np.triu(out, 1) + np.triu(out, 1).T + np.sqrt(2) * np.diag(np.diag(out))
        return np.linalg.norm(out), out.sum(axis=1).max()

    everything = left_out(a, b, np.inf, False)[0]
    for limit, right, hermitian, spectral, guess in (
        (1e-3 * everything, b, False, False, 1.0), (1e-6 * everything, a, True, True, 1e-30),
        (1e-4 * everything, h, True, False, 1e-4), (1e-9 * everything, a, True, False, 1e20),
        (1e-21 * everything, s, True, False, 1e-22), (100 * everything, b, False, False, 1.0),
        (0.0, b, False, False, 1.0),
    ):  # fmt: skip
        turned = right.T.copy()
        tau, twofold, fine, fro, both, *_ = kernels.search_product(
            room, a, a, right, turned, (units[0], units[0] if right is a else 2 * units[1]), hermitian, limit, guess,
            0.0, 0.0, spectral, False,
        )  # fmt: skip
        assert twofold == fine == 0
        exact = left_out(a, right, tau, hermitian)
        assert exact[0] <= fro and (both if spectral else fro) <= limit
        assert not hermitian or min(exact) <= both <= 1.01 * min(exact) + 1e-300
        assert fro <= 1.01 * exact[0] + 1e-300
        # A larger threshold would leave out too much, or there is none.
        above = left_out(a, right, 1.5 * tau + 1e-300, hermitian)[spectral]
        assert tau == np.inf or 1.01 * above > min(limit, everything)
    for limit in (1e-4 * everything, 1e-1 * everything):
        found = kernels.search_product(room, a, a, a, a, (units[0], units[0]), True, limit, 1e-4, 0.0, 0.0, False, True)
        inside, once, twofold = (left_out(a, a, tau, True)[0] for tau in found[:3])
        assert found[0] <= found[1] <= found[2] and inside <= found[3]
        assert inside + 1.1e-3 * once + 2e-5 * twofold <= limit
        above = left_out(a, a, 1.5 * found[1], True)[0]
        assert found[1] == np.inf or 1.01 * 1.1e-3 * above > 0.18 * limit
    tiles = a.copy()
    for limit, spectral in ((1e-2, False), (1e-2, True), (1e9, False)):
        found = kernels.search_tiles(room, tiles, units[0], limit, 1e-3, spectral)
        out = np.where(tiles < found[0], tiles, 0)
        exact = np.linalg.norm(out), out.sum(axis=1).max()
        assert exact[0] <= found[3] and min(exact) <= found[4] and found[3 + spectral] <= limit
        assert found[3] <= 1.01 * exact[0] + 1e-300
    kernels.drop(tiles, kernels.search_tiles(room, tiles, units[0], 1.0, 1e-3, False))
    assert 0 < np.linalg.norm(a - tiles) <= 1.0 and (a - tiles)[tiles > 0].max() == 0
