"""tSparse: products of sparse matrices, by rows or by 8x8 bitmap tiles on tensor cores."""

from spectile.tsparse.api import SymbolicProduct, error_bound, spgemm, symbolic

__all__ = ["SymbolicProduct", "error_bound", "spgemm", "symbolic"]
