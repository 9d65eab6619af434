"""Eigenvectors refined on the device from those of a matrix nearby."""

import numpy as np
import pytest

import spectile
from spectile.evd import refine
from spectile.evd.cuda.refine import Steps
from spectile_study.cases.evd.sequences import grid, kinetic, wells
from spectile_study.inputs.spectra import random_hermitian, residuals

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def refining(monkeypatch):
    """Refine at every order, where it may take longer than a full solution, too."""
    monkeypatch.setattr(refine, "worth_on_gpu", lambda n, dtype: 4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [70, 333, 1500])
def test_vectors_of_a_matrix_nearby_are_refined(dtype, n, monkeypatch):
    rng = np.random.default_rng(n)
    a = cupy.asarray(random_hermitian(n, rng).astype(dtype))
    if a.dtype.kind == "c":
        twist = cupy.asarray(rng.standard_normal((n, n)).astype(a.real.dtype))
        a = a + 1j * (twist - twist.T) / 2
    x0 = spectile.eigh(a).eigenvectors
    step = cupy.asarray(random_hermitian(n, rng).astype(a.real.dtype))
    changed = a + a.dtype.type(1e-6) * step
    kept, pairs, whole = x0.copy(), [], refine.refined

    def noted(*args, **words):
        pairs.append(whole(*args, **words))
        return pairs[-1]

    monkeypatch.setattr(refine, "refined", noted)
    w, v = spectile.eigh(changed, x0=x0)
    assert len(pairs) == 1 and pairs[0] is not None and bool((x0 == kept).all())
    assert isinstance(w, cupy.ndarray) and w.dtype == a.real.dtype and v.dtype == a.dtype
    errors = residuals(cupy.asnumpy(changed), cupy.asnumpy(w), cupy.asnumpy(v))
    assert all(error < 10 for error in errors.values()), errors
    far = cupy.asarray(rng.standard_normal((n, n)).astype(dtype))
    w, v = spectile.eigh(changed, x0=far)
    assert pairs[-1] is None
    assert all(error < 10 for error in residuals(*map(cupy.asnumpy, (changed, w, v))).values())


def test_generalized_problems_and_batches_are_refined():
    rng, n = np.random.default_rng(1), 90
    a = np.stack([random_hermitian(n, rng) for _ in range(2)])
    b = np.eye(n) + random_hermitian(n, rng) / (8 * np.sqrt(n))
    x0 = np.stack([spectile.eigh(one, b, backend="cpu").eigenvectors for one in a])
    changed = a + 1e-7 * random_hermitian(n, rng)
    w, v = spectile.eigh(cupy.asarray(changed), cupy.asarray(b), x0=cupy.asarray(x0))
    w, v = cupy.asnumpy(w), cupy.asnumpy(v)
    for one, values, vectors in zip(changed, w, v, strict=True):
        assert np.linalg.norm(one @ vectors - b @ vectors * values) < 1e-11
        assert np.linalg.norm(vectors.T @ b @ vectors - np.eye(n)) < 1e-12


@pytest.mark.parametrize("generalized", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_each_step_is_that_of_the_host(dtype, generalized):
    rng, n, share = np.random.default_rng(8), 133, 1 / 64
    twist = 1j * np.triu(rng.standard_normal((n, n)), 1) if np.dtype(dtype).kind == "c" else 0
    turn = rng.standard_normal((n, n)) + twist
    a = (np.diag(rng.integers(0, 200, n)) + 1e-3 * (turn + turn.conj().T)).astype(dtype)
    b = (np.eye(n) + 1e-3 * random_hermitian(n, rng)).astype(dtype) if generalized else None
    x = np.diag(rng.uniform(0.5, 2, n)).astype(dtype)
    host, device = (
        refine.Steps(a, b, lower=True),
        Steps(*(None if m is None else cupy.asarray(m) for m in (a, b)), lower=True),
    )
    tolerance = 2e-3  # some levels coincide but for 1e-3, so that turns of order 1 meet in products of 11 bits
    for steps in (host, device):
        steps.begin(steps.xp.asarray(x))
    for second in (True, False):
        shares = share / 64, share / 8, share
        wanted, found = host.look(shares), device.look(shares)
        if second:
            scaled = [(each.residual / each.size, each.defect, each.turned) for each in (found, wanted)]
            np.testing.assert_allclose(*scaled, rtol=1e-2, atol=1e-6)
            assert found.strong == wanted.strong and wanted.strong[2] > 0
            pairs = [
                set(zip(*map(tuple, steps.pairs(share, wanted.strong[2])), strict=True)) for steps in (host, device)
            ]
            assert pairs[0] == pairs[1]
            clusters = [np.array([[0, 1], [5, 9]]), np.array([[2, 3, 4]])]
            host.turn(clusters)
            device.turn(clusters)
        host.advance(share, second)
        device.advance(share, second)
        same = abs(cupy.asnumpy(device.x).conj().T @ host.x / np.linalg.norm(host.x, axis=0) ** 2)
        assert abs(same.diagonal() - 1).max() < tolerance  # phases of clusters are free


@pytest.mark.parametrize("step", [3, 4, 5, 6])
def test_steps_of_a_self_consistent_field_take_two_corrections(step):
    n = 1024
    h, change = kinetic(grid(n)) + np.diag(wells(grid(n), 0)), np.diag(wells(grid(n), 1))
    x0, a = spectile.eigh(cupy.asarray(h)).eigenvectors, h + 10.0**-step * change
    pair = refine.refined(Steps(cupy.asarray(a), lower=True), x0, 2)
    assert pair is not None
    assert all(error < 10 for error in residuals(a, *map(cupy.asnumpy, pair)).values())


def test_vectors_that_are_too_far_are_seen_at_the_first_look(monkeypatch):
    looks, look, n = [], Steps.look, 700
    monkeypatch.setattr(Steps, "look", lambda steps, shares: looks.append(1) or look(steps, shares))
    a, change = (cupy.asarray(random_hermitian(n, np.random.default_rng(seed))) for seed in range(2))
    x0 = spectile.eigh(a).eigenvectors
    for far in (a + change, a + 0.1 * change):
        assert refine.refined(Steps(far, lower=True), x0) is None
    assert len(looks) == 2
