"""Rivals that were built as libraries (``build.py``), called in this process on the device's arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np


class _Csr(ctypes.Structure):
    """``Rival`` of ``rival.h``."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("rows", "nnz")),
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "data")),
    )


class Product:
    """A square in the rival's own memory, which is freed with this object."""

    def __init__(self, library: Library, csr: _Csr) -> None:
        self._library, self._csr = library, csr

    def __del__(self) -> None:
        self._library.release(self._csr)

    def matrix(self) -> Any:
        """Return a copy as a cupyx CSR matrix with sorted columns."""
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        def copied(address: int, length: int, dtype: Any) -> Any:
            size = length * np.dtype(dtype).itemsize
            memory = cupy.cuda.UnownedMemory(address, size, self)
            return cupy.ndarray(length, dtype, cupy.cuda.MemoryPointer(memory, 0)).copy()

        rows, nnz = self._csr.rows, self._csr.nnz
        arrays = (
            copied(self._csr.data, nnz, self._library.dtype),
            copied(self._csr.indices, nnz, np.int32),
            copied(self._csr.indptr, rows + 1, np.int32),
        )
        C = csr_matrix(arrays, shape=(rows, rows))
        C.sort_indices()
        return C


class Library:
    """A rival's library.

    Parameters
    ----------
    path : Path
        The shared library.

    Raises
    ------
    OSError
        If it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.rival_square.argtypes = [ctypes.POINTER(_Csr)] * 2
        self._library.rival_release.argtypes = [ctypes.POINTER(_Csr)]
        self._library.rival_release.restype = None
        self.dtype = np.dtype(f"f{self._library.rival_value_bytes()}")

    @property
    def most_bytes(self) -> int | None:
        """The most device memory that the last call held beside its inputs; None where nobody counts it."""
        most = getattr(self._library, "rival_most_bytes", None)
        if most is None:
            return None
        most.restype = ctypes.c_longlong
        return int(most())

    def square(self, matrix: Any) -> Product:
        """Return the square of a cupyx CSR matrix of `dtype` with 32-bit indices.

        Raises
        ------
        RuntimeError
            If the rival fails.
        """
        arrays = (matrix.indptr, matrix.indices, matrix.data)
        a = _Csr(matrix.shape[0], matrix.nnz, *(array.data.ptr for array in arrays))
        c = _Csr()
        status = self._library.rival_square(ctypes.byref(a), ctypes.byref(c))
        if status:
            raise RuntimeError(f"the rival's product ends with CUDA's error {status}")
        return Product(self, c)

    def release(self, csr: _Csr) -> None:
        """Free the memory of a product."""
        self._library.rival_release(ctypes.byref(csr))
