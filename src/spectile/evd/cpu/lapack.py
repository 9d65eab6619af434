"""BLAS and LAPACK routines on sub-matrices in place, through the function pointers that SciPy exports.

SciPy's own wrappers copy a slice that is not contiguous; these take the leading dimension from the strides.  Every
array is column-major (``strides[0] == itemsize``).  ctypes releases the GIL during the call.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.evd.types import scalar_of


@functools.cache
def _routine(name: str) -> Any:
    from scipy.linalg import cython_blas, cython_lapack

    capsules = {**cython_lapack.__pyx_capi__, **cython_blas.__pyx_capi__}
    capsule = capsules[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(None)(get_pointer(capsule, get_name(capsule)))


def _call(name: str, *arguments: Any) -> None:
    _routine(name)(*[_passed(argument) for argument in arguments])


def _passed(argument: Any) -> Any:
    """Return what hands an array, a character or a number over by its address, and keeps it as long."""
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(address(argument))
    return argument.encode() if isinstance(argument, str) else ctypes.byref(ctypes.c_int(argument))


def _letter(x: np.ndarray) -> str:
    return scalar_of(x.dtype).letter


def _ld(x: np.ndarray) -> int:
    """Leading dimension of a column-major view, at least its number of rows."""
    return max(x.strides[1] // x.itemsize if x.shape[1] > 1 else x.shape[0], x.shape[0], 1)


def _op(dtype: np.dtype) -> str:
    return "C" if dtype.kind == "c" else "T"


def gemm(
    alpha: float, a: np.ndarray, b: np.ndarray, beta: float, c: np.ndarray, *, ha: bool = False, hb: bool = False
) -> None:
    """C = alpha op(A) op(B) + beta C, with op the conjugate transpose where `ha` or `hb` is set."""
    m, n = c.shape
    k = a.shape[0] if ha else a.shape[1]
    if m == 0 or n == 0:
        return
    op = _op(c.dtype)
    scale = np.array(alpha, c.dtype)
    shift = np.array(beta, c.dtype)
    name = _letter(c) + "gemm"
    _call(name, op if ha else "N", op if hb else "N", m, n, k, scale, a, _ld(a), b, _ld(b), shift, c, _ld(c))


def hemm(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """C = A B with A Hermitian; only the lower triangle of A is read."""
    name = _letter(c) + ("hemm" if c.dtype.kind == "c" else "symm")
    one, zero = np.array(1, c.dtype), np.array(0, c.dtype)
    _call(name, "L", "L", c.shape[0], c.shape[1], one, a, _ld(a), b, _ld(b), zero, c, _ld(c))


def her2k(alpha: float, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """C = C + alpha (A Bᴴ + B Aᴴ), in the lower triangle."""
    name = _letter(c) + ("her2k" if c.dtype.kind == "c" else "syr2k")
    one = np.array(1, c.real.dtype)
    _call(name, "L", "N", *a.shape, np.array(alpha, c.dtype), a, _ld(a), b, _ld(b), one, c, _ld(c))


def geqrt(a: np.ndarray, t: np.ndarray) -> None:
    """QR of a panel in place: R in the upper triangle, Y below it, T (k x k) of Q = I − Y T Yᴴ."""
    k = min(a.shape)
    work = np.empty(max(1, k * a.shape[1]), a.dtype)
    info = np.zeros(1, np.intc)
    _call(_letter(a) + "geqrt", *a.shape, k, a, _ld(a), t, _ld(t), work, info)
    if info[0] != 0:
        raise ValueError(f"geqrt: argument {-info[0]} is not valid")


def unmqr(a: np.ndarray, tau: np.ndarray, c: np.ndarray) -> None:
    """C = Q C, with Q the product of the reflectors stored below the diagonal of `a`."""
    _apply("mqr", ("L", "N", *c.shape, len(tau)), a, tau, c)


def unmtr(a: np.ndarray, tau: np.ndarray, c: np.ndarray, *, lower: bool) -> None:
    """C = Q C, with Q the product of the reflectors that sytrd has left in a triangle of `a`."""
    _apply("mtr", ("L", "L" if lower else "U", "N", *c.shape), a, tau, c)


def _apply(name: str, head: tuple[Any, ...], a: np.ndarray, tau: np.ndarray, c: np.ndarray) -> None:
    """Call a routine that multiplies C by reflectors, with work space for its blocks of at most 64.

    To make blocks of the reflectors takes longer than to apply one after the other to few columns: none have space.
    """
    name = _letter(a) + ("un" if a.dtype.kind == "c" else "or") + name
    width = 64 if c.shape[1] > 32 else 1
    info, work = np.zeros(1, np.intc), np.empty(width * max(1, c.shape[1]) + 65 * width, a.dtype)
    _call(name, *head, a, _ld(a), tau, c, _ld(c), work, len(work), info)
    if info[0] != 0:
        raise ValueError(f"{name}: argument {-info[0]} is not valid")


def sbtrd(band: np.ndarray, bandwidth: int) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a lower band, ``band[j, i - j]`` of shape (n, b + 1), to d and e; the band is overwritten.

    This is LAPACK's own reduction of a band (?sbtrd, ?hbtrd), by rotations, on one thread.
    """
    n = band.shape[0]
    real = np.empty(0, band.dtype).real.dtype
    d, e = np.empty(n, real), np.empty(max(n - 1, 1), real)
    unused, work, info = np.empty(1, band.dtype), np.empty(n, band.dtype), np.zeros(1, np.intc)
    name = _letter(band) + ("hbtrd" if band.dtype.kind == "c" else "sbtrd")
    _call(name, "N", "L", n, bandwidth, band, band.shape[1], d, e, unused, 1, work, info)
    return d, e[: n - 1]
