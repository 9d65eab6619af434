"""Functions of Hermitian matrices for NumPy and CuPy: what is called, and what comes out by other means."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

import spectile
from tests.eigenproblems import laid_out
from tests.spectra import SPECTRA, with_spectrum

#: Shifts of SPECTRA into the domain of each function.
SHIFTS = {"exp": 0.0, "log": 0.7, "sqrt": 0.7, "sign": -1.3, "abs": -1.3}
DTYPES = ("float64", "float32", "complex128", "complex64")


def _sign(a: np.ndarray) -> np.ndarray:
    """Return the sign of any matrix by Newton's iteration, in which no eigenvalue is computed."""
    for _ in range(60):
        a = (a + np.linalg.inv(a)) / 2
    return a


BY_OTHER_MEANS = {
    "exp": scipy.linalg.expm,
    "log": scipy.linalg.logm,
    "sqrt": scipy.linalg.sqrtm,
    "sign": _sign,
    "abs": lambda a: a @ _sign(a),
}


def with_derivative(name: str, a: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return f(A) and L(A, E), which are blocks of f([[A, E], [0, A]]) (Higham, theorem 3.6)."""
    n = len(a)
    both = BY_OTHER_MEANS[name](np.block([[a, e], [np.zeros_like(a), a]]))
    return both[:n, :n], both[:n, n:]


def operand(spectrum: str, shift: float, dtype: str) -> np.ndarray:
    return with_spectrum(np.add(SPECTRA[spectrum], shift), np.dtype(dtype).kind == "c").astype(dtype)


def direction(n: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(n)
    return (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))).astype(dtype)


def check(xp: Any, name: str, spectrum: str, dtype: str, layout: str, lower: bool) -> None:
    """Compare a batch of two, laid out in any way, with the other means; nothing is written to."""
    a = operand(spectrum, SHIFTS[name], dtype)
    e = direction(len(a), "complex128").real.astype(a.real.dtype)
    pair = np.stack([a, 2 * a])
    given = laid_out(pair, layout, lower, xp)
    kept = given.copy()
    scale = np.finfo(dtype).eps * 1e3
    found = spectile.matrix_function(name, given, lower=lower)
    value, derivative = spectile.matrix_function_frechet(name, given, xp.asarray(e), lower=lower)
    assert type(found) is xp.ndarray and found.dtype == dtype and derivative.dtype == dtype
    assert bool((given == kept).all())
    for i, one in enumerate(pair.astype("complex128")):
        wanted, slope = with_derivative(name, one, e)
        size = np.linalg.norm(wanted) + np.linalg.norm(slope)
        for ours, theirs in ((found[i], wanted), (value[i], wanted), (derivative[i], slope)):
            ours = ours if xp is np else xp.asnumpy(ours)
            assert np.linalg.norm(ours - theirs) < scale * size
