"""Stored matrices of any format as one: CSR, canonical, in one of four types, on the host or on a GPU."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from spectile.core.cupy_parts import csr_matrix
from spectile.core.host import canonical_csr, refuse_malformed
from spectile.core.pointers import operand
from spectile.kpm.bounds import gershgorin
from spectile.kpm.operators.protocol import lies_on_gpu
from spectile.kpm.types import NOT_FINITE

# The arrays of a sparse matrix, by its format; what has none of these is made anew by SciPy.
_ARRAYS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}


class StoredMatrix:
    """A stored Hermitian matrix, sparse or dense, of SciPy, NumPy or CuPy: an :class:`~spectile.kpm.Operator`.

    It has any format and any real or complex type, arrays of any strides and byte order, and is never written to.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = readable(matrix)
        self.shape, self.dtype = (int(matrix.shape[0]), int(matrix.shape[1])), np.dtype(matrix.dtype)
        self.on_gpu = lies_on_gpu(matrix)

    def on_host(self) -> StoredMatrix:
        """Return the matrix in the host's memory."""
        if not self.on_gpu:
            return self
        with _settled(self.matrix):
            return StoredMatrix(self.matrix.get())

    def csr(self, dtype: np.dtype[Any]) -> Any:
        """Return the matrix in CSR form where it lies, without duplicates, columns ascending."""
        if self.on_gpu:
            matrix = self.csr_on_gpu(dtype)
            matrix.sum_duplicates()
            return matrix
        refuse_malformed("H", self.matrix)
        return canonical_csr(self.matrix, dtype)

    def csr_on_gpu(self, dtype: np.dtype[Any]) -> Any:
        """Return a copy in CSR form on the current device, indices of 32 bits, in the caller's order of entries."""
        from cupyx.scipy import sparse

        if self.on_gpu:
            with _settled(self.matrix):
                # CuPy's sparse matrices hold no integers but Booleans.
                dense = not sparse.issparse(self.matrix)
                matrix = sparse.csr_matrix(self.matrix.astype(dtype, copy=False)) if dense else self.matrix.tocsr()
        else:
            matrix = self.csr(dtype)
        narrow = np.int32 if matrix.nnz <= np.iinfo(np.int32).max else np.int64
        kinds = dtype, np.dtype(np.int32), np.dtype(narrow)
        arrays = zip((matrix.data, matrix.indices, matrix.indptr), kinds, strict=True)
        data, indices, indptr = (_copied(each, kind) for each, kind in arrays)
        # CuPy's constructor looks at all indices, by kernels that a first call would compile.
        return csr_matrix(self.shape, indptr, indices, data)

    def matmat(self, block: Any, out: Any) -> None:
        """Write H times `block` to `out`, where the matrix lies."""
        out[...] = self.matrix @ block

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return gershgorin(self.csr(np.result_type(self.dtype.newbyteorder("="), np.float32)))

    def memory_bytes(self, num_vectors: int) -> int:
        """Return the bytes of the product before it is written."""
        return self.shape[0] * num_vectors * self.dtype.itemsize


def _copied(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return a copy on the current device; without a kernel, which a first call would compile, where types agree."""
    import cupy

    if not isinstance(array, cupy.ndarray):
        return cupy.asarray(array.astype(dtype, copy=False))
    with array.device:
        array = operand("H", array, dtype)
        if array.device != _current_device():
            array.device.synchronize()  # the copy's stream, on another device, does not wait for it
    held = cupy.empty(array.shape, dtype)
    held.data.copy_from_device_async(array.data, array.nbytes)
    return held


def readable(matrix: Any) -> Any:
    """Return a matrix whose arrays are what libraries and kernels read by their addresses: itself, or a copy.

    Those of a caller may be strided, as those of ``H.real`` are, or of foreign byte order.
    """
    names = _ARRAYS.get(getattr(matrix, "format", ""))
    with _on_device_of(matrix):
        if names is None:
            return operand("H", matrix) if hasattr(matrix, "flags") else matrix
        held = {name: getattr(matrix, name) for name in names}
        arrays = {name: operand(f"H.{name}", array) for name, array in held.items()}
    if all(arrays[name] is array for name, array in held.items()):
        return matrix
    other = copy.copy(matrix)
    for name, array in arrays.items():
        setattr(other, name, array)
    return other


def _current_device() -> Any:
    import cupy

    return cupy.cuda.Device()


def _on_device_of(matrix: Any) -> Any:
    """Make the device of a matrix of CuPy's the current one."""
    return matrix.data.device if lies_on_gpu(matrix) else contextlib.nullcontext()


@contextlib.contextmanager
def _settled(matrix: Any) -> Iterator[None]:
    """Make the device of a matrix of CuPy's the current one; what the block does has ended when another one goes on."""
    device = matrix.data.device
    if device == _current_device():
        yield
        return
    with device:
        device.synchronize()  # its producer's stream is known to nobody here
        yield
        device.synchronize()


class Inspection(NamedTuple):
    """What one pass over a CSR matrix says of it."""

    finite: bool  #: Whether every entry is a finite number.
    #: Largest difference between an entry and its adjoint one, and largest entry.
    difference: float
    largest: float
    bounds: tuple[float, float]  #: Gershgorin's: (float, float).
    longest: int  #: Entries of the longest row.
    canonical: bool = True  #: Whether the columns of every row ascend without duplicates; else the rest means nothing.
    #: On a GPU: slots where every 32 rows are as long as the longest of them, and rows whose length or first column
    #: is not that of the row before.
    slots: int = 0
    unlike: int = 0

    def require_hermitian(self, dtype: Any) -> None:
        """Raise ValueError where entries differ from their adjoint ones by more than rounding of the largest, or are
        not finite.

        Entries that a product or a sum rounded may differ in their last digits, and stored zeros have no partner.
        """
        if not self.finite:
            raise ValueError(NOT_FINITE)
        if self.difference > 1024 * float(np.finfo(dtype).eps) * self.largest:
            raise ValueError(
                f"H is not Hermitian: entries and their adjoint ones differ by {self.difference:.1e}, the largest "
                f"entry is {self.largest:.1e}; symmetrize it with (H + H.conj().T) / 2 if that is what you mean"
            )
