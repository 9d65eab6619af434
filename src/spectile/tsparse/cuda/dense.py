"""Products with a dense matrix, or into one, on the device (``dense.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import pointers
from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, with_checked_factors
from spectile.tsparse.cuda.given import given
from spectile.tsparse.types import Factor, of_values


def multiply(A: Factor, B: Factor, dtype: np.dtype) -> Any:
    """Return A B of checked factors as a dense array of C order."""
    import cupy

    C = cupy.zeros((A.shape[0], B.shape[1]), dtype)
    if C.size and A.nnz and B.nnz:
        log = choose.row_lanes(B.nnz / B.shape[0])
        sizes = np.int32(A.shape[0]), np.int64(B.shape[1]), np.int32(log)
        arrays = (*(A.indptr, A.indices, A.data), *(B.indptr, B.indices, B.data), C)
        kernel(units.DENSE[dtype.name], "dense_rows")(choose.lanes_each(A.shape[0], log), *sizes, *arrays)
    return C


def times_dense(A: Any, X: Any, check_finite: bool) -> Any:
    """Return the product of a sparse matrix of CuPy and a dense one, of two dimensions and the type of the product."""
    import cupy

    X, precision = pointers.operand("X", X), of_values(X.dtype)

    def product(factor: Factor, _: Factor, counters: Counters) -> Any:
        checked(factor, factor, counters)
        rows, columns = A.shape[0], X.shape[1]
        if factor.given.held is not None:
            raise ValueError(f"A has {A.shape[1]} columns, beyond 32 bits: use a matrix of the host")
        C = cupy.empty((rows, columns), X.dtype)
        if C.size:
            parts, across = choose.dense_lanes(factor.nnz / rows, columns)
            unit, arrays = units.DENSE[X.dtype.name], (factor.indptr, factor.indices, factor.data, X, C)
            sizes = np.int32(rows), np.int64(columns)
            shape = choose.lanes_each(rows, parts + across)
            kernel(unit, "times_dense")(shape, *sizes, np.int32(parts), np.int32(across), *arrays)
            if factor.nnz > choose.LONG_ROW:
                shape = choose.long_rows(rows, columns, across, describe())
                kernel(unit, "long_rows")(shape, *sizes, np.int32(across), *arrays)
        return C

    factors = given(A, A, check_finite=check_finite)
    return with_checked_factors(*factors, precision, product, check_finite=check_finite)
