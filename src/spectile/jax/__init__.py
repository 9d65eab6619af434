"""Spectile's functions for arrays of JAX, with derivatives.

JAX is no dependency of the library: ``pip install "spectile[jax]"`` brings it.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError('spectile.jax needs JAX, which is not installed: pip install "spectile[jax]"') from error

from spectile.autodiff.near_sparse import NearSparseProduct
from spectile.autodiff.spectra import GaugeError, GaugeWarning
from spectile.jax.eigen import eigh, eigvalsh
from spectile.jax.functions import expm, logm, matrix_function, polar, sign, sqrtm
from spectile.jax.near_sparse import spamm
from spectile.jax.sparse import SymbolicProduct, spgemm, symbolic

__all__ = [
    "GaugeError", "GaugeWarning", "NearSparseProduct", "SymbolicProduct", "eigh", "eigvalsh", "expm", "logm",
    "matrix_function", "polar", "sign", "spamm", "spgemm", "sqrtm", "symbolic",
]  # fmt: skip
