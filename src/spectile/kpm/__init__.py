"""KPM: spectral densities of large sparse Hamiltonians (Kreutzer et al., IPDPS 2015), and what follows from them."""

from spectile.kpm.api import SpectralCurves, SpectralDensity, explain, kpm_dos, ldos, spectral_function
from spectile.kpm.curves import LorentzKernel
from spectile.kpm.expectation import SpectralExpectation
from spectile.kpm.functions import apply, evolve, greens_function
from spectile.kpm.interior import Count, InteriorPairs, count, filter_diagonalize
from spectile.kpm.iterator import Chebyshev, chebyshev, spectral_bounds
from spectile.kpm.observables import velocity
from spectile.kpm.response import Conductivity, Correlator, conductivity, correlator

__all__ = [
    "Chebyshev",
    "Conductivity",
    "Correlator",
    "Count",
    "InteriorPairs",
    "LorentzKernel",
    "SpectralCurves",
    "SpectralDensity",
    "SpectralExpectation",
    "apply",
    "chebyshev",
    "conductivity",
    "correlator",
    "count",
    "evolve",
    "explain",
    "filter_diagonalize",
    "greens_function",
    "kpm_dos",
    "ldos",
    "spectral_bounds",
    "spectral_function",
    "velocity",
]
