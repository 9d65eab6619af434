"""cuSOLVER's syevd, for the orders at which it is faster than our stages."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from spectile.core.cupy_parts import part
from spectile.evd.cuda.matrix import Matrix, largest_entry, load_triangle
from spectile.evd.types import SCALARS, exponent_for_squares, not_converged, require_finite


class _Plan(NamedTuple):
    """What cuSOLVER is told, and asks for, at one order: the same in every call."""

    problem: tuple[int, ...]  # options, mode, triangle, order
    kinds: tuple[int, int]  # of the matrix and of its eigenvalues
    real: Any
    device_bytes: int
    host_bytes: int


@functools.cache
def _options() -> int:
    return int(part("cusolver").createParams())


@functools.cache
def _plan(n: int, name: str, eigvals_only: bool, device: int) -> _Plan:
    import cupy

    cublas, cusolver, to_cuda_dtype = part("cublas"), part("cusolver"), part("to_cuda_dtype")
    dtype = np.dtype(name)
    real = np.dtype(SCALARS[name].real)
    kinds = int(to_cuda_dtype(dtype)), int(to_cuda_dtype(real))
    mode = cusolver.CUSOLVER_EIG_MODE_NOVECTOR if eigvals_only else cusolver.CUSOLVER_EIG_MODE_VECTOR
    problem = (_options(), mode, cublas.CUBLAS_FILL_MODE_LOWER, n)
    unread = cupy.empty(1, dtype).data.ptr
    handle = part("get_cusolver_handle")()
    sizes = cusolver.xsyevd_bufferSize(handle, *problem, kinds[0], unread, n, kinds[1], unread, kinds[0])
    return _Plan(problem, kinds, real, *sizes)


def eigh(array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool) -> tuple[Any, Any]:
    """Solve one matrix; in double precision without a word to the host before the end.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, eigvals_only, check_finite : bool

    Returns
    -------
    w : cupy.ndarray, shape (n,)
    v : cupy.ndarray, shape (n, n), column-major, or None

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`; LinAlgError for no convergence, too.
    """
    import cupy

    cusolver = part("cusolver")
    n, dtype = array.shape[0], array.dtype
    v = cupy.empty((n, n), dtype, order="F")
    status = cupy.zeros(2, np.int32)  # what cuSOLVER reports, and whether an entry is not finite
    # Zeros in the place of NaN, so that cuSOLVER comes to an end; the host hears of them with cuSOLVER's own report.
    load_triangle(array, lower, v.data.ptr, n, status.data.ptr + 4)
    plan = _plan(n, dtype.name, eigvals_only, cupy.cuda.runtime.getDevice())
    exponent = 0
    if plan.real == np.float32:
        # cuSOLVER squares entries as they are: of graded matrices they underflow, and it diverges or, worse, goes on.
        exponent = exponent_for_squares(largest_entry(Matrix(v.data.ptr, n, v.itemsize, v), n, lower=True), n)
        reals = v.T.view(plan.real)
        cupy.ldexp(reals, np.int32(exponent), out=reals)
    w, work = cupy.empty(n, plan.real), cupy.empty(plan.device_bytes, np.uint8)
    host_work = np.empty(plan.host_bytes, np.uint8)
    kind, real_kind = plan.kinds
    cusolver.xsyevd(
        *(part("get_cusolver_handle")(), *plan.problem, kind, v.data.ptr, n, real_kind, w.data.ptr, kind),
        *(work.data.ptr, plan.device_bytes, host_work.ctypes.data, plan.host_bytes, status.data.ptr),
    )
    info, not_finite = status.get().tolist()
    if not_finite:
        require_finite(np.nan, lower, check_finite)
    if info:
        raise not_converged(info)
    return cupy.ldexp(w, np.int32(-exponent)) if exponent else w, None if eigvals_only else v
