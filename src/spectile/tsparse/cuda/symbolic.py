"""The pattern of a product on the device, kept for further products with the same patterns."""

from __future__ import annotations

from typing import Any

from spectile.tsparse import errors
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.factors import checked, with_checked_factors
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.run import chunk_of, finish, least_bytes
from spectile.tsparse.matrices import device_csr, is_array, to_host
from spectile.tsparse.types import Factor, lookup


class SymbolicProduct:
    """The pattern of C = A B on the device, kept for further products of matrices with the same patterns.

    Attributes
    ----------
    shape : tuple of int
        Shape of C.
    nnz : int
        Stored entries of C.
    products : int
        Multiplications of one product.
    """

    def __init__(self, A: Any, B: Any, memory_limit: int | None, host: bool) -> None:
        self.shape = (A.shape[0], B.shape[1])
        chunk, scratch = chunk_of(memory_limit, *self.shape)
        if chunk < self.shape[0]:
            need = least_bytes(*self.shape)
            raise MemoryError(
                f"memory_limit is {memory_limit} bytes, and the kept pattern of {self.shape[0]} rows takes {need}; "
                f"raise it to at least {need}, or use spgemm"
            )
        self._host = host

        def analyse(left: Factor, right: Factor, counters: Any) -> Phase:
            self._patterns = [(x.indptr, x.indices) for x in (left, right)]
            return count_rows(left, right, 0, left.shape[0], "float64", counters, scratch)

        self._phase = with_checked_factors(A, B, lookup("float64"), analyse)
        self.products = self._phase.products
        if self.nnz > parts.MOST_ENTRIES:
            raise MemoryError(f"C has {self.nnz} entries, and a kept pattern holds fewer than 2**31: use spgemm")

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return self._phase.entries

    def multiply(self, A: Any, B: Any, *, precision: Any = "float64") -> Any:
        """Return C = A B for factors with the analysed patterns.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of ``spgemm``.
        """
        chosen = lookup(precision)
        factors = with_checked_factors(A, B, chosen, checked)
        for name, factor, (indptr, indices) in zip("AB", factors, self._patterns, strict=True):
            same = len(factor.indices) == len(indices) and len(factor.indptr) == len(indptr)
            if not (same and (factor.indptr == indptr).all() and (factor.indices == indices).all()):
                raise errors.other_pattern(name)
        indptr, indices, data = finish(factors[0], factors[1], self._phase, chosen)
        C = device_csr(self.shape, indptr.copy(), indices, data)
        return to_host(C, is_array(A, B)) if self._host else C
