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
    monkeypatch.setattr(refine, "worth_on_gpu", lambda *_: 4)


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
    assert pairs[1:] in ([], [None])  # too far, or not even independent to rounding
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
    rng, n, shares = np.random.default_rng(8), 133, (2.0**-14, 2.0**-9, 2.0**-6)
    twist = 1j * np.triu(rng.standard_normal((n, n)), 1) if np.dtype(dtype).kind == "c" else 0
    turn = rng.standard_normal((n, n)) + twist
    a = np.diag(np.arange(float(n))) + 1e-3 * (turn + turn.conj().T)
    a[6, 6], a[7, 6], a[6, 7] = a[7, 7] - 0.05, 2e-3, 2e-3  # of all pairs the one that is strong
    b = (np.eye(n) + 1e-5 * random_hermitian(n, rng)).astype(dtype) if generalized else None
    given, x = (a.astype(dtype), b), np.diag(rng.uniform(0.5, 2, n)).astype(dtype)
    host = refine.Steps(*given, lower=True)
    device = Steps(*(None if each is None else cupy.asarray(each) for each in given), lower=True)
    single = dtype in ("float32", "complex64")
    for steps in (host, device):
        steps.begin(steps.xp.asarray(x))
        assert steps.defect() > 1e4
        steps.orthonormalize()
        assert steps.defect() < 1
    for third in (True, False):
        wanted, found = host.look(shares), device.look(shares)
        if third:
            scaled = [(each.residual / each.size, *each.turned) for each in (found, wanted)]
            np.testing.assert_allclose(*scaled, rtol=5e-2 if single else 1e-6, atol=1e-6)
            assert found.strong[2] == wanted.strong[2] == 1 and (single or found.strong == wanted.strong)
            assert [tuple(int(each[0]) for each in steps.pairs(shares[2], 1)) for steps in (host, device)] == [
                (7, 6)
            ] * 2
            clusters = [np.array([[0, 1], [6, 7]]), np.array([[2, 3, 4]])]
            host.turn(clusters)
            device.turn(clusters)
        host.advance(shares[2], exactly=third, third=third)
        device.advance(shares[2], exactly=third, third=third)
        assert device.defect() < 2 and (third or device.residual() < 2)
        same = abs(cupy.asnumpy(device.x).conj().T @ (host.x if b is None else b @ host.x))
        # Phases of clusters are free, and the second order is made in single precision.
        assert abs(same.diagonal() - 1).max() < (1e-4 if single else 1e-9)


@pytest.mark.parametrize("step", [3, 4, 5, 6])
def test_steps_of_a_self_consistent_field_take_one_correction_or_two(step):
    n = 1024
    h, change = kinetic(grid(n)) + np.diag(wells(grid(n), 0)), np.diag(wells(grid(n), 1))
    x0, a = spectile.eigh(cupy.asarray(h)).eigenvectors, h + 10.0**-step * change
    pair = refine.refined(Steps(cupy.asarray(a), lower=True), x0, 1 if step > 3 else 2)
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
