"""What KPM is made of, in NumPy: start vectors, and the reconstruction of the density from the scalar products.

The paper stops at the scalar products η; the kernels and sums after them follow Weiße, Wellein, Alvermann, Fehske,
Rev. Mod. Phys. 78, 275 (2006), "RMP" below.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.options import generator
from spectile.kpm.types import Array

_VECTOR_STRIDE, _ROW_STRIDE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_ROUNDS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def seed_of(rng: int | np.random.Generator | None) -> int:
    """Return the seed of the random vectors that a call with this `rng` takes."""
    return int(generator("rng", rng).integers(2**62))


def random_phases(
    seed: int, num_rows: int, num_vectors: int, *, first_vector: int = 0, real: bool = False, dtype: Any = None
) -> Array:
    """Return start vectors |ν₀⟩ with E[ν ν†] = 1: entries from {1, i, −1, −i}, or ±1 for a real matrix.

    Each entry is a hash (splitmix64) of seed, below 2**63, row and vector: every backend and every rank makes the same
    numbers from its own rows, and vector r does not depend on how many vectors there are.  Shape (num_rows,
    num_vectors).
    """
    dtype = np.dtype(dtype or (np.float64 if real else np.complex128))
    real = dtype.kind != "c"
    phases = np.array([1, -1] if real else [1, 1j, -1, -1j], dtype)
    block = np.empty((num_rows, num_vectors), phases.dtype)
    vector = np.arange(first_vector, first_vector + num_vectors, dtype=np.uint64)[None, :]
    # Some rows at a time: the bits take more memory than single-precision phases do.
    together = max(1, (1 << 16) // num_vectors)
    for first in range(0, num_rows, together):
        row = np.arange(first, min(num_rows, first + together), dtype=np.uint64)[:, None]
        with np.errstate(over="ignore"):
            bits = phase_bits(np.uint64(seed), row, vector)
        block[first : first + together] = phases[(bits >> np.uint64(63 if real else 62)).astype(np.intp)]
    return block


def phase_bits(seed: Any, row: Any, vector: Any) -> Any:
    """Return the 64 bits of an entry of a random vector: splitmix64 of seed and vector, then of that and the row.

    The arguments are uint64, numbers or arrays; Numba compiles this function for the CPU's kernels, and
    ``cuda/phases.cuh`` says the same in CUDA.  The first bit is the sign of a real
    entry, the first two are the quarter turns of a complex one.
    """
    bits = seed + vector * _VECTOR_STRIDE
    for offset in (np.uint64(0), row * _ROW_STRIDE):
        bits = bits + offset
        bits = (bits ^ (bits >> _SHIFTS[0])) * _ROUNDS[0]
        bits = (bits ^ (bits >> _SHIFTS[1])) * _ROUNDS[1]
        bits = bits ^ (bits >> _SHIFTS[2])
    return bits


def moments_from_etas(etas: Array) -> Array:
    """Return μ_m = ⟨ν₀|T_m(H̃)|ν₀⟩ from the scalar products, by T_j T_k = (T_j+k + T_|j−k|)/2.

    μ_2m = 2 η_2m − μ_0 and μ_2m+1 = 2 η_2m+1 − μ_1 for m >= 1; μ_0 = η_0, μ_1 = η_1.
    """
    moments = np.array(etas, dtype=np.float64)
    moments[2::2] = 2 * etas[2::2] - etas[0]
    moments[3::2] = 2 * etas[3::2] - etas[1]
    return moments


def jackson_kernel(num_moments: int) -> Array:
    """Return Jackson's damping factors g_m (RMP Eq. 71), which keep the density positive."""
    m = np.arange(num_moments)
    q = np.pi / (num_moments + 1)
    return ((num_moments - m + 1) * np.cos(q * m) + np.sin(q * m) / np.tan(q)) / (num_moments + 1)


def lorentz_kernel(num_moments: int, resolution: float = 4.0) -> Array:
    """Return the Lorentz damping factors g_m = sinh(λ(1 − m/M))/sinh λ (RMP Eq. 79), λ = `resolution`."""
    share = np.arange(num_moments) / num_moments
    # Without the exponentials of large λ.
    return np.exp(-resolution * share) * np.expm1(-2 * resolution * (1 - share)) / np.expm1(-2 * resolution)


def chebyshev_density(damped_moments: Array, x: Array) -> Array:
    """Return ρ(x) = [μ_0 + 2 Σ_m μ_m T_m(x)] / (π sqrt(1 − x²)) for |x| < 1 (RMP Eq. 81), zero outside, NaN for NaN.

    The moments, g_m μ_m, have the shape (M,) or (M, K), x the shape (E,), and the result (E,) or (E, K).
    """
    x = np.asarray(x, dtype=np.float64)
    coefficients = np.concatenate([damped_moments[:1], 2 * damped_moments[1:]])
    inside = np.abs(x) < 1
    values = np.moveaxis(np.polynomial.chebyshev.chebval(np.where(inside, x, 0.0), coefficients), -1, 0)
    weight = np.where(inside, 1 / (np.pi * np.sqrt(1 - np.where(inside, x, 0.0) ** 2)), np.where(np.isnan(x), x, 0.0))
    return values * weight.reshape((-1,) + (1,) * (values.ndim - 1))


def chebyshev_density_on_grid(damped_moments: Array, num_points: int) -> tuple[Array, Array]:
    """Return Gauss–Chebyshev abscissas x_k = cos(π (k + 1/2)/K) and π sqrt(1 − x²) ρ(x_k), by one cosine transform.

    The moments, g_m μ_m, have the shape (M,) or (M, K); K is `num_points`, M or more.
    """
    from scipy.fft import dct

    padded = np.zeros((num_points, *damped_moments.shape[1:]), damped_moments.dtype)
    padded[: len(damped_moments)] = damped_moments
    x = np.cos(np.pi * (np.arange(num_points) + 0.5) / num_points)
    return x, dct(padded, type=3, axis=0)


def standard_error(values: Array, axis: int) -> Any:
    """Return the standard error of a mean over an axis, NaN of one value, whatever the size of the values."""
    count = values.shape[axis]
    if count == 1:
        return np.full(np.delete(values.shape, axis), np.nan)[()]
    largest = float(abs(values).max(initial=0.0))
    unit = 2.0 ** (math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0
    return ((values / unit).std(axis=axis, ddof=1) / math.sqrt(count) * unit)[()]
