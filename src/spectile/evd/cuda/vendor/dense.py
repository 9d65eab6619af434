"""cuSOLVER's syevd, for the orders at which it is faster than our stages."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from spectile.core.cupy_parts import part
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import (
    exponent_of,
    is_finite,
    load_triangle,
    require_in_range,
    scale_triangle,
    scaled_values,
    shift_of,
)
from spectile.evd.types import SCALARS, exponent_for_squares, not_ascending, not_converged, require_finite, scalar_of


class _Plan(NamedTuple):
    """What cuSOLVER is told, and asks for, at one order: the same in every call."""

    problem: tuple[int, ...]  # options, mode, triangle, order
    kinds: tuple[int, int]  # of the matrix and of its eigenvalues
    real: Any
    device_bytes: int
    host_bytes: int


@functools.cache
def parameters() -> int:
    """Return cuSOLVER's parameters, made once."""
    return int(part("cusolver").createParams())


@functools.cache
def _plan(n: int, name: str, eigvals_only: bool, device: int) -> _Plan:
    import cupy

    cublas, cusolver, to_cuda_dtype = part("cublas"), part("cusolver"), part("to_cuda_dtype")
    dtype = np.dtype(name)
    real = np.dtype(SCALARS[name].real)
    kinds = int(to_cuda_dtype(dtype)), int(to_cuda_dtype(real))
    mode = cusolver.CUSOLVER_EIG_MODE_NOVECTOR if eigvals_only else cusolver.CUSOLVER_EIG_MODE_VECTOR
    problem = (parameters(), mode, cublas.CUBLAS_FILL_MODE_LOWER, n)
    unread = address(cupy.empty(1, dtype))
    handle = part("get_cusolver_handle")()
    sizes = cusolver.xsyevd_bufferSize(handle, *problem, kinds[0], unread, n, kinds[1], unread, kinds[0])
    return _Plan(problem, kinds, real, *sizes)


# What is taken for roundoff, in n times its unit, an order above that of a good solver: ||V V^H - I||_F of vectors in
# single precision, and by how much of the largest entry eigenvalues are out of order.
_MOST_DRIFT, _EPS = 10, float(np.finfo(np.float32).eps)


@functools.cache
def _signs(n: int, name: str, device: int) -> Any:
    import cupy

    return cupy.asarray(np.random.default_rng(n).choice([-1, 1], n).astype(name))


def _drift(blas: Blas, v: int, n: int) -> Any:
    """Return about ||V V^H - I||_F^2 of an n x n matrix at an address, an array of one number: by a vector of signs."""
    import cupy

    x = _signs(n, blas.dtype.name, cupy.cuda.runtime.getDevice())
    y, z, out = cupy.empty(n, blas.dtype), x.copy(), cupy.empty(1, blas.dtype)
    blas.gemm(n, 1, n, 1.0, v, n, address(x), n, 0.0, address(y), n, ops="CN")
    blas.gemm(n, 1, n, 1.0, v, n, address(y), n, -1.0, address(z), n)
    blas.gemm(1, 1, n, 1.0, address(z), n, address(z), n, 0.0, address(out), 1, ops="CN")
    return out


def order_of(w: np.ndarray, allowed: float) -> np.ndarray | None:
    """Return what sorts finite eigenvalues, none of which is out of order by more than `allowed`; None for others.

    A solver that finds each of them on its own leaves copies of a multiple one as roundoff does.
    """
    if not np.isfinite(w).all() or (np.maximum.accumulate(w) - w).max() > allowed:
        return None
    return np.argsort(w, kind="stable")


def eigh(array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool, wide: bool = False) -> tuple[Any, Any]:
    """Solve one matrix, without a word to the host before the end.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, eigvals_only, check_finite : bool
    wide : bool
        Whether the matrix is solved in double precision from the start; vectors of single precision that are not
        orthogonal are found again in it.

    Returns
    -------
    w : cupy.ndarray, shape (n,)
        In the precision of `array`.
    v : cupy.ndarray, shape (n, n), column-major, or None
        In the precision in which it was solved.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`; LinAlgError for no convergence, too, and
        for eigenvalues that are out of order by more than roundoff, or no numbers.
    OverflowError
        If an eigenvalue is beyond the range of its dtype.
    """
    import cupy

    cusolver = part("cusolver")
    n, given = array.shape[0], scalar_of(array.dtype)
    scalar = SCALARS[given.wide] if wide else given
    v = cupy.empty((n, n), scalar.name, order="F")
    status = cupy.zeros(2, np.int32)  # what cuSOLVER reports, and the word of the matrix
    word, space = address(status) + 4, address(v)
    # Zeros in the place of NaN, so that cuSOLVER comes to an end; the host hears of them with cuSOLVER's own report.
    load_triangle(array, lower, space, n, word, wide=wide)
    # cuSOLVER squares entries as they are: those of graded matrices underflow in float32, and it diverges or, worse,
    # goes on.  In double precision what is near 1 has range enough.
    aim = (exponent_for_squares(n), 0) if scalar.real == "float32" else (0, 16)
    scale_triangle(scalar.name, space, n, n, word, *aim)
    plan = _plan(n, scalar.name, eigvals_only, cupy.cuda.runtime.getDevice())
    w, work = cupy.empty(n, plan.real), cupy.empty(plan.device_bytes, np.uint8)
    host_work = np.empty(max(plan.host_bytes, 1), np.uint8)  # alive until the report has come, which ends the call
    kind, real_kind = plan.kinds
    cusolver.xsyevd(
        *(part("get_cusolver_handle")(), *plan.problem, kind, space, n, real_kind, address(w), kind),
        *(address(work), plan.device_bytes, address(host_work), plan.host_bytes, address(status)),
    )
    drift = None if eigvals_only or scalar.real != "float32" else _drift(Blas(scalar.name), space, n)
    info, found = status.get().tolist()
    if not is_finite(found):
        require_finite(np.nan, lower, check_finite)
    shift = shift_of(found, *aim)
    failed = bool(info) or not (drift is None or abs(complex(drift.get()[0])) <= (_MOST_DRIFT * n * _EPS) ** 2)
    values = cupy.asnumpy(w)
    if not (failed or (np.isfinite(values).all() and (values[:-1] <= values[1:]).all())):
        unit = float(np.finfo(plan.real).eps) * 2.0 ** (exponent_of(found) + shift)
        order = order_of(values, _MOST_DRIFT * n * unit)
        failed = order is None
        if order is not None:
            order = cupy.asarray(order)
            w, v = w[order], v if eigvals_only else v.T[order].T
    if failed and scalar.real == "float32":
        # Single precision fails for some graded matrices: no convergence or, without a word, vectors that are not
        # orthogonal.  Eigenvalues that are none are as good a reason.
        return eigh(array, lower=lower, eigvals_only=eigvals_only, check_finite=check_finite, wide=True)
    if failed:
        raise not_converged(info) if info else not_ascending()
    if shift or given is not scalar:
        w = scaled_values(w.astype(np.float64, copy=False), -shift, given)
    return require_in_range(w, exponent_of(found) + n.bit_length() + 1), None if eigvals_only else v
