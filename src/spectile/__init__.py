"""Numerical linear algebra for near-sparse, sparse and symmetric matrices, on GPUs and CPUs.

=================  ==============================================================================================
``spamm``          near-sparse product that skips what is negligible (SpAMM; Liu et al., 2021)
``spgemm``         sparse product, over semirings and under masks (tSparse; Zachariadis et al., 2020)
``eigh``           eigenvalues and eigenvectors of a symmetric matrix (EVD; Wang et al., 2024)
``kpm_dos``        spectral density of a huge sparse Hamiltonian (KPM; Kreutzer et al., 2015)
=================  ==============================================================================================

These are the chief functions of four systems, and each has relatives: ``dir(spectile)`` lists them all.  ``TileMatrix``
is a near-sparse matrix as an object that carries a bound of its error; ``density_matrix`` and `spectile.density`
compute functions of such matrices.  ``spectile.torch`` and ``spectile.jax`` have products, eigenvalues and matrix
functions with derivatives, for tensors of PyTorch and arrays of JAX.

Importing this package loads neither Numba nor CuPy; a function does when it is first called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from spectile.core.version import __version__ as __version__

if TYPE_CHECKING:  # what type checkers know the names by: to them, too, a misspelt one is an error
    from spectile import density as density
    from spectile import evd as evd
    from spectile import jax as jax
    from spectile import kpm as kpm
    from spectile import nearsparse as nearsparse
    from spectile import tiles as tiles
    from spectile import torch as torch
    from spectile import tsparse as tsparse
    from spectile.autodiff.matrices import expm, logm, matrix_function, matrix_function_frechet, polar, sign, sqrtm
    from spectile.core.choice import explain
    from spectile.core.config import show_config
    from spectile.density import density_matrix
    from spectile.evd import (
        eig_banded,
        eigh,
        eigh_tridiagonal,
        eigvals_banded,
        eigvalsh,
        eigvalsh_tridiagonal,
        tridiagonalize,
    )
    from spectile.kpm import (
        SpectralDensity,
        chebyshev,
        conductivity,
        correlator,
        evolve,
        filter_diagonalize,
        greens_function,
        kpm_dos,
        ldos,
        spectral_bounds,
        spectral_function,
    )
    from spectile.nearsparse import SpammResult, spamm, spamm_plan, spamm_threshold, tune_tau
    from spectile.tiles import TileMatrix
    from spectile.tsparse import spgemm

#: Where the public names are at home.
_HOMES = {
    name: home
    for home, names in {
        "nearsparse": ("SpammResult", "spamm", "spamm_plan", "spamm_threshold", "tune_tau"),
        "tiles": ("TileMatrix",),
        "density": ("density_matrix",),
        "tsparse": ("spgemm",),
        "evd": (
            "eig_banded", "eigh", "eigh_tridiagonal", "eigvals_banded", "eigvalsh", "eigvalsh_tridiagonal",
            "tridiagonalize",
        ),
        "autodiff.matrices": (
            "expm", "logm", "matrix_function", "matrix_function_frechet", "polar", "sign", "sqrtm"
        ),
        "kpm": (
            "SpectralDensity", "chebyshev", "conductivity", "correlator", "evolve", "filter_diagonalize",
            "greens_function", "kpm_dos", "ldos", "spectral_bounds", "spectral_function",
        ),
        "core.choice": ("explain",),
        "core.config": ("show_config",),
    }.items()
    for name in names
}  # fmt: skip
_PACKAGES = ("density", "evd", "kpm", "nearsparse", "tiles", "tsparse")
#: Modules for libraries that are no dependencies.
_OPTIONAL = ("jax", "torch")
__all__ = [
    "SpammResult",
    "SpectralDensity",
    "TileMatrix",
    "chebyshev",
    "conductivity",
    "correlator",
    "density_matrix",
    "eig_banded",
    "eigh",
    "eigh_tridiagonal",
    "eigvals_banded",
    "eigvalsh",
    "eigvalsh_tridiagonal",
    "evolve",
    "explain",
    "expm",
    "filter_diagonalize",
    "greens_function",
    "kpm_dos",
    "ldos",
    "logm",
    "matrix_function",
    "matrix_function_frechet",
    "polar",
    "show_config",
    "sign",
    "spamm",
    "spamm_plan",
    "spamm_threshold",
    "spectral_bounds",
    "spectral_function",
    "spgemm",
    "sqrtm",
    "tridiagonalize",
    "tune_tau",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name, or a system's package, when it is first used."""
        if name in (*_PACKAGES, *_OPTIONAL):
            return importlib.import_module(f"spectile.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'spectile' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"spectile.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names and packages, loaded or not."""
    return sorted({*_HOMES, *_PACKAGES, *_OPTIONAL, *(name for name in globals() if name.startswith("__"))})
