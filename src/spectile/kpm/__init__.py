"""KPM: spectral densities of large sparse Hamiltonians (Kreutzer et al., IPDPS 2015)."""

from spectile.kpm.api import SpectralCurves, SpectralDensity, explain, kpm_dos, ldos, spectral_function

__all__ = ["SpectralCurves", "SpectralDensity", "explain", "kpm_dos", "ldos", "spectral_function"]
