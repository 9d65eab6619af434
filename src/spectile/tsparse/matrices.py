"""Sparse matrices of SciPy and CuPy: their library, and CSR matrices made of arrays known to be valid."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.cupy_parts import csr_matrix
from spectile.core.memory import require_host_free
from spectile.core.options import kind_of
from spectile.core.pointers import address
from spectile.tsparse import errors
from spectile.tsparse.selection import owners
from spectile.tsparse.types import COMPLEX, INTEGER, Precision, lookup

LARGEST_INTEGER = 2**53  # up to which float64 holds every integer
_ON_GPU = "cupyx.scipy.sparse"  # the library of matrices on a GPU


def check_pair(A: Any, B: Any, a: str = "A", b: str = "B") -> bool:
    """Check kinds and shapes of the factors, of these names, and return whether they are on a GPU."""
    kind = _kind(a, A)
    other = kind if B is A else _kind(b, B)
    if kind != other:
        raise TypeError(f"{a} is of {kind} and {b} of {other}: bring both to one library first")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"{a} has shape {A.shape} and {b} {B.shape}: the columns of {a} must be the rows of {b}")
    return kind == _ON_GPU


def check_beside(name: str, matrix: Any, A: Any, shape: tuple[int, int]) -> None:
    """Raise where a mask or a matrix that is added does not belong to a product."""
    kind, other = _kind(name, matrix), _kind("A", A)
    if kind != other:
        raise TypeError(f"A is of {other} and {name} of {kind}: bring both to one library first")
    if tuple(matrix.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(matrix.shape)}, and the product of A and B has {shape}")


@functools.cache
def _library(kind: type) -> str | None:
    """Return the library of a type of sparse matrix, or None for other types."""
    import scipy.sparse as sp

    if kind.__module__.startswith(_ON_GPU):
        return _ON_GPU
    return "scipy.sparse" if issubclass(kind, sp.spmatrix | sp.sparray) else None


def on_gpu(matrix: Any) -> bool:
    """Return whether a sparse matrix is CuPy's."""
    return _library(type(matrix)) == _ON_GPU  # type: ignore[arg-type]  # types are hashable


def check_sparse(name: str, matrix: Any) -> bool:
    """Check the kind of a matrix, and return whether it is on a GPU."""
    return _kind(name, matrix) == _ON_GPU


def _kind(name: str, matrix: Any) -> str:
    """Return the library of a factor, which is sparse, of two dimensions and of numbers."""
    kind = _library(type(matrix))  # type: ignore[arg-type]  # types are hashable
    if kind is None:
        library = type(matrix).__module__.partition(".")[0].removesuffix("lib")
        hint = "make one of it, as scipy.sparse.csr_array does of arrays"
        if library in ("torch", "jax"):
            hint = f"spectile.{library} has the products of sparse ones of that library"
        raise TypeError(f"{name} is {kind_of(matrix)}, not a sparse matrix of SciPy or CuPy: {hint}")
    if matrix.ndim != 2:
        raise ValueError(f"{name} has {matrix.ndim} dimension(s); a product of matrices needs 2")
    if kind != _ON_GPU and isinstance(getattr(matrix, "data", None), np.ma.MaskedArray):
        raise TypeError(f"{name} holds a masked array, whose mask a product would lose: fill it or drop what is masked")
    if matrix.dtype.kind not in "bifuc":
        raise TypeError(f"{name} holds {matrix.dtype} values: convert them to numbers with .astype(...)")
    return kind


def choose_precision(A: Any, B: Any, name: str | None) -> Precision:
    """Return the precision called `name`, or that of the values: of single precision where NumPy's rules give it."""
    if name is None:
        return _default_precision(A.dtype, B.dtype)
    chosen = lookup(name)
    if "c" not in (A.dtype.kind, B.dtype.kind):
        return chosen
    if chosen.name not in COMPLEX:
        raise ValueError(f'precision="{chosen.name}" is of real factors; complex ones have {" and ".join(COMPLEX)}')
    return COMPLEX[chosen.name]


@functools.cache
def _default_precision(a: np.dtype, b: np.dtype) -> Precision:
    if a == b == np.bool_:
        return lookup("float32")
    if a.kind in "biu" and b.kind in "biu":
        fits = all(np.can_cast(kind, np.int32) for kind in (a, b))
        return INTEGER["int32" if fits else "int64"]
    kind = np.result_type(a, b)
    name = "float32" if kind in (np.float16, np.float32, np.complex64) else "float64"
    return COMPLEX[name] if kind.kind == "c" else lookup(name)


def both_boolean(A: Any, B: Any) -> bool:
    """Return whether the product is a product of patterns."""
    return bool(A.dtype.kind == B.dtype.kind == "b")


def index_type(columns: int) -> type[np.signedinteger]:
    """Return the type of indices of so many columns, or of so many places."""
    return np.int32 if columns <= 2**31 - 1 else np.int64


def largest_integer(data: Any) -> int:
    """Return the largest size of integers of NumPy or CuPy, exactly."""
    return max(int(data.max()), -int(data.min())) if data.size else 0


def require_exact(largest: tuple[int, int], terms: int, largest_sum: Callable[[], float], most: int, kind: str) -> None:
    """Raise where a sum of products of integers may be beyond `most`, the largest integer of the type `kind`.

    `largest` is the largest size of an entry of each factor, `terms` the most products of an entry of C.
    ``largest_sum()`` is the largest sum of sizes, computed in float64: a sum below 2**53 was rounded nowhere, and one
    that was rounded is not below.
    """
    if max(largest) <= most:
        if largest[0] * largest[1] * terms <= most:
            return
        # Rounding of a sum of fewer than 2**31 terms beyond 2**53 is less than 2**-20 of it.
        limit = most if most <= LARGEST_INTEGER else most * (1 - 2.0**-20)
        if largest_sum() < limit + (limit < LARGEST_INTEGER):
            return
    raise errors.inexact(most, kind)


def holds(precision: Precision) -> tuple[int, str]:
    """Return the largest integer that sums of integers may reach, and the name of their type."""
    return int(np.iinfo(precision.dtype).max), precision.value


def as_boolean(C: Any) -> Any:
    """Return C, which is nobody else's, with True for what is not 0."""
    values = C.data if hasattr(C, "format") else C
    true = values.view(np.bool_) if values.dtype in (np.bool_, np.uint8) else values != 0
    if values is C:
        return true
    C.data = true
    return C


def transpose(C: Any) -> Any:
    """Return the transpose of a matrix of SciPy whose rows are known to be sorted, without a copy."""
    turned = C.T
    turned.has_canonical_format = True
    return turned


def require_pointer(name: str, count: int, columns: bool) -> None:
    """Raise MemoryError where the host has no room for a pointer to so many rows, or `columns`, of a matrix."""
    line = "column" if columns else "row"
    require_host_free(8 * (count + 2), f"the {line} pointer of {name}, which has {count:,} {line}s,")


def in_format(C: Any, form: str, missing: complex = 0) -> Any:
    """Return C, in CSR or of SciPy in CSC with sorted columns, in another format; `missing` is what is not stored."""
    if getattr(C, "format", "dense") == form:
        return C
    if form == "dense":
        xp = np if isinstance(C.data, np.ndarray) else importlib.import_module("cupy")
        rows = C.tocsr()
        dense = xp.full(C.shape, missing, C.dtype)
        dense[owners(rows.indptr, len(rows.data), xp), rows.indices] = rows.data
        return dense
    if form in ("csr", "csc") and not on_gpu(C):
        require_pointer("C", C.shape[form == "csc"], form == "csc")
    pattern, C = C, C.asformat(form)
    if form == "bsr" and missing != 0:  # which is what its blocks hold where C has no entry
        pattern = pattern.astype(np.bool_)
        pattern.data[:] = True
        C.data[~pattern.tobsr(C.blocksize).data] = missing
    if form != "bsr" and not on_gpu(C):
        C.has_canonical_format = True
    return C


def is_array(*matrices: Any) -> bool:
    """Return whether one of them is a sparse array of SciPy or CuPy rather than a matrix."""
    return any(_is_array_type(type(matrix)) for matrix in matrices)  # type: ignore[arg-type]


@functools.cache
def _is_array_type(kind: type) -> bool:
    import scipy.sparse as sp

    if issubclass(kind, sp.sparray):
        return True
    if not kind.__module__.startswith(_ON_GPU):
        return False
    from cupyx.scipy import sparse

    return hasattr(sparse, "sparray") and issubclass(kind, sparse.sparray)


def host_csr(
    shape: tuple[int, int], indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, array: bool, kept: bool = False
) -> Any:
    """Return a SciPy array or matrix whose rows are known to be sorted.

    It has copies of pointer and columns where these are `kept`: what is done to it in place must not reach them.
    """
    # One index type for both: 64-bit only where the count or the columns need it.
    index = np.int32 if indptr[-1] < 2**31 and indices.dtype == np.int32 else np.int64
    arrays = data, indices.astype(index, copy=kept), indptr.astype(index, copy=kept)
    kind, known = _csr(array)
    if known is None:
        C = kind(arrays, shape=shape)
        C.has_canonical_format = True
        return C
    C = kind.__new__(kind)
    vars(C).update(known, _shape=shape, data=arrays[0], indices=arrays[1], indptr=arrays[2])
    return C


@functools.cache
def _csr(array: bool) -> tuple[Any, dict[str, Any] | None]:
    """Return SciPy's class of arrays or matrices in CSR, and what one holds: its constructor looks at arrays anew.

    None where it holds the arrays by other names than in SciPy 1.14 to 1.17.
    """
    import scipy.sparse as sp

    kind = sp.csr_array if array else sp.csr_matrix
    one = kind((0, 0))
    one.has_canonical_format = True
    return kind, vars(one) if vars(one).keys() >= {"_shape", "data", "indices", "indptr"} else None


def device_csr(shape: tuple[int, int], indptr: Any, indices: Any, data: Any, array: bool = False) -> Any:
    """Return a cupyx array or matrix whose rows are known to be sorted, without a wait."""
    return csr_matrix(shape, indptr, indices, data, has_canonical_format=True, array=array)


def related(A: Any, B: Any) -> tuple[bool, bool]:
    """Return whether B is the transpose and whether the adjoint of A, as libraries make both of the same arrays."""
    same = {A.format, B.format} == {"csr", "csc"} and A.shape == B.shape[::-1] and A.dtype == B.dtype
    for name in ("indptr", "indices", "data"):
        same = same and getattr(A, name).shape == getattr(B, name).shape
    if not (same and _equal(A.indptr, B.indptr) and _equal(A.indices, B.indices)):
        return False, False
    return _equal(A.data, B.data), A.dtype.kind == "c" and _equal(A.data.conj(), B.data)


def _equal(x: Any, y: Any) -> bool:
    """Return whether two arrays of one shape are the same memory, or the same numbers."""
    same = x.dtype == y.dtype and address(x) == address(y) and x.strides == y.strides
    return same or bool((x == y).all())
