"""The pattern of a product on the device, kept for further products with the same patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from spectile.core.arrays import require_here
from spectile.core.copies import Uncopied
from spectile.core.options import flag
from spectile.core.pictures import shown, shown_html
from spectile.core.pointers import apart
from spectile.tsparse import errors
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.counters import Counters, Invalid
from spectile.tsparse.cuda.factors import checked, compare, unscale, with_checked_factors
from spectile.tsparse.cuda.given import Given, given, take
from spectile.tsparse.cuda.rows import lists
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.cuda.run import chunk_of, least_bytes, of_device, of_integers, on_host, renamed, sizes
from spectile.tsparse.cuda.shared import FLAGS
from spectile.tsparse.matrices import (
    LARGEST_INTEGER,
    as_boolean,
    both_boolean,
    check_pair,
    choose_precision,
    device_csr,
    host_csr,
    is_array,
    require_exact,
)
from spectile.tsparse.types import Factor


class SymbolicProduct(Uncopied):
    """The pattern of C = A B on the device; see `spectile.tsparse.SymbolicProduct`."""

    def __init__(self, A: Any, B: Any, memory_limit: int | None, host: bool) -> None:
        import cupy

        self.shape = (A.shape[0], B.shape[1])
        self._current = cupy.cuda.runtime.getDevice
        self._device = self._current()
        self._host = host
        self._indices: Any = None
        # What `numeric` launches: made by its first call; False where a limit or the sizes forbid it.
        self._lists: lists.ProductLists | Literal[False] | None = None if memory_limit is None else False

        def analyse(left: Factor, right: Factor, counters: Counters) -> Phase:
            phase = count_rows(left, right, 0, left.shape[0], "float64", counters, scratch)
            self._held = right.given.held
            self._places = tuple((one.given.stored, one.given.places) for one in (left, right))
            # What the caller writes to his matrices later must not lead the kernels astray.
            self._left = pattern_of(left)
            self._right = self._left if right is left else pattern_of(right)
            return phase

        factors = given(A, B, values=False, check_finite=False)
        scratch = self._scratch = _scratch(memory_limit, *factors)
        self._wide: Phase | None = None  # counted for values of 16 bytes
        self._phase = with_checked_factors(*factors, None, analyse, check_finite=False)
        self.products = self._phase.products
        if self.nnz > parts.MOST_ENTRIES:
            raise MemoryError(f"C has {self.nnz} entries, and a kept pattern holds fewer than 2**31: use spgemm")

    _instead = "it is of arrays on one GPU; make another with spectile.tsparse.symbolic"
    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        return [f"{self.shape[0]}x{self.shape[1]}", f"{self.nnz} entries", f"{self.products} products"]

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return self._phase.entries

    @property
    def indptr(self) -> Any:
        """Row pointer of C."""
        self._require_device()
        return self._phase.indptr.get() if self._host else self._phase.indptr

    @property
    def indices(self) -> Any:
        """Sorted columns of C."""
        self._require_device()
        _, columns, _ = renamed(self._phase.indptr, self._columns(), None, self._held, self.shape[1])
        return columns.get() if self._host else columns

    def _columns(self) -> Any:
        """Return the columns of C on the device, made by the first call."""
        if self._indices is None:
            import cupy

            unread = cupy.empty(max(self.nnz, self._left.nnz, self._right.nnz), np.float32)
            left, right = (replace(factor, data=unread) for factor in (self._left, self._right))
            self._fill(left, right, unread)
        return self._indices

    def _require_device(self) -> None:
        current = self._current()
        if current != self._device:
            raise errors.other_device(self._device, current)

    def multiply(self, A: Any, B: Any, *, precision: Any = None, check_finite: bool = True) -> Any:
        """Return C = A B for factors with the analysed patterns, which is checked; see `SymbolicProduct` of `types`."""
        self._require_device()
        if check_pair(A, B) == self._host:
            there, here = ("GPU", "host") if self._host else ("host", "GPU")
            raise ValueError(f"the pattern is of matrices on the {here} and the factors are on the {there}: copy them")
        chosen, kind = of_device(choose_precision(A, B, precision))
        factors = given(A, B, check_finite=flag("check_finite", check_finite))
        for name, factor, columns in zip("AB", factors, (self._left.shape[1], self.shape[1]), strict=True):
            other = B if name == "B" else A
            if other.shape[1] != columns or other.shape[0] != (self._right if name == "B" else self._left).shape[0]:
                raise errors.other_pattern(name)
            if factor.held is not None and not _same(factor.held, self._held):
                raise errors.other_pattern(name)
        if kind is not None:
            largest_sum = lambda: self._largest_sum(*factors)  # noqa: E731
            require_exact(*sizes(*factors), largest_sum, LARGEST_INTEGER, "float64")

        def product(left: Factor, right: Factor, counters: Counters) -> Any:
            import cupy

            self._compare(left, right, counters)
            data = cupy.empty(self.nnz, chosen.dtype)
            left, right = (
                replace(self._left, data=left.data, exponents=left.exponents),
                replace(self._right, data=right.data, exponents=right.exponents),
            )
            self._fill(left, right, data)
            raise_flags(counters.read().flags())
            return unscale(data, self._phase.indptr, self._indices, left, right, 0)

        data = with_checked_factors(*factors, chosen, product, check_finite=check_finite)
        if self._held is None:
            arrays = self._phase.indptr.copy(), self._indices.copy(), data
        else:
            arrays = renamed(self._phase.indptr, self._indices, data, self._held, self.shape[1])
        arrays, matrix = (on_host(*arrays), host_csr) if self._host else (arrays, device_csr)
        C = matrix(self.shape, *arrays, is_array(A, B))
        C = C if kind is None else of_integers(C, kind)
        return as_boolean(C) if precision is None and both_boolean(A, B) else C

    def numeric(self, data_a: Any, data_b: Any, *, out: Any = None) -> Any:
        """Return the values of C, on `indptr` and `indices`; see `spectile.tsparse.SymbolicProduct`."""
        import cupy

        self._require_device()
        if self._lists and self._lists.again(data_a, data_b, out):
            return out
        library = np if self._host else cupy
        if out is None:
            out = library.empty(self.nnz, getattr(data_a, "dtype", None))
        (shape_a, _), (shape_b, _) = self._places
        errors.check_values(library.ndarray, data_a, data_b, out, shape_a, shape_b, self.nnz)
        if self._host:
            values = cupy.empty(self.nnz, out.dtype)
            self._values(cupy.asarray(data_a), cupy.asarray(data_b), values)
            return values.get(out=out)
        for name, array in (("data_a", data_a), ("data_b", data_b), ("out", out)):
            require_here(name, array)
        self._values(data_a, data_b, out)
        return out

    def _largest_sum(self, A: Given, B: Given) -> float:
        """Return the largest sum of the sizes of the products of an entry of C, in float64."""
        import cupy

        data = cupy.empty(self.nnz, np.float64)
        factors = (
            replace(known, data=abs(one.data).astype(np.float64))
            for known, one in zip((self._left, self._right), (A, B), strict=True)
        )
        left, right = factors
        if (left.nnz, right.nnz) != (left.data.size, right.data.size):
            raise errors.other_pattern("AB"[left.nnz == left.data.size])
        self._fill(left, right, data)
        return float(data.max()) if data.size else 0.0

    def _values(self, data_a: Any, data_b: Any, out: Any) -> None:
        """Write the values of C for stored values of A and B, all on this device."""
        data_a, data_b = (take(data, places) for data, (_, places) in zip((data_a, data_b), self._places, strict=True))
        data_a, data_b = apart(out, data_a, data_b)
        if self._lists is None:
            self._lists = lists.make(self._left, self._right, self._phase, self._columns()) or False
        if self._lists:
            self._lists(data_a, data_b, out)
        else:
            self._fill(replace(self._left, data=data_a), replace(self._right, data=data_b), out)

    def _fill(self, left: Factor, right: Factor, data: Any) -> None:
        """Fill the values of C, and its columns the first time."""
        import cupy

        if self._lists:
            self._lists(left.data, right.data, data)
            return
        if self._indices is not None:
            fill_rows(left, right, self._phase_of(data), self._indices, data, reuse=True)
            return
        indices = cupy.empty(self.nnz, np.int32)
        fill_rows(left, right, self._phase_of(data), indices, data)
        self._indices = indices

    def _phase_of(self, data: Any) -> Phase:
        """Return what counted the rows for values of this size: the bins of long rows depend on it."""
        if data.dtype.itemsize <= 8:
            return self._phase
        if self._wide is None:
            rows = self._left.shape[0]
            self._wide = count_rows(self._left, self._right, 0, rows, str(data.dtype), None, self._scratch)
        return self._wide

    def _compare(self, left: Factor, right: Factor, counters: Counters) -> None:
        """Launch the comparison of both factors with the analysed patterns; raise where their sizes differ."""
        for which, (factor, known) in enumerate(((left, self._left), (right, self._right))):
            if factor.nnz != known.nnz or factor.shape != known.shape:
                checked(left, right, counters)  # duplicates are summed first
                raise errors.other_pattern("AB"[which])
        for which, (factor, known) in enumerate(((left, self._left), (right, self._right))):
            if not (which and factor is left and known is self._left):
                compare(factor, known.indptr, known.indices, counters, which)


def _same(x: Any, y: Any) -> bool:
    return y is not None and len(x) == len(y) and bool((x == y).all())


def pattern_of(factor: Factor) -> Factor:
    """Return a copy of a factor's pattern, without values."""
    return Factor(factor.shape, factor.indptr.copy(), factor.indices.copy(), None)


def _scratch(memory_limit: int | None, A: Given, B: Given) -> int | None:
    """Return the bytes for bitmaps that shared memory does not hold, beside the kept pattern, if these are limited."""
    shape = (A.shape[0], B.shape[1])
    if memory_limit is None:
        return chunk_of(None, *shape)[1]
    copies = 4 * sum(matrix.indices.size + matrix.shape[0] + 1 for matrix in ((A,) if A is B else (A, B)))
    need = least_bytes(*shape) + copies
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and the kept pattern of {shape[0]} rows takes {need}; "
            f"raise it to at least {need}, or use spgemm"
        )
    return chunk_of(memory_limit - copies, *shape)[1]


def raise_flags(flags: list[int], analysis: str = "symbolic") -> None:
    """Raise what the check and the comparison found."""
    other = FLAGS["OTHER_PATTERN"]
    if any(found & ~other for found in flags):
        raise Invalid(*(found & ~other for found in flags))
    for name, found in zip("AB", flags, strict=False):
        if found & other:
            raise errors.other_pattern(name, analysis)
