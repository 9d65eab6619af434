"""The pattern of a product on the host, kept for further products with the same patterns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spectile.core.options import flag
from spectile.core.pictures import shown, shown_html
from spectile.core.pointers import apart, read_only
from spectile.tsparse import errors
from spectile.tsparse.cpu import one_pass, phases, threads
from spectile.tsparse.cpu.kernels import PLUS_TIMES
from spectile.tsparse.cpu.memory import workspace
from spectile.tsparse.cpu.operands import operands, readable, renumbered, take
from spectile.tsparse.cpu.work import Work, chunks, survey
from spectile.tsparse.matrices import (
    as_boolean,
    both_boolean,
    check_pair,
    choose_precision,
    holds,
    host_csr,
    index_type,
    require_exact,
)
from spectile.tsparse.room import Room
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import Operand, Precision, PrecisionName


@dataclass(repr=False)
class SymbolicProduct:
    """The pattern of C = A B on the host; see `spectile.tsparse.SymbolicProduct`.

    The columns of B, and with them those of C, may be renumbered: `_held` are then their numbers.
    """

    shape: tuple[int, int]
    _indptr: np.ndarray
    products: int
    _chunks: threads.Chunks
    _left: Operand
    _right: Operand
    _room: Room
    _held: np.ndarray | None = None
    _narrow: np.ndarray | None = None
    _indices: np.ndarray | None = None

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        return [f"{self.shape[0]}x{self.shape[1]}", f"{self.nnz} entries", f"{self.products} products"]

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return int(self._indptr[-1])

    @property
    def indptr(self) -> np.ndarray:
        """Row pointer of C, read-only: `numeric` reads it."""
        return read_only(self._indptr)

    @property
    def indices(self) -> np.ndarray:
        """Sorted columns of C, read-only as well."""
        if self._indices is None:
            self._indices = self._columns
            if self._held is not None:
                self._indices = self._indices.astype(index_type(self.shape[1]))
                one_pass.rename(self._indices, self._held)
        return read_only(self._indices)

    @property
    def _columns(self) -> np.ndarray:
        """Sorted columns of C by the numbers of the columns of B that it holds."""
        if self._narrow is None:
            ones = np.ones(max(len(self._left.indices), len(self._right.indices)), np.float32)
            self.values(ones, ones)
        assert self._narrow is not None
        return self._narrow

    def multiply(self, A: Any, B: Any, *, precision: PrecisionName | None = None, check_finite: bool = True) -> Any:
        """Return C = A B for factors with the analysed patterns, which is checked; see `SymbolicProduct` of `types`."""
        if check_pair(A, B):
            raise ValueError("the pattern is on the host and the factors are on a GPU: copy them to the host")
        chosen = choose_precision(A, B, precision)
        exact = chosen.dtype.kind == "i"
        room = Room(self._room.limit)
        left, right = operands(A, B, check_finite=flag("check_finite", check_finite), integers=exact, room=room)
        for name, operand, known in zip("AB", (left, right), (self._left, self._right), strict=True):
            held = self._held if name == "B" else None
            columns = known.indices if held is None else held[known.indices]
            rows_and_columns = (known.shape[0], self.shape[1] if name == "B" else known.shape[1])
            same = np.array_equal(operand.indptr, known.indptr) and np.array_equal(operand.indices, columns)
            if operand.shape != rows_and_columns or not same:
                raise errors.other_pattern(name)
        if self._held is not None:
            right = replace(right, shape=self._right.shape, indices=self._right.indices)
        if exact:
            largest_sum = lambda: float(self.sums_of_sizes(left, right, room).max(initial=0))  # noqa: E731
            require_exact(*sizes(left, right), largest_sum, *holds(chosen))
        data = self.product(left, right, chosen, room)
        C = host_csr(self.shape, self._indptr, self.indices, data, left.array or right.array, kept=True)
        return as_boolean(C) if precision is None and both_boolean(A, B) else C

    def numeric(self, data_a: np.ndarray, data_b: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of C, on `indptr` and `indices`; see `spectile.tsparse.SymbolicProduct`."""
        if out is None:
            out = np.empty(self.nnz, getattr(data_a, "dtype", None))
        left, right = self._left.places, self._right.places
        errors.check_values(np.ndarray, data_a, data_b, out, left.shape, right.shape, self.nnz)
        data_a, data_b = (
            readable(name, take(data, places))
            for name, data, places in (("data_a", data_a, left), ("data_b", data_b, right))
        )
        data_a, data_b = apart(out, data_a, data_b)
        return self.values(data_a, data_b, out)

    def product(
        self, A: Operand, B: Operand, precision: Precision, room: Room, out: np.ndarray | None = None, names: str = "AB"
    ) -> np.ndarray:
        """Return the values of C for checked factors that are known to have the analysed patterns."""
        data_a, data_b, exponents = rounded(A, B, precision, names, room)
        return unscale(self.values(data_a, data_b, out, room=room), self._indptr, self._columns, exponents)

    def sums_of_sizes(self, A: Operand, B: Operand, room: Room) -> np.ndarray:
        """Return the sums of the sizes of the products of each entry of C, in float64."""
        part = room.nested()
        part.require(8 * (len(A.data) + len(B.data)))
        left, right = (np.abs(x.data, dtype=np.float64) for x in (A, B))
        part.hold(left, right)
        return self.values(left, right, room=part)

    def values(
        self,
        data_a: np.ndarray,
        data_b: np.ndarray,
        out: np.ndarray | None = None,
        kind: int = PLUS_TIMES,
        room: Room | None = None,
    ) -> np.ndarray:
        """Return the values of C for the given values of A and B, and find its columns where they are not known.

        These alone may be made over another semiring, of the code `kind`.
        """
        columns = self._right.shape[1]
        room = room or self._room
        left = (self._left.indptr, self._left.indices, data_a)
        right = (self._right.indptr, self._right.indices, data_b)
        if out is None:
            out = np.empty(self.nnz, data_a.dtype)
        if self._narrow is None:
            indices = np.empty(self.nnz, self._right.indices.dtype)
            phases.fill(left, right, columns, self._chunks, self._indptr, (indices, out), room, kind)
            self._narrow = indices
        else:
            phases.refill(left, right, columns, self._chunks, self._indptr, (self._narrow, out), room)
        return out


def sizes(A: Operand, B: Operand) -> tuple[tuple[int, int], int]:
    """Return the largest size of an entry of integer factors, and the products of an entry of C at most."""
    largest = tuple(1 if factor.largest is None else factor.largest for factor in (A, B))  # Booleans: 1
    return (largest[0], largest[1]), min(len(A.indices), len(B.indices), A.shape[1])


def analyse(A: Any, B: Any, memory_limit: int | None) -> SymbolicProduct:
    """Return the pattern of the product of two matrices; see `spectile.tsparse.symbolic`."""
    room = Room(memory_limit)
    pattern = symbolic(*operands(A, B, values=False, room=room), room)
    room.held += 4 * len(pattern._indptr)  # which is not that of another C
    room.require(workspace(pattern._right.shape[1], 8))  # of the values that come later
    return pattern


def symbolic(A: Operand, B: Operand, room: Room | None = None) -> SymbolicProduct:
    """Return the pattern of C = A B, which holds copies of those of A and B."""
    room = room or Room()
    factors = (A,) if A is B else (A, B)
    room.require(sum(x.indices.nbytes + x.indptr.nbytes for x in factors))
    none = np.empty(0, np.float32)
    left, *other = (replace(x, indices=x.indices.copy(), indptr=x.indptr.copy(), data=none) for x in factors)
    room.hold(*(array for x in (left, *other) for array in (x.indices, x.indptr)))
    (right,), held = renumbered(left, [*other, left][:1], room)
    work = survey(left.indptr, left.indices, right.indptr)
    pattern = counted(left, right, room, work, chunks(work))
    return replace(pattern, shape=(A.shape[0], B.shape[1]), _held=held)


def counted(A: Operand, B: Operand, room: Room, work: Work, pieces: threads.Chunks) -> SymbolicProduct:
    """Return the pattern of C = A B whose multiplications are counted already."""
    shape = A.shape[0], B.shape[1]
    indptr = phases.count(A.indptr, A.indices, B.indptr, B.indices, shape[1], pieces, room)
    return SymbolicProduct(shape, indptr, work.products, pieces, A, B, room)
