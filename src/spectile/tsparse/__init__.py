"""tSparse: products of sparse matrices, row by row, on CPUs and CUDA devices.

O. Zachariadis et al., "Accelerating sparse matrix-matrix multiplication with GPU Tensor Cores", Computers & Electrical
Engineering 88, 2020, https://doi.org/10.1016/j.compeleceng.2020.106848.
"""

from spectile.tsparse.api import error_bound, explain, galerkin, row_blocks, spgemm, spmm, symbolic
from spectile.tsparse.types import SymbolicProduct

__all__ = ["SymbolicProduct", "error_bound", "explain", "galerkin", "row_blocks", "spgemm", "spmm", "symbolic"]
