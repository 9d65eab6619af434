"""Two-stage symmetric eigensolver: detached band reduction, bulge chasing, divide and conquer."""

from spectile.evd.api import eigh, eigvalsh, tridiagonalize
from spectile.evd.types import Tridiagonalization

__all__ = ["Tridiagonalization", "eigh", "eigvalsh", "tridiagonalize"]
