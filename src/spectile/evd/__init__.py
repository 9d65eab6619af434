"""Two-stage symmetric eigensolver: detached band reduction, bulge chasing, divide and conquer.

H. Wang et al., "Extracting the Potential of Emerging Hardware Accelerators for Symmetric Eigenvalue
Decomposition", 2024.
"""

from spectile.evd.api import eigh, eigvalsh, explain, tridiagonalize
from spectile.evd.distributed import BlockCyclicMatrix
from spectile.evd.narrow import eig_banded, eigh_tridiagonal, eigvals_banded, eigvalsh_tridiagonal
from spectile.evd.types import EighResult, Tridiagonalization

__all__ = ["BlockCyclicMatrix", "EighResult", "Tridiagonalization", "eig_banded", "eigh", "eigh_tridiagonal"]
__all__ += ["eigvals_banded", "eigvalsh", "eigvalsh_tridiagonal", "explain", "tridiagonalize"]
