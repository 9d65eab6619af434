"""Density matrices on a GPU: what is asked is kept, against dense diagonalization."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import spectile
from spectile.density import dense, inverse_sqrt, maps, polar
from spectile.tiles import TileMatrix
from spectile.tiles.grid import on_grid

pytestmark = pytest.mark.gpu


def _insulator(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    i = np.arange(n)
    apart = np.abs(i[:, None] - i)
    h = np.where(apart > 0, -0.25 * np.exp(-(apart - 1.0)), 0) * (1 + 0.2 * rng.normal(size=(n, n)))
    return (h + h.T) / 2 + np.diag(np.where(i % 2, 0.8, -0.8) + 0.1 * rng.normal(size=n))


@pytest.mark.parametrize("error", [1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", ["eigh", "sp2_accelerated"])
def test_error_asked_is_error_kept(error: float, overlap: bool, method: Any) -> None:
    h = _insulator(400, 1)
    i = np.arange(400)
    s = np.eye(400) + 0.1 * np.exp(-np.abs(i[:, None] - i)) if overlap else None
    values, vectors = scipy.linalg.eigh(h, s)
    exact = vectors[:, :200] @ vectors[:, :200].T
    f = TileMatrix.from_dense(h, 25, hermitian=True).to_device()
    given = None if s is None else TileMatrix.from_dense(s, 25, hermitian=True).to_device()
    found = spectile.density_matrix(f, given, electrons=200, error=error, method=method)
    assert (found.history == []) == (method == "eigh")
    assert found.error <= error
    assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error + 1e-12
    assert abs(found.energy - values[:200].sum()) <= found.energy_error + 1e-9
    assert found.homo[0] <= values[199] + 1e-9 and values[199] <= found.homo[1] + 1e-9
    assert found.lumo[0] <= values[200] + 1e-9 and values[200] <= found.lumo[1] + 1e-9


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("block", [8, 24, 100])
def test_intervals_hold_for_few_states_on_one_side(seed: int, block: int) -> None:
    import cupy

    rng = np.random.default_rng(seed)
    n, unit = 24 * int(rng.integers(1, 10)), 10.0 ** int(rng.integers(-6, 7))
    occupied = (1, n - 1, n - 2)[seed % 3]
    values = np.sort(rng.uniform(-2, 2, n))
    values[:occupied] -= rng.uniform(0.02, 0.5)
    vectors, _ = np.linalg.qr(rng.normal(size=(n, n)))
    h = unit * (vectors * values) @ vectors.T
    h = (h + h.T) / 2
    values, vectors = np.linalg.eigh(h)
    exact = vectors[:, :occupied] @ vectors[:, :occupied].T
    for error in (1e-2, 1e-4, 1e-7):
        method: Any = "eigh" if seed % 4 == 3 else "sp2_accelerated"
        found = spectile.density_matrix(cupy.asarray(h), electrons=occupied, error=error, block=block, method=method)
        assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error + 1e-10
        for ends, value in zip((found.homo, found.lumo), values[occupied - 1 :][:2], strict=True):
            assert ends[0] - 1e-14 * n * unit <= value <= ends[1] + 1e-14 * n * unit


def test_a_temperature() -> None:
    i = np.arange(100)
    h = np.where(np.abs(i[:, None] - i) == 1, -1.0, 0.0)
    values, vectors = np.linalg.eigh(h)
    f = TileMatrix.from_dense(h, 20, hermitian=True).to_device()
    found = spectile.density_matrix(f, mu=0.1, beta=5.0, error=1e-5)
    exact = (vectors / (1 + np.exp(5.0 * (values - 0.1)))) @ vectors.T
    assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= 1e-5


def test_arrays_of_cupy() -> None:
    import cupy

    h = _insulator(200, 2)
    on_host = spectile.density_matrix(h, electrons=100, error=1e-5)
    there = spectile.density_matrix(cupy.asarray(h), electrons=100, error=1e-5)
    assert isinstance(there.matrix.data, cupy.ndarray)
    difference = np.linalg.norm(there.matrix.to_host().to_dense() - on_host.matrix.to_dense())
    assert difference <= there.error + on_host.error


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("order", [0, 1024])
def test_eigenvectors_of_a_part_and_of_the_whole_are_judged(dtype: str, order: int, monkeypatch: Any) -> None:
    """Those of a part by a Cholesky factor; the lowest one is left out then."""
    import cupy

    monkeypatch.setattr(dense, "WHOLE_ORDER", order)
    rng = np.random.default_rng(5)
    h = _insulator(230, 5) + (0.05j * _insulator(230, 6)[::-1] if np.dtype(dtype).kind == "c" else 0)
    h = ((h + h.conj().T) / 2).astype(dtype)
    values, vectors = np.linalg.eigh(h.astype(np.result_type(dtype, np.float64)))
    occupied, single = int(np.diff(values[60:170]).argmax()) + 61, dtype in ("float32", "complex64")
    exact, middle = vectors[:, :occupied] @ vectors[:, :occupied].conj().T, values[occupied - 1 : occupied + 1].mean()
    for words in (
        {"electrons": occupied},
        {"mu": middle},
        {"electrons": occupied, "permutation": rng.permutation(230)},
    ):
        found = spectile.density_matrix(
            cupy.asarray(h), error=1e-3 if single else 1e-9, method="eigh", block=24, **words
        )
        assert found.history == [] and found.matrix.dtype == dtype
        assert np.linalg.norm(found.matrix.to_dense().get() - exact) <= found.error <= (1e-3 if single else 1e-9)
        assert found.homo[0] <= values[occupied - 1] <= found.homo[1] + 1e-12
        assert found.lumo[0] - 1e-12 <= values[occupied] <= found.lumo[1]
    eigh = dense.eigh

    def without(a: Any, **part: Any) -> Any:
        w, v = eigh(a)
        end = part["subset_by_index"][1] + 2 if part else None
        return w[1:end], v[:, 1:end]

    monkeypatch.setattr(dense, "eigh", without)
    f = TileMatrix.from_dense(h, 24, hermitian=True).to_device()
    assert dense.diagonalized(on_grid(f), occupied - 1, None) is None


@pytest.mark.parametrize("method", list(maps.METHODS))
def test_every_method_keeps_the_error(method: Any) -> None:
    h = _insulator(200, 3)
    _, vectors = np.linalg.eigh(h)
    exact = vectors[:, :100] @ vectors[:, :100].T
    f = TileMatrix.from_dense(h, 25, hermitian=True).to_device()
    found = spectile.density_matrix(f, electrons=100, error=1e-5, method=method)
    assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= 1e-5


def test_a_start_of_the_last_cycle() -> None:
    h = _insulator(200, 4)
    i = np.arange(200)
    s = np.eye(200) + 0.1 * np.exp(-np.abs(i[:, None] - i))
    values, vectors = scipy.linalg.eigh(h, s)
    exact = vectors[:, :100] @ vectors[:, :100].T
    f, overlap = (TileMatrix.from_dense(x, 25, hermitian=True).to_device() for x in (h, s))
    first = spectile.density_matrix(f, overlap, electrons=100, error=1e-3, method="sp2")
    found = spectile.density_matrix(f, overlap, electrons=100, error=1e-6, start=first, method="sp2")
    assert np.linalg.norm(found.matrix.to_host().to_dense() - exact) <= found.error <= 1e-6
    assert found.homo[1] >= values[99] - 1e-9 and found.lumo[0] <= values[100] + 1e-9
    with pytest.raises(ValueError, match="start has other tiles"):
        spectile.density_matrix(f, overlap, electrons=100, start=_on_host(first))


def _on_host(found: Any) -> Any:
    return dataclasses.replace(found, matrix=found.matrix.to_host())


def test_inverse_roots_and_polar_decompositions() -> None:
    import cupy

    i = np.arange(120)
    s = np.exp(-0.8 * np.subtract.outer(i, i) ** 2.0)
    values, vectors = np.linalg.eigh(s)
    root = inverse_sqrt(cupy.asarray(s), error=1e-7, block=20)
    assert isinstance(root.data, cupy.ndarray)
    assert np.linalg.norm(root.to_host().to_dense() - (vectors / np.sqrt(values)) @ vectors.T) <= root.error.fro <= 1e-7
    a = np.tril(s)
    u, p = polar(cupy.asarray(a), error=1e-7, block=20)
    exact_u, exact_p = scipy.linalg.polar(a)
    assert np.linalg.norm(u.to_host().to_dense() - exact_u) <= u.error.fro <= 1e-7
    assert np.linalg.norm(p.to_host().to_dense() - exact_p) <= p.error.fro


@pytest.mark.parametrize("overlap", [False, True])
def test_all_devices_share_a_density_matrix(overlap: bool) -> None:
    import cupy

    h, i = _insulator(600, 3), np.arange(600)
    s = np.eye(600) + 0.1 * np.exp(-np.abs(i[:, None] - i)) if overlap else None
    values, vectors = scipy.linalg.eigh(h, s)
    exact = vectors[:, :300] @ vectors[:, :300].T
    for devices in range(1, cupy.cuda.runtime.getDeviceCount() + 1):
        found = spectile.density_matrix(h, s, electrons=300, error=1e-6, block=20, devices=devices)
        assert [part.device.id for part in found.matrix.data.parts] == [*range(devices)]
        assert np.linalg.norm(found.matrix.to_dense().get() - exact) <= found.error <= 1e-6
        assert abs(found.energy - values[:300].sum()) <= found.energy_error + 1e-10
        again = spectile.density_matrix(h, s, electrons=300, error=1e-6, block=20, devices=devices, start=found)
        assert np.linalg.norm(again.matrix.to_host().to_dense() - exact) <= again.error <= 1e-6
    assert cupy.cuda.runtime.getDevice() == 0
