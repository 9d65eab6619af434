"""The pattern of a product on the device, kept for further products with the same patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.counters import FLAGS, Counters, Invalid
from spectile.tsparse.cuda.factors import checked, compare, unscale, with_checked_factors
from spectile.tsparse.cuda.rows import lists
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.cuda.run import chunk_of, least_bytes
from spectile.tsparse.matrices import as_boolean, both_boolean, choose_precision, device_csr, is_array, to_host
from spectile.tsparse.types import Factor, lookup


class SymbolicProduct:
    """The pattern of C = A B on the device; see `spectile.tsparse.SymbolicProduct`."""

    def __init__(self, A: Any, B: Any, memory_limit: int | None, host: bool) -> None:
        self.shape = (A.shape[0], B.shape[1])
        scratch = _scratch(memory_limit, A, B)
        self._host = host
        self._indices: Any = None
        # What `numeric` launches: made by its first call; False where a limit or the sizes forbid it.
        self._lists: lists.ProductLists | Literal[False] | None = None if memory_limit is None else False

        def analyse(left: Factor, right: Factor, counters: Counters) -> Phase:
            phase = count_rows(left, right, 0, left.shape[0], "float64", counters, scratch)
            # What the caller writes to his matrices later must not lead the kernels astray.
            self._left = _pattern(left)
            self._right = self._left if right is left else _pattern(right)
            return phase

        self._phase = with_checked_factors(A, B, lookup("float64"), analyse)
        self.products = self._phase.products
        if self.nnz > parts.MOST_ENTRIES:
            raise MemoryError(f"C has {self.nnz} entries, and a kept pattern holds fewer than 2**31: use spgemm")

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return self._phase.entries

    @property
    def indptr(self) -> Any:
        """Row pointer of C."""
        return self._phase.indptr.get() if self._host else self._phase.indptr

    @property
    def indices(self) -> Any:
        """Sorted columns of C."""
        columns = self._columns()
        return columns.get() if self._host else columns

    def _columns(self) -> Any:
        """Return the columns of C on the device, made by the first call."""
        if self._indices is None:
            import cupy

            unread = cupy.empty(max(self.nnz, self._left.nnz, self._right.nnz), np.float32)
            left, right = (replace(factor, data=unread) for factor in (self._left, self._right))
            self._fill(left, right, unread)
        return self._indices

    def multiply(self, A: Any, B: Any, *, precision: Any = None) -> Any:
        """Return C = A B for factors with the analysed patterns, which is checked.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of ``spgemm``.
        """
        chosen = choose_precision(A, B, precision)

        def product(left: Factor, right: Factor, counters: Counters) -> Any:
            import cupy

            self._compare(left, right, counters)
            data = cupy.empty(self.nnz, chosen.dtype)
            left, right = (
                replace(self._left, data=left.data, exponents=left.exponents),
                replace(self._right, data=right.data, exponents=right.exponents),
            )
            self._fill(left, right, data)
            _raise_flags(counters.read().flags())
            return unscale(data, self._phase.indptr, self._indices, left, right, 0)

        data = with_checked_factors(A, B, chosen, product)
        C = device_csr(self.shape, self._phase.indptr.copy(), self._indices.copy(), data)
        C = to_host(C, is_array(A, B)) if self._host else C
        return as_boolean(C) if precision is None and both_boolean(A, B) else C

    def numeric(self, data_a: Any, data_b: Any, *, out: Any = None) -> Any:
        """Return the values of C, on `indptr` and `indices`; see `spectile.tsparse.SymbolicProduct`."""
        import cupy

        if self._host:
            on_device = self._values(cupy.asarray(data_a), cupy.asarray(data_b), None)
            return on_device.get(out=out)
        if self._lists and self._lists.again(data_a, data_b, out):
            return out
        return self._values(data_a, data_b, out)

    def _values(self, data_a: Any, data_b: Any, out: Any) -> Any:
        import cupy

        if out is None:
            out = cupy.empty(self.nnz, data_a.dtype)
        errors.check_values(data_a, data_b, out, self._left.nnz, self._right.nnz, self.nnz)
        if self._lists is None:
            self._lists = lists.make(self._left, self._right, self._phase, self._columns()) or False
        if self._lists:
            self._lists(data_a, data_b, out)
        else:
            self._fill(replace(self._left, data=data_a), replace(self._right, data=data_b), out)
        return out

    def _fill(self, left: Factor, right: Factor, data: Any) -> None:
        """Fill the values of C, and its columns the first time."""
        import cupy

        if self._lists:
            self._lists(left.data, right.data, data)
            return
        if self._indices is not None:
            fill_rows(left, right, self._phase, self._indices, data, reuse=True)
            return
        indices = cupy.empty(self.nnz, np.int32)
        fill_rows(left, right, self._phase, indices, data)
        self._indices = indices

    def _compare(self, left: Factor, right: Factor, counters: Counters) -> None:
        """Launch the comparison of both factors with the analysed patterns; raise where their sizes differ."""
        for which, (factor, known) in enumerate(((left, self._left), (right, self._right))):
            if factor.nnz != known.nnz or factor.shape != known.shape:
                checked(left, right, counters)  # duplicates are summed first
                raise errors.other_pattern("AB"[which])
        for which, (factor, known) in enumerate(((left, self._left), (right, self._right))):
            if not (which and factor is left and known is self._left):
                compare(factor, known.indptr, known.indices, counters, which)


def _pattern(factor: Factor) -> Factor:
    """Return a copy of a factor's pattern, without values."""
    return Factor(factor.shape, factor.indptr.copy(), factor.indices.copy(), None)


def _scratch(memory_limit: int | None, A: Any, B: Any) -> int:
    """Return the bytes for bitmaps that shared memory does not hold, beside the kept pattern."""
    shape = (A.shape[0], B.shape[1])
    if memory_limit is None:
        return chunk_of(None, *shape)[1]
    copies = 4 * sum(matrix.nnz + matrix.shape[0] + 1 for matrix in ((A,) if A is B else (A, B)))
    need = least_bytes(*shape) + copies
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and the kept pattern of {shape[0]} rows takes {need}; "
            f"raise it to at least {need}, or use spgemm"
        )
    return chunk_of(memory_limit - copies, *shape)[1]


def _raise_flags(flags: list[int]) -> None:
    """Raise what the check and the comparison found."""
    other = FLAGS["OTHER_PATTERN"]
    if any(flag & ~other for flag in flags):
        raise Invalid(*(flag & ~other for flag in flags))
    for name, flag in zip("AB", flags, strict=True):
        if flag & other:
            raise errors.other_pattern(name)
