"""Densities expanded in Chebyshev polynomials."""

from __future__ import annotations

import reprlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spectile.kpm import bounds as spectrum
from spectile.kpm import reference
from spectile.kpm.types import Array, Kernel


class SpectralCurves:
    """Densities expanded in Chebyshev polynomials: one curve for each column of moments.

    Parameters
    ----------
    moments : ndarray, shape (M, K)
        μ_m of each curve, undamped.
    bounds : (float, float)
        Lowest and highest energy of the spectrum.
    kernel : {"jackson", "lorentz"} or callable
        Damping.
    scaling : (float, float) or None
        a and b of H̃ = a (H − b); None takes those of `bounds`.

    Attributes
    ----------
    moments : ndarray, shape (M, K)
        ⟨T_m(H̃)⟩ of each curve, undamped, with H̃ = (H − `centre`) / `scale`.
    scale, centre : float
        Of H̃, in the units of H: the expansion reaches from `centre` − `scale` to `centre` + `scale`.
    bounds : (float, float)
        Energies between which the spectrum lies: `centre` ∓ 0.99 `scale`, so that it stays within [−0.99, 0.99].
    energies : ndarray, shape (2 M,)
        Gauss–Chebyshev abscissas, ascending, in the units of H.
    densities : ndarray, shape (2 M, K)
        Density at `energies`, per unit energy.
    """

    def __init__(
        self,
        moments: Array,
        bounds: tuple[float, float],
        kernel: Kernel = "jackson",
        scaling: tuple[float, float] | None = None,
    ) -> None:
        self.moments, self.bounds, self.kernel = moments, bounds, kernel
        self._damped = moments * damping(kernel, len(moments))[:, None]
        self._a, self._b = scaling or spectrum.scaling(bounds)
        self.scale, self.centre = 1 / self._a, self._b
        x, self._weights = (grid[::-1] for grid in reference.chebyshev_density_on_grid(self._damped, 2 * len(moments)))
        self.energies = x / self._a + self._b
        with np.errstate(over="ignore"):
            self.densities = self._weights * (self._a / (np.pi * np.sqrt(1 - x**2)))[:, None]
        if np.isinf(self.densities).any():
            raise ValueError("the density is beyond the largest number of float64: take a smaller unit of energy")

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return the densities at any energies: shape (..., K), zero beyond `centre` ± `scale`."""
        # The difference first: far from zero its digits are what is left.
        x = self._a * (np.asarray(energy, dtype=np.float64) - self._b)
        return self._a * reference.chebyshev_density(self._damped, x.ravel()).reshape(*x.shape, self.moments.shape[1])

    def integrate(self, f: Callable[[Array], Array] | None = None) -> Array:
        """Return ∫ f(E) ρ(E) dE of each curve by Gauss–Chebyshev quadrature; f None is 1."""
        values = np.ones_like(self.energies) if f is None else np.asarray(f(self.energies))
        if values.shape not in ((), self.energies.shape):
            raise ValueError(
                f"f gave shape {values.shape} for {len(self.energies)} energies: it must give one value for each"
            )
        return np.asarray(np.broadcast_to(values, self.energies.shape) @ self._weights / len(self.energies))


def damping(kernel: Kernel, num_moments: int) -> Array:
    """Return the damping factors g_m of a kernel, by its name or by what it returns for M.

    Raises
    ------
    ValueError
        If the name is unknown, or a callable does not return M finite real numbers.
    """
    if not callable(kernel):
        kernels = {"jackson": reference.jackson_kernel, "lorentz": reference.lorentz_kernel}
        if not isinstance(kernel, str) or kernel not in kernels:
            raise ValueError(
                f'kernel = {reprlib.repr(kernel)} is unknown: choose "jackson" or "lorentz", or give a function of M'
            )
        return kernels[kernel](num_moments)
    factors = np.asarray(kernel(num_moments))
    if factors.shape != (num_moments,) or factors.dtype.kind not in "biuf" or not np.isfinite(factors).all():
        raise ValueError(
            f"kernel({num_moments}) gave {factors.dtype} of shape {factors.shape}: it must give {num_moments} finite "
            "real numbers, the factors of the moments"
        )
    return factors.astype(np.float64)
