"""cuSPARSE's product with a known pattern (``cusparseSpGEMMreuse``), which CuPy does not wrap."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile_study.bench.vendor import cuda_library

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)
_CODES = {np.dtype("float32"): 0, np.dtype("float64"): 1}  # cudaDataType
_DEFAULT = 0  # CUSPARSE_SPGEMM_DEFAULT, the algorithm of the vendor's example


class ReusedProduct:
    """The pattern of C = A B as cuSPARSE keeps it; calling it computes the values of C from those of A and B.

    Parameters
    ----------
    A, B : cupyx.scipy.sparse.csr_matrix
        Both float32 or both float64, canonical, with 32-bit indices.  Their arrays are held: write other values to
        ``A.data`` and ``B.data`` in place.

    Attributes
    ----------
    C : cupyx.scipy.sparse.csr_matrix
        The product, whose values each call writes; columns in cuSPARSE's order.

    Raises
    ------
    RuntimeError
        If cuSPARSE refuses a step.
    """

    def __init__(self, A: Any, B: Any) -> None:
        import cupy
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cusparse
        from cupyx.cusparse import SpMatDescriptor
        from cupyx.scipy.sparse import csr_matrix

        handle = device.get_cusparse_handle()
        cusparse.setStream(handle, cupy.cuda.get_current_stream().ptr)
        shape = (A.shape[0], B.shape[1])
        empty = csr_matrix((cupy.empty(0, A.dtype), cupy.empty(0, "i4"), cupy.zeros(shape[0] + 1, "i4")), shape=shape)
        descriptors = [SpMatDescriptor.create(matrix) for matrix in (A, B, empty)]
        plan = cusparse.spGEMM_createDescr()
        self._release = lambda: cusparse.spGEMM_destroyDescr(plan)
        places = tuple(_POINTER(one.desc) for one in descriptors)
        common = (_POINTER(handle), 0, 0, *places, _DEFAULT, _POINTER(plan))
        types = [_POINTER, _INT, _INT, *[_POINTER] * 3, _INT, _POINTER]
        first = _sized(_function("workEstimation", types, 1), common, 1)
        buffers = _sized(_function("nnz", types, 3), common, 3)
        rows, columns, count = (np.zeros((), np.int64) for _ in range(3))
        cusparse.spMatGetSize(descriptors[2].desc, address(rows), address(columns), address(count))
        data, indices = cupy.empty(int(count), A.dtype), cupy.empty(int(count), "i4")
        cusparse.csrSetPointers(descriptors[2].desc, address(empty.indptr), address(indices), address(data))
        buffers += _sized(_function("copy", types, 1), common, 1)
        del first
        self.C = csr_matrix((data, indices, empty.indptr), shape=shape)
        alpha, beta = np.array(1, A.dtype), np.array(0, A.dtype)
        ones = _POINTER(address(alpha)), _POINTER(address(beta))
        self._held = A, B, descriptors, buffers, alpha, beta
        self._compute = cuda_library("libcusparse").cusparseSpGEMMreuse_compute
        self._arguments = (
            *(_POINTER(handle), 0, 0, ones[0], *places[:2], ones[1], places[2]),
            *(_CODES[A.dtype], _DEFAULT, _POINTER(plan)),
        )

    def __call__(self) -> Any:
        """Compute the values of C on the stream that was current when this was made; does not wait."""
        status = self._compute(*self._arguments)
        if status:
            raise RuntimeError(f"cusparseSpGEMMreuse_compute fails with status {status}")
        return self.C

    def __del__(self) -> None:
        """Give cuSPARSE's description back."""
        getattr(self, "_release", lambda: None)()


def _function(step: str, types: list[Any], buffers: int) -> Callable[..., int]:
    function = getattr(cuda_library("libcusparse"), f"cusparseSpGEMMreuse_{step}")
    function.argtypes = [*types, *(_SIZE, _POINTER) * buffers]

    def call(*arguments: Any) -> int:
        status = int(function(*arguments))
        if status:
            raise RuntimeError(f"cusparseSpGEMMreuse_{step} fails with status {status}")
        return status

    return call


def _sized(function: Callable[..., int], common: tuple[Any, ...], count: int) -> list[Any]:
    """Call a step for the sizes of its buffers, then with them; return the buffers."""
    import cupy

    sizes = [ctypes.c_size_t(0) for _ in range(count)]
    function(*common, *(part for size in sizes for part in (ctypes.byref(size), None)))
    buffers = [cupy.empty(max(size.value, 1), cupy.uint8) for size in sizes]
    addresses = [address(buffer) if size.value else None for size, buffer in zip(sizes, buffers, strict=True)]
    pairs = zip(sizes, addresses, strict=True)
    function(*common, *(part for size, place in pairs for part in (ctypes.byref(size), place)))
    return buffers
