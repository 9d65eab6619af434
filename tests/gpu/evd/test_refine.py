"""Eigenvectors refined on the device from those of a matrix nearby."""

import numpy as np
import pytest

import spectile
from spectile.evd import refine
from spectile_study.inputs.spectra import random_hermitian, residuals

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


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
