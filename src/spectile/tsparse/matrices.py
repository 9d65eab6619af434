"""Sparse matrices of SciPy and CuPy: their library, and CSR matrices made of arrays known to be valid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.tsparse.types import Precision, lookup

LARGEST_INTEGER = 2**53  # up to which float64 holds every integer
_ON_GPU = "cupyx.scipy.sparse"  # the library of matrices on a GPU


def check_pair(A: Any, B: Any) -> bool:
    """Check kinds and shapes of the factors, and return whether they are on a GPU."""
    kind = _kind("A", A)
    other = kind if B is A else _kind("B", B)
    if kind != other:
        raise TypeError(f"A is of {kind} and B of {other}: bring both to one library first")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}: the columns of A must be the rows of B")
    return kind == _ON_GPU


@functools.cache
def _library(kind: type) -> str | None:
    """Return the library of a type of sparse matrix, or None for other types."""
    import scipy.sparse as sp

    if kind.__module__.startswith(_ON_GPU):
        return _ON_GPU
    return "scipy.sparse" if issubclass(kind, sp.spmatrix | sp.sparray) else None


def _kind(name: str, matrix: Any) -> str:
    """Return the library of a factor, which is sparse, of two dimensions and real."""
    kind = _library(type(matrix))  # type: ignore[arg-type]  # types are hashable
    if kind is None:
        raise TypeError(
            f"{name} is a {type(matrix).__name__}, not a sparse matrix: wrap it in scipy.sparse.csr_array(...)"
        )
    if matrix.ndim != 2:
        raise ValueError(f"{name} has {matrix.ndim} dimension(s); a product of matrices needs 2")
    if kind != _ON_GPU and isinstance(getattr(matrix, "data", None), np.ma.MaskedArray):
        raise TypeError(f"{name} holds a masked array, whose mask a product would lose: fill it or drop what is masked")
    if matrix.dtype.kind not in "bifu":
        raise TypeError(
            f"{name} holds {matrix.dtype} values; sparse products here are real: "
            "multiply real and imaginary parts apart"
        )
    return kind


def choose_precision(A: Any, B: Any, name: str | None) -> Precision:
    """Return the precision called `name`, or that of the values: float32 where NumPy's rules give it, else float64."""
    return _default_precision(A.dtype, B.dtype) if name is None else lookup(name)


@functools.cache
def _default_precision(a: np.dtype, b: np.dtype) -> Precision:
    narrow = a == b == np.bool_ or np.result_type(a, b) in (np.float16, np.float32)
    return lookup("float32" if narrow else "float64")


def both_boolean(A: Any, B: Any) -> bool:
    """Return whether the product is a product of patterns."""
    return bool(A.dtype.kind == B.dtype.kind == "b")


def both_integer(A: Any, B: Any) -> bool:
    """Return whether sums are integers."""
    return A.dtype.kind in "biu" and B.dtype.kind in "biu" and not both_boolean(A, B)


def sums_at_most(A: Any, B: Any) -> float:
    """Return a bound on the sums of integer factors in CSR, or infinity where an entry is beyond float64's integers."""
    sizes = [float(np.abs(matrix.data.astype(np.float64)).max(initial=0)) for matrix in (A, B)]
    if max(sizes) > LARGEST_INTEGER:
        return float("inf")
    terms = A.nnz if A.has_canonical_format and B.has_canonical_format else A.nnz * B.nnz
    return sizes[0] * sizes[1] * terms


def as_boolean(C: Any) -> Any:
    """Return C with True for what is not 0."""
    if type(C).__module__.startswith("cupyx."):
        return device_csr(C.shape, C.indptr, C.indices, C.data != 0)
    return host_csr(C.shape, C.indptr, C.indices, C.data != 0, is_array(C))


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


@functools.cache
def device_csr_type() -> Any:
    """Return cupyx's type of CSR matrices; an import statement costs every call a microsecond."""
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix


def device_csr(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    """Return a cupyx matrix whose rows are known to be sorted, without a wait."""
    csr_matrix = device_csr_type()
    if hasattr(csr_matrix, "_from_parts"):  # CuPy >= 14: the constructor reads indptr back, which costs a wait
        return csr_matrix._from_parts(data, indices, indptr, shape, has_canonical_format=True)
    C = csr_matrix((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C


def to_host(C: Any, array: bool) -> Any:
    """Return a cupyx matrix as one of SciPy."""
    return host_csr(C.shape, C.indptr.get().astype(np.int64), C.indices.get(), C.data.get(), array)
