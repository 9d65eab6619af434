"""Spectile's functions for tensors of PyTorch, with derivatives.

PyTorch is no dependency of the library: ``pip install "spectile[torch]"`` brings it.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('spectile.torch needs PyTorch, which is not installed: pip install "spectile[torch]"') from error

from spectile.autodiff.near_sparse import NearSparseProduct
from spectile.autodiff.spectra import GaugeError, GaugeWarning
from spectile.torch.eigen import eigh, eigvalsh
from spectile.torch.functions import expm, logm, matrix_function, polar, sign, sqrtm
from spectile.torch.near_sparse import spamm
from spectile.torch.sparse import SymbolicProduct, spgemm, symbolic

__all__ = [
    "GaugeError", "GaugeWarning", "NearSparseProduct", "SymbolicProduct", "eigh", "eigvalsh", "expm", "logm",
    "matrix_function", "polar", "sign", "spamm", "spgemm", "sqrtm", "symbolic",
]  # fmt: skip
