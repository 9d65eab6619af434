"""Densities expanded in Chebyshev polynomials."""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.arrays import host_array
from spectile.core.copies import Fixed
from spectile.core.options import flag, numbers, positive_number
from spectile.core.pictures import axes_or_new, curve_html
from spectile.kpm import bounds as spectrum
from spectile.kpm import reference
from spectile.kpm.types import Array, Engine, Kernel


def drawn(axes: Any, x: Array, values: Array, errors: Array | None, xlabel: str, ylabel: str) -> Any:
    """Draw a curve, or a column each, with a band of its errors to both sides if they are numbers; return the axes."""
    axes = axes_or_new(axes)
    lines = axes.plot(x, values)
    if errors is not None and not np.isnan(errors).all():
        color = lines[0].get_color()
        axes.fill_between(x, values - errors, values + errors, alpha=0.4, color=color, linewidth=0)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return axes


class Drawn:
    """Densities by energy that can be drawn."""

    energies: Array
    densities: Any
    _ylabel = "density"

    def plot(self, axes: Any = None) -> Any:
        """Draw the density by energy, its real part where it is complex, with a band of one standard error of a mean.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            Without Matplotlib.
        """
        values = np.asarray(self.densities).real
        errors = getattr(self, "errors", None) if values.ndim == 1 else None
        return drawn(axes, self.energies, values, errors, "energy", self._ylabel)


class SpectralCurves(Fixed, Drawn):
    """Densities expanded in Chebyshev polynomials: one curve for each column of moments.

    Parameters
    ----------
    moments : ndarray, shape (M, K)
        μ_m of each curve, undamped.
    bounds : (float, float)
        Lowest and highest energy of the spectrum.
    kernel : {"jackson", "lorentz", "none"} or callable
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

    def __repr__(self) -> str:
        low, high = self.bounds
        number, curves = self.moments.shape
        return f"SpectralCurves({curves} curves of {number} moments, energies {low:.6g} to {high:.6g})"

    def _repr_html_(self) -> str:
        """Return the same with the mean of the curves, for notebooks."""
        return curve_html(repr(self), self.energies, self.densities.mean(axis=1))

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return the densities at any energies: shape (..., K), zero beyond `centre` ± `scale`."""
        # The difference first: far from zero its digits are what is left.
        x = self._a * (numbers("energy", energy) - self._b)
        return self._a * reference.chebyshev_density(self._damped, x.ravel()).reshape(*x.shape, self.moments.shape[1])

    def integrate(self, f: Callable[[Array], Array] | None = None, *, damped: bool = True) -> Array:
        """Return ∫ f(E) ρ(E) dE of each curve by Gauss–Chebyshev quadrature.

        Parameters
        ----------
        f : callable or None
            Function of an array of energies that gives one value for each, or rows of them, shape (..., 2 M): as many
            integrals at once.  None is 1.
        damped : bool
            Whether with the kernel.  Without it the integral of a function that M polynomials describe is exact: of a
            Fermi function of a temperature well above the energy resolution, but not of a step.

        Returns
        -------
        ndarray, shape (K,), or (..., K) for rows of values
        """
        if f is not None and not callable(f):
            raise TypeError(f"f = {reprlib.repr(f)} is no function: give one of an array of energies, or None for 1")
        values = np.ones_like(self.energies) if f is None else host_array("f's result", f(self.energies.copy()))
        if values.dtype.kind not in "biufc":
            raise TypeError(f"f gave {values.dtype}: it must give a number for each energy")
        if values.shape != () and values.shape[-1:] != self.energies.shape:
            raise ValueError(
                f"f gave shape {values.shape} for {len(self.energies)} energies: it must give one value for each"
            )
        weights = self._weights if flag("damped", damped) else self._undamped_weights
        values = np.broadcast_to(values, self.energies.shape) if values.shape == () else values
        return np.asarray(values @ weights / len(self.energies))

    @functools.cached_property
    def _undamped_weights(self) -> Array:
        """π sqrt(1 − x²) times the undamped densities at `energies`."""
        return reference.chebyshev_density_on_grid(self.moments, 2 * len(self.moments))[1][::-1]


def damping(kernel: Kernel, num_moments: int) -> Array:
    """Return the damping factors g_m of a kernel, by its name or by what it returns for M.

    Raises ValueError if the name is unknown, or a callable does not return M finite real numbers.
    """
    if not callable(kernel):
        kernels: dict[str, Callable[[int], Array]] = {
            "jackson": reference.jackson_kernel, "lorentz": reference.lorentz_kernel, "none": np.ones
        }  # fmt: skip
        if not isinstance(kernel, str) or kernel not in kernels:
            raise ValueError(
                f'kernel = {reprlib.repr(kernel)} is unknown: choose "jackson", "lorentz" or "none", or '
                "give a function of M"
            )
        return kernels[kernel](num_moments)
    factors = host_array("kernel's result", kernel(num_moments))
    if factors.shape != (num_moments,) or factors.dtype.kind not in "biuf" or not np.isfinite(factors).all():
        raise ValueError(
            f"kernel({num_moments}) gave {factors.dtype} of shape {factors.shape}: it must give {num_moments} finite "
            "real numbers, the factors of the moments"
        )
    return factors.astype(np.float64)


@dataclass(frozen=True)
class LorentzKernel:
    """Lorentz damping with a λ of your own: ``kernel=LorentzKernel(6.0)``; "lorentz" is λ = 4.

    Parameters
    ----------
    resolution : float
        λ; a state becomes a Lorentzian of half width λ/M of half the expansion's width.
    """

    resolution: float = 4.0

    def __post_init__(self) -> None:
        positive_number(self.resolution, "resolution")

    def __call__(self, num_moments: int) -> Array:
        """Return the factors of M moments."""
        return reference.lorentz_kernel(num_moments, self.resolution)


def moments_for(energy_resolution: float, engine: Engine, bounds: tuple[float, float]) -> int:
    """Return how many moments resolve an energy: π/M of the width of an expansion between these bounds.

    Raises ValueError if rounding of H hides such differences.
    """
    spectrum.require_resolved(engine, bounds, energy_resolution, f"energy_resolution = {energy_resolution}")
    return max(2, math.ceil(2 * np.pi / spectrum.scaling(bounds)[0] / energy_resolution))
