"""SciPy's own tests of its eigensolvers, run from the installed SciPy with ours in the place of SciPy's."""

import functools

import numpy as np
import pytest
import scipy.linalg
from scipy.linalg.tests import test_decomp

from spectile import evd
from spectile_study.inputs.spectra import random_hermitian

NAMES = ("eigh", "eigvalsh", "eigh_tridiagonal", "eigvalsh_tridiagonal", "eig_banded", "eigvals_banded")
OURS = {name: functools.partial(getattr(evd, name), backend="cpu") for name in NAMES}


@pytest.fixture(autouse=True)
def ours_in_their_place(monkeypatch):
    for name, function in OURS.items():
        monkeypatch.setattr(test_decomp, name, function)


class TestEigh(test_decomp.TestEigh):
    """SciPy's."""


class TestEigBanded(test_decomp.TestEigBanded):
    """SciPy's."""


class TestEigTridiagonal(test_decomp.TestEigTridiagonal):
    """SciPy's."""


@pytest.mark.parametrize("name", ["eigh", "eigvalsh", "eig_banded", "eigvals_banded"])
def test_nothing_is_overwritten(name):
    getattr(test_decomp.TestOverwrite(), f"test_{name}")()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("second", [False, True])
def test_batches_broadcast(second, dtype):
    """As SciPy's test of batches, which cannot be collected from outside."""
    rng = np.random.default_rng(8342310302941288912051)
    a, b = (random_hermitian(4, rng, dtype) + rng.standard_normal((*lead, 1, 1)).astype(dtype) * np.eye(4, dtype=dtype)
            for lead in ((1, 3), (2, 1)))  # fmt: skip
    b = b + 12 * np.eye(4, dtype=dtype)
    w, v = evd.eigh(a, b if second else None, backend="cpu")
    assert w.shape == ((2, 3, 4) if second else (1, 3, 4))
    a, b = np.broadcast_arrays(a, b) if second else (a, np.broadcast_to(np.eye(4, dtype=dtype), a.shape))
    for index in np.ndindex(*w.shape[:-1]):
        expected = scipy.linalg.eigh(a[index], b[index], eigvals_only=True)
        np.testing.assert_allclose(w[index], expected, rtol=1e-4 if w.dtype == np.float32 else 1e-10)
        np.testing.assert_allclose(a[index] @ v[index], b[index] @ v[index] * w[index], atol=1e-4)
    assert v.dtype == np.dtype(dtype)
