"""KPM: spectral densities of large sparse Hamiltonians (Kreutzer et al., IPDPS 2015), and what follows from them."""

from spectile.kpm.api import SpectralCurves, SpectralDensity, explain, kpm_dos, ldos, spectral_function
from spectile.kpm.iterator import Chebyshev, chebyshev, spectral_bounds

__all__ = [
    "Chebyshev",
    "SpectralCurves",
    "SpectralDensity",
    "chebyshev",
    "explain",
    "kpm_dos",
    "ldos",
    "spectral_bounds",
    "spectral_function",
]
