"""tSparse: products of sparse matrices, row by row, on CPUs and CUDA devices."""

from spectile.tsparse.api import error_bound, explain, galerkin, spgemm, symbolic
from spectile.tsparse.types import SymbolicProduct

__all__ = ["SymbolicProduct", "error_bound", "explain", "galerkin", "spgemm", "symbolic"]
