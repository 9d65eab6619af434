"""The vendor's solvers beside ours: cuSOLVER's Xsyevd, Xsyevdx, sygvd, Xstedc and sytrd, and cuBLAS's syr2k.

cuSOLVER's two-stage solver came with CUDA 13.4.  If the installed CUDA is older, the library of the PyPI package
``nvidia-cusolver`` can be loaded beside it from the path in the environment variable ``SPECTILE_CUSOLVER``.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from spectile.core.pointers import address

Algorithm = Literal["auto", "one_stage", "two_stage"]

#: Environment variable with the absolute path of a newer libcusolver.so.12.
CUSOLVER_PATH = "SPECTILE_CUSOLVER"

_CUDA_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}
_SYEVD = 4  # CUSOLVERDN_SYEVD of cusolverDnFunction_t
_RANGE_OF_INDICES = 1002  # CUSOLVER_EIG_RANGE_I
_STEDC_OF_TRIDIAGONAL = 11  # compz: the eigenvectors of the tridiagonal matrix itself
_ALGORITHMS = {"auto": 0, "one_stage": 1, "two_stage": 2}


def two_stage_reason() -> str | None:
    """Return why the two-stage solver cannot be called, in one sentence, or None where it can."""
    path = os.environ.get(CUSOLVER_PATH)
    if path is None:
        version = library_version(None)
        if version >= 12400:
            return None
        return f"cuSOLVER {version} has no two-stage syevd: set {CUSOLVER_PATH} to libcusolver.so.12 of CUDA 13.4"
    if not Path(path).is_file():
        return f"{CUSOLVER_PATH} names {Path(path).name}, which is not a file"
    try:
        load_library(path)
    except OSError as error:
        return f"the library that {CUSOLVER_PATH} names cannot be loaded ({error})"
    return None


@functools.cache
def load_library(path: str | None) -> ctypes.CDLL:
    """Load cuSOLVER: the one that CuPy uses, or that at `path`, with the libraries it needs made visible first."""
    import cupy

    cupy.linalg.eigvalsh(cupy.eye(2))  # CuPy has loaded its cuBLAS, cuSPARSE and cuSOLVER now
    for name in ("libcublasLt.so.13", "libcublas.so.13", "libcusparse.so.12", "libnvJitLink.so.13"):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue  # another major version of CUDA; the load below tells whether that matters
    return ctypes.CDLL(path or "libcusolver.so.12")


def library_version(path: str | None) -> int:
    """Return cuSOLVER's version: 1000 major + 100 minor + patch."""
    value = ctypes.c_int()
    version = [0, 0, 0]
    library = load_library(path)
    for part in range(3):
        library.cusolverGetProperty(part, ctypes.byref(value))
        version[part] = value.value
    return 1000 * version[0] + 100 * version[1] + version[2]


class _Solver:
    """A dense solver of cuSOLVER: its handle, its work space, and how it is called.

    Attributes
    ----------
    device_bytes, host_bytes : int
        Work space that cuSOLVER asked for.
    """

    def __init__(self, path: str | None) -> None:
        import cupy

        self._library = load_library(path)
        self._handle = ctypes.c_void_p()
        _check(self._library.cusolverDnCreate(ctypes.byref(self._handle)))
        self._info = cupy.zeros(1, np.int32)

    def _parameters(self) -> ctypes.c_void_p:
        parameters = ctypes.c_void_p()
        _check(self._library.cusolverDnCreateParams(ctypes.byref(parameters)))
        return parameters

    def _allocate(self, name: str, head: tuple[Any, ...]) -> None:
        """Ask for the work space of ``cusolverDn<name>``, whose arguments begin with `head` after the handle."""
        import cupy

        self._name, self._head = name, (self._handle, *head)
        device_bytes, host_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        sizes = (ctypes.byref(device_bytes), ctypes.byref(host_bytes))
        _check(getattr(self._library, f"cusolverDn{name}_bufferSize")(*self._head, *sizes))
        self.device_bytes, self.host_bytes = device_bytes.value, host_bytes.value
        self._work = cupy.empty(self.device_bytes, np.uint8)
        self._host_work = np.empty(max(self.host_bytes, 1), np.uint8)

    def _solve(self) -> None:
        """Call it on the current stream, and wait for its end."""
        import cupy

        self._library.cusolverDnSetStream(self._handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))
        _check(
            getattr(self._library, f"cusolverDn{self._name}")(
                *self._head,
                *(ctypes.c_void_p(address(self._work)), ctypes.c_size_t(self.device_bytes)),
                *(ctypes.c_void_p(address(self._host_work)), ctypes.c_size_t(self.host_bytes)),
                ctypes.c_void_p(address(self._info)),
            )
        )
        info = int(self._info[0])
        if info != 0:
            raise np.linalg.LinAlgError(f"cuSOLVER's {self._name} ended with info = {info}")


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuSOLVER returned status {status}")


class Syevd(_Solver):
    """`cusolverDnXsyevd` on a column-major device matrix, which it overwrites; the lower triangle is read.

    Parameters
    ----------
    a : cupy.ndarray, shape (n, n), column-major
        Overwritten by each call: with the eigenvectors if `vectors`.
    vectors : bool
    algorithm : {"auto", "one_stage", "two_stage"}
        Ignored by libraries that have one stage only.
    path : str, optional
        Library to load instead of CuPy's.
    """

    def __init__(self, a: Any, *, vectors: bool, algorithm: Algorithm = "auto", path: str | None = None) -> None:
        import cupy

        super().__init__(path)
        parameters = self._parameters()
        if library_version(path) >= 12400:
            _check(self._library.cusolverDnSetAdvOptions(parameters, _SYEVD, _ALGORITHMS[algorithm]))
        self.a = a
        self.w = cupy.empty(a.shape[0], np.empty(0, a.dtype).real.dtype)
        n, kind, real = a.shape[0], _CUDA_TYPES[a.dtype.name], _CUDA_TYPES[self.w.dtype.name]
        head = (
            *(parameters, ctypes.c_int(int(vectors)), ctypes.c_int(0), ctypes.c_int64(n)),
            *(ctypes.c_int(kind), ctypes.c_void_p(address(a)), ctypes.c_int64(a.strides[1] // a.itemsize)),
            *(ctypes.c_int(real), ctypes.c_void_p(address(self.w)), ctypes.c_int(kind)),
        )
        self._allocate("Xsyevd", head)

    def __call__(self) -> tuple[Any, Any]:
        """Solve; returns eigenvalues and the overwritten matrix, synchronised.

        Raises
        ------
        numpy.linalg.LinAlgError
            If cuSOLVER reports no convergence.
        """
        self._solve()
        return self.w, self.a


class Syevdx(_Solver):
    """`cusolverDnXsyevdx`: the k lowest eigenpairs of a column-major device matrix, which it overwrites.

    Parameters
    ----------
    a : cupy.ndarray, shape (n, n), column-major
    k : int
    """

    def __init__(self, a: Any, k: int) -> None:
        import cupy

        super().__init__(None)
        self.a, self.k = a, k
        self.w = cupy.empty(a.shape[0], np.empty(0, a.dtype).real.dtype)
        self._found = np.zeros(1, np.int64)
        n, kind, real = a.shape[0], _CUDA_TYPES[a.dtype.name], _CUDA_TYPES[self.w.dtype.name]
        head = (
            *(self._parameters(), ctypes.c_int(1), ctypes.c_int(_RANGE_OF_INDICES), ctypes.c_int(0)),
            *(ctypes.c_int64(n), ctypes.c_int(kind), ctypes.c_void_p(address(a))),
            *(ctypes.c_int64(a.strides[1] // a.itemsize), None, None, ctypes.c_int64(1), ctypes.c_int64(k)),
            *(ctypes.c_void_p(address(self._found)), ctypes.c_int(real), ctypes.c_void_p(address(self.w))),
            ctypes.c_int(kind),
        )
        self._allocate("Xsyevdx", head)

    def restore(self, a: Any) -> None:
        """Copy the matrix to where it is solved."""
        self.a[...] = a

    def __call__(self) -> tuple[Any, Any]:
        """Solve; returns k eigenvalues, ascending, and their eigenvectors in columns, synchronised.

        Raises
        ------
        numpy.linalg.LinAlgError
            If cuSOLVER reports no convergence, or another number of eigenpairs.
        """
        self._solve()
        if self._found[0] != self.k:
            raise np.linalg.LinAlgError(f"cuSOLVER's Xsyevdx found {self._found[0]} eigenpairs, not {self.k}")
        return self.w[: self.k], self.a[:, : self.k]


class Sygvd:
    """`cusolverDnDsygvd`: all eigenpairs of A v = w B v in float64; both column-major matrices are overwritten.

    Parameters
    ----------
    a, b : cupy.ndarray of float64, shape (n, n), column-major
    """

    def __init__(self, a: Any, b: Any) -> None:
        import cupy

        self._library = load_library(None)
        self._handle = ctypes.c_void_p()
        _check(self._library.cusolverDnCreate(ctypes.byref(self._handle)))
        self.a, self.b, self.w = a, b, cupy.empty(a.shape[0], a.dtype)
        self._info = cupy.zeros(1, np.int32)
        lwork = ctypes.c_int()
        matrices = [(ctypes.c_void_p(address(x)), ctypes.c_int(x.strides[1] // x.itemsize)) for x in (a, b)]
        self._head = (
            *(self._handle, ctypes.c_int(1), ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(a.shape[0])),
            *(*matrices[0], *matrices[1], ctypes.c_void_p(address(self.w))),
        )
        _check(self._library.cusolverDnDsygvd_bufferSize(*self._head, ctypes.byref(lwork)))
        self._lwork = lwork.value
        self._work = cupy.empty(self._lwork, a.dtype)

    def restore(self, a: Any, b: Any) -> None:
        """Copy the matrices to where they are solved."""
        self.a[...], self.b[...] = a, b

    def __call__(self) -> tuple[Any, Any]:
        """Solve; returns eigenvalues, ascending, and eigenvectors in columns, synchronised.

        Raises
        ------
        numpy.linalg.LinAlgError
            If cuSOLVER reports no convergence, or that B is not positive definite.
        """
        import cupy

        self._library.cusolverDnSetStream(self._handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))
        _check(
            self._library.cusolverDnDsygvd(
                *self._head,
                *(ctypes.c_void_p(address(self._work)), ctypes.c_int(self._lwork)),
                ctypes.c_void_p(address(self._info)),
            )
        )
        info = int(self._info[0])
        if info != 0:
            raise np.linalg.LinAlgError(f"cuSOLVER's sygvd ended with info = {info}")
        return self.w, self.a


class Sytrd:
    """`cusolverDn<t>sytrd`, the one-stage tridiagonalization, of the lower triangle of a column-major matrix.

    Parameters
    ----------
    a : cupy.ndarray, shape (n, n), column-major, float64
        Overwritten by each call.
    """

    def __init__(self, a: Any) -> None:
        import cupy

        self._library = load_library(None)
        self._handle = ctypes.c_void_p()
        _check(self._library.cusolverDnCreate(ctypes.byref(self._handle)))
        n = a.shape[0]
        self.a, self.d, self.e = a, cupy.empty(n, a.dtype), cupy.empty(n, a.dtype)
        self._tau, self._info = cupy.empty(n, a.dtype), cupy.zeros(1, np.int32)
        lwork = ctypes.c_int()
        pointers = tuple(ctypes.c_void_p(address(x)) for x in (self.d, self.e, self._tau))
        self._head = (
            *(self._handle, ctypes.c_int(0), ctypes.c_int(n)),
            *(ctypes.c_void_p(address(a)), ctypes.c_int(a.strides[1] // a.itemsize), *pointers),
        )
        _check(self._library.cusolverDnDsytrd_bufferSize(*self._head, ctypes.byref(lwork)))
        self._lwork = lwork.value
        self._work = cupy.empty(self._lwork, a.dtype)

    def __call__(self) -> tuple[Any, Any]:
        """Reduce; returns d and e, synchronised."""
        import cupy

        self._library.cusolverDnSetStream(self._handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))
        _check(
            self._library.cusolverDnDsytrd(
                *self._head,
                *(ctypes.c_void_p(address(self._work)), ctypes.c_int(self._lwork)),
                ctypes.c_void_p(address(self._info)),
            )
        )
        cupy.cuda.get_current_stream().synchronize()
        return self.d, self.e[: len(self.d) - 1]


def stedc_path() -> str | None:
    """Return the library that has `cusolverDnXstedc`: "" is CuPy's own, else a path; None where there is none."""
    path = os.environ.get(CUSOLVER_PATH)
    for candidate in (None, path) if path and Path(path).is_file() else (None,):
        if hasattr(load_library(candidate), "cusolverDnXstedc"):
            return candidate or ""
    return None


class Stedc(_Solver):
    """`cusolverDnXstedc`, eigenvalues and eigenvectors of a real tridiagonal matrix by divide and conquer, float64.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,) and at least (n - 1,)
        Diagonal and subdiagonal; copied at each call.
    path : str
        As `stedc_path` returns it.
    """

    def __init__(self, d: Any, e: Any, path: str) -> None:
        import cupy

        super().__init__(path or None)
        n = len(d)
        self._given = (d, e)
        self.d, self.e = d.copy(), e.copy()
        self.z = cupy.empty((n, n), np.float64, order="F")
        kind = ctypes.c_int(_CUDA_TYPES["float64"])
        head = (
            *(self._parameters(), ctypes.c_int(_STEDC_OF_TRIDIAGONAL), ctypes.c_int64(n)),
            *(kind, ctypes.c_void_p(address(self.d)), ctypes.c_void_p(address(self.e))),
            *(kind, ctypes.c_void_p(address(self.z)), ctypes.c_int64(n), kind),
        )
        self._allocate("Xstedc", head)

    def __call__(self) -> tuple[Any, Any]:
        """Solve; returns the eigenvalues, ascending, and the eigenvectors in columns, synchronised.

        Raises
        ------
        numpy.linalg.LinAlgError
            If cuSOLVER reports no convergence.
        """
        self.d[...], self.e[...] = self._given
        self._solve()
        return self.d, self.z


def syr2k(a: Any, b: Any, c: Any, *, alpha: float) -> None:
    """C = C + alpha (A Bᵀ + B Aᵀ) in the lower triangle by `cublasDsyr2k`, float64, column-major."""
    import cupy
    from cupy.cuda.device import get_cublas_handle

    load_library(None)
    library = ctypes.CDLL("libcublas.so.13")
    handle = ctypes.c_void_p(get_cublas_handle())
    library.cublasSetStream_v2(handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))
    factor, one = ctypes.c_double(alpha), ctypes.c_double(1)
    n, k = a.shape
    matrices = [(ctypes.c_void_p(address(x)), ctypes.c_int64(x.strides[1] // x.itemsize)) for x in (a, b, c)]
    status = library.cublasDsyr2k_v2_64(
        *(handle, ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int64(n), ctypes.c_int64(k), ctypes.byref(factor)),
        *(*matrices[0], *matrices[1], ctypes.byref(one), *matrices[2]),
    )
    if status != 0:
        raise RuntimeError(f"cuBLAS returned status {status}")
