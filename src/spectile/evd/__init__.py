"""Two-stage symmetric eigensolver: detached band reduction, bulge chasing, divide and conquer."""

from spectile.evd.api import Tridiagonalization, eigh, eigvalsh, tridiagonalize

__all__ = ["Tridiagonalization", "eigh", "eigvalsh", "tridiagonalize"]
