"""The vendor's routines that ours are measured against, called with the precision and algorithm stated.

CUDA: cuBLAS GEMM with explicit compute types, cuSPARSE SpGEMM with a chosen algorithm and the bytes it asks for.  The
solvers of cuSOLVER live with the system that uses them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Literal

from spectile.core.pointers import address

GemmMode = Literal["fp16_fp32", "fp16_fp16", "fp16_sums", "fp32", "tf32", "fp64"]
SpgemmAlgorithm = Literal["alg1", "alg2", "alg3"]


class Gemm:
    """C = A B by ``cublasGemmEx`` on row-major device arrays, with the compute type stated.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        Row-major, of shapes (m, k), (k, n) and (m, n).
    mode : {"fp16_fp32", "fp16_fp16", "fp16_sums", "fp32", "tf32", "fp64"}
        ``fp16_fp32`` and ``fp16_fp16`` take float16 and sum in float32, with C in float32 or float16; ``fp16_sums``
        sums in float16, too, as ``cublasHgemm`` does; ``fp32`` is SGEMM without tensor cores; ``tf32`` rounds float32
        inputs to TF32; ``fp64`` is DGEMM.
    """

    _TYPES = {  # noqa: RUF012
        "fp16_fp32": ("float16", "float32", "CUBLAS_COMPUTE_32F"),
        "fp16_fp16": ("float16", "float16", "CUBLAS_COMPUTE_32F"),
        "fp16_sums": ("float16", "float16", "CUBLAS_COMPUTE_16F"),
        "fp32": ("float32", "float32", "CUBLAS_COMPUTE_32F"),
        "tf32": ("float32", "float32", "CUBLAS_COMPUTE_32F_FAST_TF32"),
        "fp64": ("float64", "float64", "CUBLAS_COMPUTE_64F"),
    }

    def __init__(self, a: Any, b: Any, out: Any, mode: GemmMode) -> None:
        import numpy as np
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cublas

        if mode not in self._TYPES:
            raise ValueError(f"unknown mode {mode!r}: take one of {', '.join(self._TYPES)}")
        dtype_in, dtype_out, compute = self._TYPES[mode]
        for name, array, dtype in (("a", a, dtype_in), ("b", b, dtype_in), ("out", out, dtype_out)):
            if array.dtype != dtype or not array.flags.c_contiguous:
                raise TypeError(f"{name} must be a row-major {dtype} array for mode {mode!r}, and is {array.dtype}")
        (m, k), n = a.shape, b.shape[1]
        if b.shape[0] != k or out.shape != (m, n):
            raise ValueError(f"shapes {a.shape}, {b.shape} and {out.shape} do not belong to one product")
        self._handle = device.get_cublas_handle
        # CuPy refuses cuBLAS while a graph is captured; cuBLAS itself does not.
        self._library = cuda_library("libcublas")
        scalar = {"fp64": np.float64, "fp16_sums": np.float16}.get(mode, np.float32)
        self._alpha, self._beta = np.array(1, scalar), np.array(0, scalar)
        self._operands = (a, b, out)
        cuda_type = {"float16": 2, "float32": 0, "float64": 1}
        # Row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.
        pointer = ctypes.c_void_p
        self._arguments = (
            *(cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, m, k, pointer(address(self._alpha))),
            *(pointer(address(b)), cuda_type[dtype_in], n, pointer(address(a)), cuda_type[dtype_in], k),
            *(pointer(address(self._beta)), pointer(address(out)), cuda_type[dtype_out], n),
            *(getattr(cublas, compute), cublas.CUBLAS_GEMM_DEFAULT),
        )

    def __call__(self) -> Any:
        """Run on the current stream and return C; does not synchronise."""
        import cupy

        handle = ctypes.c_void_p(self._handle())
        stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        status = self._library.cublasSetStream_v2(handle, stream) or self._library.cublasGemmEx(
            handle, *self._arguments
        )
        if status != 0:
            raise RuntimeError(f"cublasGemmEx fails with status {status}")
        return self._operands[2]


def gemm_flops(m: int, n: int, k: int) -> float:
    """Return the floating-point operations of a dense product: 2 m n k."""
    return 2.0 * m * n * k


@functools.cache
def cuda_library(name: str) -> ctypes.CDLL:
    """Return the CUDA library that CuPy has loaded, found again by its soname."""
    for version in (13, 12, 11):
        try:
            return ctypes.CDLL(f"{name}.so.{version}", mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise RuntimeError(f"{name} was not found: install CuPy with CUDA's libraries (pip install 'cupy-cuda13x[ctk]')")


class SpgemmMemoryError(MemoryError):
    """cuSPARSE could not do the product; ``memory_bytes`` is the work space it asked for, or 0 where it gave none."""

    def __init__(self, message: str, memory_bytes: int) -> None:
        super().__init__(message)
        self.memory_bytes = memory_bytes


def spgemm(
    a: Any, b: Any, algorithm: SpgemmAlgorithm = "alg1", chunk_fraction: float = 0.2
) -> tuple[Any, dict[str, int]]:
    """Multiply two CSR matrices by ``cusparseSpGEMM``.

    Parameters
    ----------
    a, b : cupyx.scipy.sparse.csr_matrix
        float32 or float64 with 32-bit indices, canonical.
    algorithm : {"alg1", "alg2", "alg3"}
        ``CUSPARSE_SPGEMM_ALG1`` (fastest, most memory), ``ALG2``, or ``ALG3`` (in chunks).
    chunk_fraction : float
        Fraction of the intermediate products computed at a time by ``alg3``.

    Returns
    -------
    c : cupyx.scipy.sparse.csr_matrix
        The product; count its nonzeros and compare a checksum, since cuSPARSE can return zeros silently.
    memory : dict
        Bytes of the work spaces: ``buffer1``, ``buffer2``, ``buffer3`` and their sum ``total``.

    Raises
    ------
    SpgemmMemoryError
        If cuSPARSE reports insufficient resources or the device has too little memory for its work space.
    """
    import cupy
    import numpy as np
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse
    from cupyx.cusparse import SpMatDescriptor
    from cupyx.scipy.sparse import csr_matrix

    algorithms = {"alg1": "ALG1", "alg2": "ALG2", "alg3": "ALG3"}
    if algorithm not in algorithms:
        raise ValueError(f"unknown algorithm {algorithm!r}: take one of {', '.join(algorithms)}")
    code = getattr(cusparse, f"CUSPARSE_SPGEMM_{algorithms[algorithm]}")
    m, n = a.shape[0], b.shape[1]
    value_type = {np.dtype("float32"): 0, np.dtype("float64"): 1}[a.dtype]
    handle = device.get_cusparse_handle()
    cusparse.setStream(handle, cupy.cuda.get_current_stream().ptr)
    empty = csr_matrix((cupy.empty(0, a.dtype), cupy.empty(0, "i4"), cupy.zeros(m + 1, "i4")), shape=(m, n))
    alpha, beta = np.array(1, a.dtype), np.array(0, a.dtype)
    matrices = SpMatDescriptor.create(a), SpMatDescriptor.create(b), SpMatDescriptor.create(empty)
    common = (handle, 0, 0, address(alpha), matrices[0].desc, matrices[1].desc, address(beta), matrices[2].desc)
    memory: dict[str, int] = {}
    descriptor = cusparse.spGEMM_createDescr()
    arguments = (*common, value_type, code, descriptor)

    def buffer(name: str, size: int) -> Any:
        memory[name] = int(size)
        return cupy.empty(max(int(size), 1), cupy.uint8)

    try:
        size1 = cusparse.spGEMM_workEstimation(*arguments, 0, 0)
        buffer1 = buffer("buffer1", size1)
        cusparse.spGEMM_workEstimation(*arguments, size1, address(buffer1))
        if algorithm == "alg1":
            size2 = cusparse.spGEMM_compute(*arguments, 0, 0)
        else:
            size2, buffer3 = _estimate_memory(arguments, chunk_fraction, buffer)
            del buffer3
        buffer2 = buffer("buffer2", size2)
        cusparse.spGEMM_compute(*arguments, size2, address(buffer2))
        rows, columns, count = (np.zeros((), np.int64) for _ in range(3))
        cusparse.spMatGetSize(matrices[2].desc, address(rows), address(columns), address(count))
        data, indices = cupy.empty(int(count), a.dtype), cupy.empty(int(count), "i4")
        cusparse.csrSetPointers(matrices[2].desc, address(empty.indptr), address(indices), address(data))
        cusparse.spGEMM_copy(*arguments)
    except (cusparse.CuSparseError, cupy.cuda.memory.OutOfMemoryError) as error:
        requested = sum(memory.values())
        raise SpgemmMemoryError(
            f"cuSPARSE SpGEMM {algorithm} fails ({error}) after asking for {requested:,} bytes", requested
        ) from error
    finally:
        cusparse.spGEMM_destroyDescr(descriptor)
    memory["total"] = sum(memory.values())
    return csr_matrix((data, indices, empty.indptr), shape=(m, n)), memory


def _estimate_memory(arguments: tuple[Any, ...], chunk_fraction: float, buffer: Any) -> tuple[int, Any]:
    """Call ``cusparseSpGEMM_estimateMemory``, which CuPy does not wrap; return the bytes of the compute buffer."""
    from cupy_backends.cuda.libs import cusparse

    function = cuda_library("libcusparse").cusparseSpGEMM_estimateMemory
    pointer = ctypes.c_void_p
    function.argtypes = [
        *(pointer, ctypes.c_int, ctypes.c_int, *(pointer,) * 5, ctypes.c_int, ctypes.c_int, pointer, ctypes.c_float),
        *(ctypes.POINTER(ctypes.c_size_t), pointer, ctypes.POINTER(ctypes.c_size_t)),
    ]
    size3, size2 = ctypes.c_size_t(0), ctypes.c_size_t(0)

    def call(place: int | None) -> None:
        status = function(*arguments, chunk_fraction, ctypes.byref(size3), place, ctypes.byref(size2))
        if status != 0:
            raise cusparse.CuSparseError(status)

    call(None)
    buffer3 = buffer("buffer3", size3.value)
    call(address(buffer3))
    return size2.value, buffer3
