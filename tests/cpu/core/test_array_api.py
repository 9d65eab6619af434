"""Dense arrays of a library that has the array API and nothing else give what NumPy's give, in that library."""

import numpy as np
import pytest

import spectile
from spectile import nearsparse

strict = pytest.importorskip("array_api_strict")

N = 24
A = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 2.0)
ONE, LEVELS = np.eye(N), np.diag(np.arange(N) - 9.5)
D, E = np.arange(1.0, N + 1), np.ones(N - 1)
BAND = np.array([D, np.append(E, 0.0)])
CPU = {"backend": "cpu"}
#: Results that are arrays.
ARRAYS = {
    "spamm": lambda f: spectile.spamm(f(A), f(A), tau=0.1, beta=1.0, c=f(ONE), **CPU).c,
    "eigh": lambda f: spectile.eigh(f(A), **CPU).eigenvalues,
    "eigh, generalized": lambda f: spectile.eigh(f(A), f(ONE), **CPU)[0],
    "eigh, refined": lambda f: spectile.eigh(f(A), x0=f(np.linalg.eigh(A)[1]), **CPU)[0],
    "eigvalsh": lambda f: spectile.eigvalsh(f(A), **CPU),
    "eigh_tridiagonal": lambda f: spectile.eigh_tridiagonal(f(D), f(E), **CPU)[0],
    "eigvalsh_tridiagonal": lambda f: spectile.eigvalsh_tridiagonal(f(D), f(E), **CPU),
    "eig_banded": lambda f: spectile.eig_banded(f(BAND), lower=True, **CPU)[0],
    "eigvals_banded": lambda f: spectile.eigvals_banded(f(BAND), lower=True, **CPU),
    "tridiagonalize": lambda f: spectile.tridiagonalize(f(A), **CPU).d,
    "expm": lambda f: spectile.expm(f(A), **CPU),
    "logm": lambda f: spectile.logm(f(A), **CPU),
    "sqrtm": lambda f: spectile.sqrtm(f(A), **CPU),
    "sign": lambda f: spectile.sign(f(A), **CPU),
    "polar": lambda f: spectile.polar(f(A), **CPU)[0],
    "matrix_function": lambda f: spectile.matrix_function("exp", f(A), **CPU),
    "matrix_function_frechet": lambda f: spectile.matrix_function_frechet("exp", f(A), f(ONE), **CPU)[1],
}
#: Results that are numbers, or arrays of our own.
NUMBERS = {
    "spamm_threshold": lambda f: spectile.spamm_threshold(f(A), f(A), rtol_factors=1e-3, **CPU).tau,
    "tune_tau": lambda f: spectile.tune_tau(f(A), f(A), 0.5, block=8),
    "norm_map": lambda f: nearsparse.norm_map(f(A), 8).norms,
    "TileMatrix": lambda f: spectile.TileMatrix.from_dense(f(A), 8).to_dense(),
    "density_matrix": lambda f: spectile.density_matrix(f(LEVELS), electrons=10, error=1e-3).energy,
    "kpm_dos": lambda f: spectile.kpm_dos(f(A), 8, 2, rng=1, **CPU).moments,
    "ldos": lambda f: spectile.ldos(f(A), [3], 8, **CPU).moments,
    "density_matrix, overlap": lambda f: spectile.density_matrix(f(LEVELS), f(ONE), electrons=10, error=1e-3).energy,
}


@pytest.mark.parametrize("name", [*ARRAYS, *NUMBERS])
def test_arrays_of_the_standard_alone_are_taken(name):
    call = (ARRAYS | NUMBERS)[name]
    found = call(strict.asarray)
    assert name in NUMBERS or type(found) is type(strict.asarray(A))
    np.testing.assert_allclose(np.asarray(found), call(lambda x: x), rtol=1e-12, atol=1e-12)
