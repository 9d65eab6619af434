"""Products of three matrices, as of multigrid, without the product of two of them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core.pictures import shown, shown_html
from spectile.tsparse import errors
from spectile.tsparse.cpu import phases
from spectile.tsparse.cpu.operands import one_operand
from spectile.tsparse.cpu.wanted import arrays, in_blocks_of, in_one
from spectile.tsparse.cpu.work import chunks, survey
from spectile.tsparse.matrices import check_sparse, choose_precision, host_csr
from spectile.tsparse.room import Room
from spectile.tsparse.selection import Rows
from spectile.tsparse.types import Operand


class GalerkinProduct:
    """The product C = R A P of sparse matrices, and its pattern for other values of A; made by `galerkin`.

    Attributes
    ----------
    C : CSR array, shape (m, n)
        The product of the matrices that were given.
    """

    def __init__(self, R: Any, A: Any, P: Any, kind: np.dtype, memory_limit: int | None = None) -> None:
        room = self._room = Room(memory_limit)
        factors = [one_operand(matrix, name, room=room) for matrix, name in ((R, "R"), (A, "A"), (P, "P"))]
        self._kind = kind  # of the values that were given: duplicates have been summed in float64
        room.require(sum(len(one.data) * kind.itemsize for one in factors if one.data.dtype != kind))
        self._R, self._A, self._P = (replace(one, data=one.data.astype(kind, copy=False)) for one in factors)
        room.hold(*(one.data for one in (self._R, self._A, self._P)), beside=[one.data for one in factors])
        room.require(self._A.indptr.nbytes + self._A.indices.nbytes)
        self._array = any(one.array for one in factors)
        self._indptr, self._indices, data = in_one(self._parts(), R.shape[0])
        self._A = replace(self._A, indptr=self._A.indptr.copy(), indices=self._A.indices.copy(), data=data[:0])
        room.hold(self._A.indptr, self._A.indices)
        self.C = self._matrix(data)

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        return [f"{self.C.shape[0]}x{self.C.shape[1]} {self.C.dtype}", f"{self.C.nnz} entries"]

    def _matrix(self, data: np.ndarray) -> Any:
        shape = self._R.shape[0], self._P.shape[1]
        return host_csr(shape, self._indptr, self._indices, data, self._array, kept=True)

    def _middles(self, A: Operand) -> Iterator[tuple[int, int, Operand, Room]]:
        """Yield first row, end and ``R A`` of blocks of rows, one at a time, and what is left beside it."""
        each = 2 * (A.indices.itemsize + A.data.itemsize)  # half of the room is for the second product
        for first, stop, (indptr, indices, data) in in_blocks_of(self._R, A, self._room, each):
            shape, left = (stop - first, A.shape[1]), self._room.nested()
            left.hold(indptr, indices, data)
            yield first, stop, replace(self._R, shape=shape, indptr=indptr, indices=indices, data=data), left

    def _parts(self) -> Iterator[Rows]:
        each = self._P.indices.itemsize + self._kind.itemsize
        for _, _, middle, left in self._middles(self._A):
            yield from (rows for *_, rows in in_blocks_of(middle, self._P, left, each))

    def _require_kind(self, A: Any, on_gpu: bool = False) -> None:
        """Raise where another A is no sparse matrix, or of another library or type than the product."""
        if check_sparse("A", A) != on_gpu:
            here, there = ("GPU", "host") if on_gpu else ("host", "GPU")
            raise TypeError(f"A is on the {there} and the product of matrices on the {here}: copy A to the {here}")
        if not np.can_cast(choose_precision(A, A, None).dtype, self._kind):
            raise TypeError(f"A holds {A.dtype} values and the product {self._kind}: make another product for them")

    def numeric(self, A: Any) -> Any:
        """Return R A P for another A of the same pattern, on the pattern of C that is known.

        Parameters
        ----------
        A : sparse matrix or array
            Of the library of the factors, the analysed pattern and a type of values that the product has.

        Returns
        -------
        CSR array, shape (m, n)

        Raises
        ------
        TypeError, ValueError
            If it is no sparse matrix, or its library, pattern or type is another.
        """
        self._require_kind(A)
        given, known, P = one_operand(A, "A", room=self._room.nested()), self._A, self._P
        same = given.shape == known.shape and np.array_equal(given.indptr, known.indptr)
        if not same or not np.array_equal(given.indices, known.indices):
            raise errors.other_pattern("A", "galerkin")
        data = np.empty(len(self._indices), self._kind)
        for first, stop, middle, left in self._middles(replace(given, data=given.data.astype(self._kind, copy=False))):
            begin, end = self._indptr[first], self._indptr[stop]
            work = survey(middle.indptr, middle.indices, P.indptr)
            C = self._indices[begin:end], data[begin:end]
            indptr = self._indptr[first : stop + 1] - begin
            phases.refill(arrays(middle), arrays(P), P.shape[1], chunks(work), indptr, C, left)
        return self._matrix(data)
