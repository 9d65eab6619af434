"""MAGMA's two-stage eigensolver, the paper's second rival: a hybrid of host and device, called by ctypes.

The library is looked for in the folder that ``MAGMA_DIR`` names (an installation or its ``lib``), then in conda's
environment, where the package ``libmagma`` puts it.  Both widths of its integers work; matrices with vectors from
n = 26,755 on need the wide ones.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spectile.core.pointers import address

#: Environment variable with MAGMA's folder.
FOLDER = "MAGMA_DIR"

#: MAGMA's constants: no vectors, vectors, the whole spectrum, the lower triangle.
_NO_VECTORS, _VECTORS, _ALL, _LOWER = 301, 302, 311, 122
#: cuBLAS and cuSPARSE that a MAGMA of CUDA 13 is linked with; those that CuPy uses are made visible to it.
_NEEDED = ("libcublasLt.so.13", "libcublas.so.13", "libnvJitLink.so.13", "libcusparse.so.12")


class Library(NamedTuple):
    """A loaded MAGMA: its functions, and the type of its integers."""

    functions: ctypes.CDLL
    integer: type[ctypes.c_int] | type[ctypes.c_int64]

    @property
    def dtype(self) -> Any:
        """NumPy's type of MAGMA's integers."""
        return np.dtype(self.integer)


def reason(n: int = 0, *, vectors: bool = False) -> str | None:
    """Return why MAGMA cannot solve a problem of order n here, in one sentence, or None where it can."""
    path = find()
    if path is None:
        named = os.environ.get(FOLDER)
        where = f"{FOLDER} names {named}, which holds no libmagma.so" if named else "MAGMA is not installed"
        return f"{where}: name its folder by {FOLDER}, or install conda's package libmagma"
    try:
        found = load(path)
    except (OSError, RuntimeError) as error:
        return f"MAGMA cannot be used ({error})"
    if vectors and found.integer is ctypes.c_int and 3 * n * n > 2**31:
        return "this MAGMA counts its work space in 32 bits, which ends at n = 26,754 with vectors"
    return None


def find() -> Path | None:
    """Return the path of MAGMA's library, None where there is none."""
    named = os.environ.get(FOLDER)
    folders = [Path(named)] if named else [Path(each) for each in (os.environ.get("CONDA_PREFIX"), sys.prefix) if each]
    for folder in folders:
        for place in (folder / "lib", folder):
            if (place / "libmagma.so").is_file():
                return place / "libmagma.so"
    return None


@functools.cache
def load(path: Path, *, start: bool = True) -> Library:
    """Load MAGMA and find the width of its integers.

    Parameters
    ----------
    path : Path
        Its shared library.
    start : bool
        Whether it is initialised, which needs a CUDA device.

    Raises
    ------
    OSError
        If the library, or one that it is linked with, cannot be loaded.
    RuntimeError
        If it cannot be initialised.
    """
    for name in _NEEDED:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue  # found by the library itself, or of another CUDA: the load below tells
    functions = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    # Three integers of a version, of which none is negative: narrow ones leave the other halves as they were.
    version = np.full(3, -1, np.int64)
    functions.magma_version(*(ctypes.c_void_p(address(version[part:])) for part in range(3)))
    library = Library(functions, ctypes.c_int64 if (version >= 0).all() else ctypes.c_int)
    for name in ("magma_init", "magma_get_parallel_numthreads", "magma_get_dbulge_vblksiz", "magma_get_dbulge_nb"):
        getattr(functions, name).restype = library.integer
    if start and functions.magma_init() != 0:
        raise RuntimeError("magma_init failed: it needs a CUDA device and a driver that knows the library's CUDA")
    return library


def installed() -> Library:
    """Return the MAGMA of this machine.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    path = find()
    if path is None:
        raise FileNotFoundError(reason())
    return load(path)


def _threads(library: Library) -> int:
    return int(library.functions.magma_get_parallel_numthreads())


def bandwidth(library: Library, n: int) -> int:
    """Return the bandwidth that MAGMA chooses for a matrix of order n."""
    return int(library.functions.magma_get_dbulge_nb(library.integer(n), library.integer(_threads(library))))


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))


def _pinned(count: int) -> Any:
    """Return a vector in pinned host memory, as MAGMA's own tester has it."""
    import cupyx

    return cupyx.empty_pinned(count, np.float64)


def _make_room(needed: int) -> None:
    """Give back what CuPy's pool keeps, where MAGMA's own allocations would not fit beside it."""
    import cupy

    if cupy.cuda.Device().mem_info[0] < needed:
        cupy.get_default_memory_pool().free_all_blocks()


class Matrix:
    """A symmetric matrix in pinned host memory, column-major, that MAGMA's routines overwrite."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.array = _pinned(n * n).reshape(n, n).T
        self.device_bytes = 8 * n * (n + 1024)

    def restore(self, a: Any) -> None:
        """Copy the column-major device matrix `a` into it, and make room for MAGMA's own copy on the device."""
        import cupy

        a.T.get(out=self.array.T, blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        _make_room(self.device_bytes)


class Syevdx(Matrix):
    """``magma_dsyevdx_2stage``: eigenvalues, and with `vectors` eigenvectors, of the lower triangle.

    Parameters
    ----------
    n : int
        Order, float64.
    vectors : bool
    """

    def __init__(self, n: int, *, vectors: bool) -> None:
        super().__init__(n)
        self.library = library = installed()
        self.vectors = vectors
        integer = library.integer
        sizes = integer(), integer()
        library.functions.magma_dsyevdx_getworksize(
            *(integer(n), integer(_threads(library)), integer(int(vectors)), *map(ctypes.byref, sizes))
        )
        self.work = _pinned(sizes[0].value)
        self._iwork = np.zeros(max(sizes[1].value, 5 * n), library.dtype)
        self.w = np.zeros(n)
        if vectors:
            self.device_bytes *= 4  # work of divide and conquer, one set of vectors, and the reflectors

    def __call__(self) -> Any:
        """Solve; return the eigenvalues, with `vectors` also the eigenvectors in the columns of the matrix.

        Raises
        ------
        numpy.linalg.LinAlgError
            If MAGMA reports that it did not converge, or found no memory.
        """
        integer = self.library.integer
        found, info = integer(), integer()
        order, zero = integer(self.n), ctypes.c_double(0)
        self.library.functions.magma_dsyevdx_2stage(
            *(ctypes.c_int(_VECTORS if self.vectors else _NO_VECTORS), ctypes.c_int(_ALL), ctypes.c_int(_LOWER)),
            *(order, _pointer(self.array), order, zero, zero, integer(1), order, ctypes.byref(found)),
            *(_pointer(self.w), _pointer(self.work), integer(len(self.work))),
            *(_pointer(self._iwork), integer(len(self._iwork)), ctypes.byref(info)),
        )
        if info.value != 0 or found.value != self.n:
            raise np.linalg.LinAlgError(f"MAGMA's dsyevdx_2stage ended with info = {info.value}")
        return (self.w, self.array) if self.vectors else self.w


class Sytrd(Matrix):
    """``magma_dsytrd_sy2sb`` and ``magma_dsytrd_sb2st``, MAGMA's tridiagonalization, of the lower triangle.

    Parameters
    ----------
    n : int
        Order, float64.
    b : int, optional
        Bandwidth, which is also the block; by default as MAGMA chooses it.
    """

    def __init__(self, n: int, b: int | None = None) -> None:
        import cupy

        super().__init__(n)
        self.library = library = installed()
        self.b = b or bandwidth(library, n)
        self.work = _pinned(n * self.b + 2 * self.b * self.b)
        self._factors = cupy.empty(n * self.b)
        self._tau = np.zeros(n)

    def reduce(self) -> Any:
        """Reduce to a band; return it as ``band[j, i - j]`` with room for the bulges, shape (n, 2 b).

        Raises
        ------
        numpy.linalg.LinAlgError
            If MAGMA reports an error.
        """
        integer, n, b = self.library.integer, self.n, self.b
        info = integer()
        self.library.functions.magma_dsytrd_sy2sb(
            *(ctypes.c_int(_LOWER), integer(n), integer(b), _pointer(self.array), integer(n), _pointer(self._tau)),
            *(_pointer(self.work), integer(len(self.work)), ctypes.c_void_p(address(self._factors))),
            ctypes.byref(info),
        )
        if info.value != 0:
            raise np.linalg.LinAlgError(f"MAGMA's dsytrd_sy2sb ended with info = {info.value}")
        return band_of(self.array, b)

    def __call__(self) -> tuple[Any, Any]:
        """Reduce to tridiagonal form; return its diagonal and subdiagonal."""
        return chase(self.library, self.reduce(), self.b)


def band_of(a: Any, b: int) -> Any:
    """Return the lower band of a column-major matrix as ``band[j, i - j]``, shape (n, 2 b), zeros behind it."""
    n = len(a)
    band = np.zeros((n, 2 * b))
    whole = max(n - b, 0)  # columns whose band does not leave the matrix
    step = a.strides[1] + a.itemsize
    band[:whole, : b + 1] = np.lib.stride_tricks.as_strided(a, (whole, b + 1), (step, a.itemsize), writeable=False)
    for j in range(whole, n):
        band[j, : n - j] = a[j:, j]
    return band


def chase(library: Library, band: Any, b: int) -> tuple[Any, Any]:
    """Chase the bulges of a band by ``magma_dsytrd_sb2st`` on the host's cores.

    Parameters
    ----------
    library : Library
    band : array of float64, shape (n, 2 b), C order
        ``band[j, i - j]``; overwritten.
    b : int

    Returns
    -------
    d, e : array, shape (n,) and (n - 1,)
    """
    functions, integer, n = library.functions, library.integer, band.shape[0]
    block = int(functions.magma_get_dbulge_vblksiz(integer(n), integer(b), integer(_threads(library))))
    d, e = np.zeros(n), np.zeros(n)
    reflectors, factors, none = np.zeros(2 * n), np.zeros(2 * n), np.zeros(1)
    functions.magma_dsytrd_sb2st(
        *(ctypes.c_int(_LOWER), integer(n), integer(b), integer(block), _pointer(band), integer(2 * b)),
        *(_pointer(d), _pointer(e), _pointer(reflectors), integer(b + block), _pointer(factors)),
        *(integer(0), _pointer(none), integer(block)),
    )
    return d, e[: n - 1]
