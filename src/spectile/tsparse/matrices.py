"""Sparse matrices of SciPy and CuPy: their library, and CSR matrices made of arrays known to be valid."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_pair(A: Any, B: Any) -> bool:
    """Check kinds and shapes of the factors, and return whether they are on a GPU."""
    kinds = [_kind(name, matrix) for name, matrix in (("A", A), ("B", B))]
    if kinds[0] != kinds[1]:
        raise TypeError(f"A is of {kinds[0]} and B of {kinds[1]}: bring both to one library first")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}: the columns of A must be the rows of B")
    return kinds[0] == "cupyx.scipy.sparse"


def _kind(name: str, matrix: Any) -> str:
    """Return the library of a factor, which is sparse, of two dimensions and real."""
    import scipy.sparse as sp

    if type(matrix).__module__.startswith("cupyx.scipy.sparse"):
        kind = "cupyx.scipy.sparse"
    elif sp.issparse(matrix):
        kind = "scipy.sparse"
    else:
        raise TypeError(
            f"{name} is a {type(matrix).__name__}, not a sparse matrix: wrap it in scipy.sparse.csr_array(...)"
        )
    if matrix.ndim != 2:
        raise ValueError(f"{name} has {matrix.ndim} dimension(s); a product of matrices needs 2")
    if matrix.dtype.kind not in "bifu":
        raise TypeError(
            f"{name} holds {matrix.dtype} values; sparse products here are real: "
            "multiply real and imaginary parts apart"
        )
    return kind


def is_array(*matrices: Any) -> bool:
    """Return whether one of them is a sparse array of SciPy rather than a matrix."""
    import scipy.sparse as sp

    return any(isinstance(matrix, sp.sparray) for matrix in matrices)


def host_csr(shape: tuple[int, int], indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, array: bool) -> Any:
    """Return a SciPy array or matrix whose rows are known to be sorted."""
    import scipy.sparse as sp

    # One index type for both: 64-bit only where the count or the columns need it.
    small = indptr[-1] < 2**31 and indices.dtype == np.int32
    index = np.int32 if small else np.int64
    arrays = (data, indices.astype(index, copy=False), indptr.astype(index, copy=False))
    C = (sp.csr_array if array else sp.csr_matrix)(arrays, shape=shape)
    C.has_canonical_format = True
    return C


def device_csr(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    """Return a cupyx matrix whose rows are known to be sorted, without a wait."""
    from cupyx.scipy.sparse import csr_matrix

    if hasattr(csr_matrix, "_from_parts"):  # CuPy >= 14: the constructor reads indptr back, which costs a wait
        return csr_matrix._from_parts(data, indices, indptr, shape, has_canonical_format=True)
    C = csr_matrix((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C


def to_host(C: Any, array: bool) -> Any:
    """Return a cupyx matrix as one of SciPy."""
    return host_csr(C.shape, C.indptr.get().astype(np.int64), C.indices.get(), C.data.get(), array)
