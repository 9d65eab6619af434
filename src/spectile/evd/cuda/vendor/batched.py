"""Batches of small matrices on CUDA: all of them in one call of cuSOLVER's ``XsyevBatched``.

Its older ``syevjBatched`` is not used: its rotations leave vectors of order 100 less orthogonal than we promise.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.cupy_parts import part
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.small.report import Report
from spectile.evd.cuda.units import BATCH
from spectile.evd.cuda.vendor.dense import parameters
from spectile.evd.types import Options, scalar_of

#: Matrices are solved in groups of about so many bytes.
GROUP_BYTES = 2**29


def solve(batch: Any, options: Options, alone: Callable[[Any, Options], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return eigenvalues, and eigenvectors or None, of a batch, shape (count, n, n); the host hears of failures once.

    cuSOLVER may return eigenvalues that are not ascending, or NaN, or vectors that are not orthonormal, without a word;
    such a matrix is solved again, by ``alone(matrix, options)``.  The options have no subset by value.

    Raises ValueError or, without `check_finite`, LinAlgError if a triangle holds NaN or infinity; LinAlgError for no
    convergence, too; OverflowError if an eigenvalue is beyond the range of its dtype; and RuntimeError while the stream
    is captured in a graph, whose failures nobody would hear of.
    """
    import cupy

    count, n, _ = batch.shape
    group = max(1, GROUP_BYTES // (n * n * batch.itemsize))
    what = f"a batch of {count:,} matrices of order {n:,}"
    with memory.allocating(what, 3 * batch.nbytes), Report() as report:
        parts = [_solve_group(batch[first : first + group], options, report) for first in range(0, count, group)]
        report.check(options, parts[0][0].dtype)
        w, v, failed = (_joined(own) for own in zip(*parts, strict=True))
    if report.disordered:
        solve_again(batch, options, alone, cupy.asnumpy(failed), w, v)
    return w, v


def _joined(parts: tuple[Any, ...]) -> Any:
    import cupy

    return parts[0] if len(parts) == 1 or parts[0] is None else cupy.concatenate(parts)


def solve_again(
    batch: Any, options: Options, alone: Callable[[Any, Options], tuple[Any, Any]], failed: Any, w: Any, v: Any
) -> None:
    """Put the results of `alone` in the place of those of the matrices for which `failed` is not 0."""
    for number in np.flatnonzero(failed).tolist():
        w[number], vectors = alone(batch[number], options)
        if v is not None:
            v[number] = vectors


def _solve_group(batch: Any, options: Options, report: Report) -> tuple[Any, Any, Any]:
    """Return w, and v or None, of so many matrices as are solved together, and which of them have failed."""
    import cupy

    count, n, _ = batch.shape
    size, scalar = batch.itemsize, scalar_of(batch.dtype)
    stride, along_i, along_j = (step // size for step in batch.strides)
    if not options.lower:
        along_i, along_j = along_j, along_i
    matrices, exponents = cupy.empty(batch.shape, batch.dtype), cupy.empty(count, np.int32)
    kernel(BATCH[scalar.name], "load_batch")(
        load_shape(n, count),
        *(np.uintp(address(batch)), np.int64(stride), np.int64(along_i), np.int64(along_j), np.int32(n)),
        *(np.int32(not options.lower), matrices, exponents),
    )
    # Rows in memory are columns for cuSOLVER; a triangle that lies along rows comes to it as the upper one.
    lower = abs(along_j) >= abs(along_i)
    w, info = _syev(matrices, lower, options.vectors, report)
    kernel(BATCH[scalar.name], "finish_batch")(
        finish_shape(n, count),
        *(w, matrices if options.vectors else np.uintp(0), exponents, info, np.int32(n), report.address),
    )
    wanted = slice(None) if options.subset is None else slice(options.subset.low, options.subset.high + 1)
    return w[:, wanted], matrices.swapaxes(1, 2)[:, :, wanted] if options.vectors else None, info


def load_shape(n: int, count: int) -> Shape:
    """Launch of `load_batch`: a block a matrix."""
    return Shape((count,), 128 if n <= 64 else 512, 4)


def finish_shape(n: int, count: int) -> Shape:
    """Launch of `finish_batch`: a block a matrix."""
    return Shape((count,), 128, 8 * (2 * n + 128))


_CUDA_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the cuSOLVER that CuPy has loaded, where it has ``cusolverDnXsyevBatched`` (CUDA 12.6 and later)."""
    part("get_cusolver_handle")()
    for name in ("libcusolver.so.12", "libcusolver.so.11"):
        try:
            loaded = ctypes.CDLL(name)
        except OSError:
            continue
        return loaded if hasattr(loaded, "cusolverDnXsyevBatched") else None
    return None


def _syev(matrices: Any, lower: bool, vectors: bool, report: Report) -> tuple[Any, Any]:
    """Overwrite the matrices with their eigenvectors by ``cusolverDnXsyevBatched``; return w and what it reports."""
    import cupy

    cublas, cusolver = part("cublas"), part("cusolver")
    scalar, loaded = scalar_of(matrices.dtype), library()
    assert loaded is not None
    count, n, _ = matrices.shape
    w, info = cupy.empty((count, n), scalar.real), cupy.zeros(count, np.int32)
    handle = part("get_cusolver_handle")()
    cusolver.setStream(handle, cupy.cuda.get_current_stream().ptr)
    mode = cusolver.CUSOLVER_EIG_MODE_VECTOR if vectors else cusolver.CUSOLVER_EIG_MODE_NOVECTOR
    triangle = cublas.CUBLAS_FILL_MODE_LOWER if lower else cublas.CUBLAS_FILL_MODE_UPPER
    kind, real = ctypes.c_int(_CUDA_TYPES[scalar.name]), ctypes.c_int(_CUDA_TYPES[scalar.real])
    head = (
        *(ctypes.c_void_p(handle), ctypes.c_void_p(parameters()), ctypes.c_int(mode), ctypes.c_int(triangle)),
        *(ctypes.c_int64(n), kind, ctypes.c_void_p(address(matrices)), ctypes.c_int64(n)),
        *(real, ctypes.c_void_p(address(w)), kind),
    )
    device_bytes, host_bytes = ctypes.c_size_t(), ctypes.c_size_t()
    sizes = (ctypes.byref(device_bytes), ctypes.byref(host_bytes))
    _check(loaded.cusolverDnXsyevBatched_bufferSize(*head, *sizes, ctypes.c_int64(count)))
    # That of CUDA 12.6 reads its work space for complex64 before it writes it (pytorch/pytorch#192483).
    work = cupy.zeros(device_bytes.value, np.uint8)
    host = np.empty(max(host_bytes.value, 1), np.uint8)
    report.keep(host)
    _check(
        loaded.cusolverDnXsyevBatched(
            *(*head, ctypes.c_void_p(address(work)), device_bytes, ctypes.c_void_p(address(host)), host_bytes),
            *(ctypes.c_void_p(address(info)), ctypes.c_int64(count)),
        )
    )
    return w, info


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuSOLVER's XsyevBatched returned status {status}")
