"""Dense arrays of a library that has the array API and nothing else give what NumPy's give, in that library.

PyTorch's are beside them: they have more, but no dtype that NumPy knows either.
"""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile import density, kpm, nearsparse, tsparse

N = 24
A = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 2.0)
ONE, LEVELS = np.eye(N), np.diag(np.arange(N) - 9.5)
D, E = np.arange(1.0, N + 1), np.ones(N - 1)
BAND = np.array([D, np.append(E, 0.0)])
PLACES = np.arange(float(N))[:, None]
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
    "density.inverse_factor": lambda f: density.inverse_factor(f(A)).to_dense(),
    "spmm": lambda f: tsparse.spmm(sp.csr_array(A), f(ONE)),
    "kpm_dos, vectors": lambda f: spectile.kpm_dos(f(A), 8, vectors=f(ONE), **CPU).moments,
    "kpm_dos, operator": lambda f: spectile.kpm_dos(f(A), 8, 2, rng=1, operator=f(A), **CPU).moments,
    "a density at energies": lambda f: spectile.kpm_dos(f(A), 8, 2, rng=1, **CPU)(f(D)),
    "spectral_function": lambda f: (
        spectile.spectral_function(f(A), f(ONE[:2, :1]), f(PLACES), num_moments=8, **CPU).moments
    ),
    "spectral_bounds": lambda f: spectile.spectral_bounds(f(A)),
    "count": lambda f: kpm.count(f(A), (1.0, 2.0), num_moments=8, rng=1, **CPU).value,
    "evolve": lambda f: spectile.evolve(f(A), f(ONE[:, :2]), f(D), **CPU),
    "apply": lambda f: kpm.apply(np.cos, f(A), f(ONE[0]), **CPU),
    "chebyshev": lambda f: list(spectile.chebyshev(f(A), f(ONE), 4, bra=f(A), **CPU)),
    "greens_function": lambda f: spectile.greens_function(f(A), [0], [1], f(D), 0.5, **CPU),
    "correlator": lambda f: spectile.correlator(f(A), f(A), f(A), num_moments=4, rng=1, **CPU).moments,
    "conductivity": lambda f: spectile.conductivity(
        f(A), "x", "x", f(PLACES), area=1.0, num_moments=4, num_vectors=2, rng=1, **CPU
    )(f(D)),
    "velocity": lambda f: kpm.velocity(f(A), "x", f(PLACES)).toarray(),
    "filter_diagonalize": lambda f: spectile.filter_diagonalize(f(A), (2.0, 9.0), rng=1, **CPU)[0],
}


@pytest.mark.parametrize(("library", "name"), itertools.product(("array_api_strict", "torch"), (*ARRAYS, *NUMBERS)))
def test_arrays_of_other_libraries_are_taken(library, name):
    asarray = pytest.importorskip(library).asarray
    call = (ARRAYS | NUMBERS)[name]
    found = call(asarray)
    assert name in NUMBERS or type(found) is type(asarray(A))
    np.testing.assert_allclose(np.asarray(found), call(lambda x: x), rtol=1e-12, atol=1e-12)
