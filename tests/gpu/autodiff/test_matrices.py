"""Functions of Hermitian matrices of CuPy, against other means on the host."""

import numpy as np
import pytest

import spectile
from tests.eigenproblems import LAYOUTS
from tests.matrix_functions import DTYPES, SHIFTS, check, operand
from tests.spectra import SPECTRA

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHIFTS)
def test_values_and_derivatives(name, dtype, layout):
    for i, spectrum in enumerate(SPECTRA):
        check(cupy, name, spectrum, dtype, layout, bool(i % 2))


def test_callables_take_arrays_of_the_operands_kind():
    a, seen = operand("random", 0.7, "float64"), []

    def inverse(w):
        seen.append(type(w))
        return 1 / w

    for given, kind in ((a, np.ndarray), (cupy.asarray(a), cupy.ndarray)):
        found = spectile.matrix_function(inverse, given, backend="cuda")
        assert type(found) is kind and seen.pop() is kind
        np.testing.assert_allclose(cupy.asnumpy(found), np.linalg.inv(a), rtol=1e-10, atol=1e-10)
        value, derivative = spectile.matrix_function_frechet(inverse, given, given, df=lambda w: -1 / w**2)
        assert type(value) is type(derivative) is kind
        np.testing.assert_allclose(cupy.asnumpy(derivative), -np.linalg.inv(a), rtol=1e-9, atol=1e-9)


def test_large_and_in_place():
    n = 1500
    a = cupy.random.default_rng(0).standard_normal((n, n))
    a = cupy.asfortranarray(a @ a.T / n + cupy.eye(n))
    kept = a.copy()
    root = spectile.sqrtm(a)
    assert float(cupy.linalg.norm(root @ root - a)) < 1e-11 * n
    assert bool((a == kept).all())
    assert float(cupy.linalg.norm(spectile.sqrtm(a, overwrite_a=True) - root)) < 1e-11 * n


def test_refusals():
    for words in ({"e": cupy.eye(3) * np.nan}, {"e": cupy.eye(2)}):
        with pytest.raises(ValueError, match=r"^e "):
            spectile.matrix_function_frechet("exp", cupy.eye(3), **words)
    with pytest.raises(ValueError, match="log needs eigenvalues that are positive"):
        spectile.logm(-cupy.eye(3))
    with pytest.raises(ValueError, match="backend"):
        spectile.expm(cupy.eye(3), backend="cpu")
