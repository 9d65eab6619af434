"""KPM: spectral densities of large sparse Hamiltonians (Kreutzer et al., IPDPS 2015), and what follows from them.

M. Kreutzer et al., "Performance Engineering of the Kernel Polynomial Method on Large-Scale CPU-GPU Systems",
IPDPS 2015,
https://doi.org/10.1109/IPDPS.2015.76.
"""

from spectile.kpm.api import SpectralCurves, SpectralDensity, explain, kpm_dos, ldos, spectral_function
from spectile.kpm.curves import LorentzKernel
from spectile.kpm.expectation import SpectralExpectation
from spectile.kpm.functions import apply, evolve, greens_function
from spectile.kpm.interior import Count, InteriorPairs, count, filter_diagonalize
from spectile.kpm.iterator import Chebyshev, chebyshev, spectral_bounds
from spectile.kpm.models import LatticeModel, Sample, average, from_kwant, from_pybinding, from_pythtb, read_wannier90
from spectile.kpm.observables import velocity
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.response import Conductivity, Correlator, conductivity, correlator

__all__ = [
    "Chebyshev",
    "Conductivity",
    "Correlator",
    "Count",
    "InteriorPairs",
    "LatticeModel",
    "LorentzKernel",
    "Operator",
    "Sample",
    "SpectralCurves",
    "SpectralDensity",
    "SpectralExpectation",
    "TopologicalInsulator",
    "apply",
    "average",
    "chebyshev",
    "conductivity",
    "correlator",
    "count",
    "evolve",
    "explain",
    "filter_diagonalize",
    "from_kwant",
    "from_pybinding",
    "from_pythtb",
    "greens_function",
    "kpm_dos",
    "ldos",
    "read_wannier90",
    "spectral_bounds",
    "spectral_function",
    "velocity",
]
