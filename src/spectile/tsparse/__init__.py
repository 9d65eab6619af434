"""tSparse: products of sparse matrices, by rows or by 8x8 bitmap tiles on tensor cores."""

from spectile.tsparse.api import error_bound, spgemm, symbolic
from spectile.tsparse.types import SymbolicProduct

__all__ = ["SymbolicProduct", "error_bound", "spgemm", "symbolic"]
