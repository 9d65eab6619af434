"""Products of three matrices on the device, without the product of two of them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cpu import galerkin as host
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, compare, with_checked_factors
from spectile.tsparse.cuda.given import MOST_INDEX, Given, one_given
from spectile.tsparse.cuda.rows.count import count_rows
from spectile.tsparse.cuda.run import beside_copies, chunk_of, finish, least_bytes, to_csr
from spectile.tsparse.cuda.spread import products_before
from spectile.tsparse.cuda.symbolic import SymbolicProduct, pattern_of, raise_flags
from spectile.tsparse.matrices import device_csr, index_type, is_array
from spectile.tsparse.selection import Rows, joined
from spectile.tsparse.types import Factor, of_values

#: Products of the rows of R A that are made together, without a limit.
_BLOCK_PRODUCTS = 2**24


class GalerkinProduct(host.GalerkinProduct):
    """The product C = R A P of matrices of CuPy, and its pattern for other values of A; see `host.GalerkinProduct`."""

    def __init__(self, R: Any, A: Any, P: Any, kind: np.dtype, memory_limit: int | None = None) -> None:
        self._kind, self._array = kind, is_array(R, A, P)
        precision = self._precision = of_values(kind)
        if memory_limit is not None:
            least = 2 * least_bytes(1, A.shape[1]) + least_bytes(1, P.shape[1])
            what = "R, A and P and a row of each product"
            memory_limit = beside_copies(memory_limit, (R, A, P), precision, False, least, what)
        self._limit = memory_limit
        #: Both products of two, once they were asked for: of few products, without a limit.
        self._pair: tuple[SymbolicProduct, SymbolicProduct] | None = None
        left, middle, right = (_narrow(name, one) for name, one in (("R", R), ("A", A), ("P", P)))

        def product(R: Factor, A: Factor, counters: Counters, P: Factor) -> Rows:
            checked(R, A, counters)
            self._left, self._known, self._right = R, pattern_of(A), P
            before = self._before = products_before(R, A)
            self._few = memory_limit is None and before[-1] <= _BLOCK_PRODUCTS
            return self._joined(A)

        options: dict[str, Any] = {"beside": (right, precision), "names": "RAP"}
        self._indptr, self._indices, data = with_checked_factors(left, middle, precision, product, **options)
        self.C = self._matrix(data)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy and a pickle have: all but the products of two, which are made anew."""
        return self.__dict__ | {"_pair": None}

    def _matrix(self, data: Any) -> Any:
        shape = self._left.shape[0], self._right.shape[1]
        return device_csr(shape, self._indptr.copy(), self._indices.copy(), data, self._array)

    def _joined(self, A: Factor) -> Rows:
        """Return row pointer, columns and values of C."""
        import cupy

        made, held = [], 0
        for rows in self._blocks(A):
            made.append(rows)
            held += sum(array.nbytes for array in rows)
            if self._limit is not None and len(made) > 1 and held > self._limit:
                raise MemoryError(
                    f"memory_limit is {self._limit} bytes beside copies, and the first {len(made)} blocks of C take "
                    f"{held} before they are joined: raise it"
                )
        indptr, indices, data = made[0] if len(made) == 1 else joined(made, cupy)
        index = index_type(len(indices))
        return indptr.astype(index, copy=False), indices.astype(index, copy=False), data

    def _blocks(self, A: Factor) -> Iterator[Rows]:
        """Yield blocks of rows of C: those of R A are made and dropped."""
        rows, limit, most = self._left.shape[0], self._limit, _BLOCK_PRODUCTS
        if limit is not None:
            most = max(limit // (4 * (4 + self._kind.itemsize)), 1)
        chunk, scratch = chunk_of(None if limit is None else limit // 2, rows, A.shape[1])
        for a, b, _ in parts.parts(self._before, chunk, most, empty=True) if rows else [(0, 0, None)]:
            phase = count_rows(self._left, A, a, b, self._precision.value, None, scratch)
            middle = Factor((b - a, A.shape[1]), *finish(self._left, A, phase, self._precision))
            del phase  # before the second product takes its place
            left = (
                None if limit is None else limit - sum(x.nbytes for x in (middle.indptr, middle.indices, middle.data))
            )
            yield to_csr(middle, self._right, self._precision, left, None)

    def numeric(self, A: Any) -> Any:
        """Return R A P for another A of the same pattern; see `host.GalerkinProduct`."""
        self._require_kind(A, on_gpu=True)
        known = self._known

        def product(A: Factor, _: Factor, counters: Counters) -> Any:
            if A.shape != known.shape or A.nnz != known.nnz:
                checked(A, A, counters)  # duplicates are summed first
                raise errors.other_pattern("A", "galerkin")
            compare(A, known.indptr, known.indices, counters, 0)
            raise_flags(counters.read().flags(), "galerkin")
            if not self._few:
                return self._joined(A)[2]
            left, right = self._pair = self._pair or self._patterns()
            return right.numeric(left.numeric(self._left.data, A.data), self._right.data)

        given = _narrow("A", A)
        return self._matrix(with_checked_factors(given, given, self._precision, product, names="AA"))

    def _patterns(self) -> tuple[SymbolicProduct, SymbolicProduct]:
        """Return what is known of R A and of its product with P."""

        def of(factor: Any) -> Given:
            return Given(factor.shape, factor.indptr, factor.indices, None, factor.indices.shape)

        left = SymbolicProduct(of(self._left), of(self._known), None, host=False)
        return left, SymbolicProduct(of(left), of(self._right), None, host=False)


def _narrow(name: str, matrix: Any) -> Given:
    """Return a matrix on this device, whose columns 32 bits hold."""
    if matrix.shape[1] > MOST_INDEX:
        raise ValueError(
            f"{name} has {matrix.shape[1]} columns, beyond 32 bits: copy R, A and P to the host with .get()"
        )
    return one_given(name, matrix)
