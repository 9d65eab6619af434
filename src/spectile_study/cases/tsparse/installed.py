"""Other people's sparse products: shared libraries that the user has installed and names, none of which is needed.

A library offers the C interface of ``square.h`` and is named by an environment variable, ``SPECTILE_CUSP``,
``SPECTILE_BHSPARSE``, ``SPECTILE_RMERGE2``, ``SPECTILE_NSPARSE``, ``SPECTILE_AC_SPGEMM``, ``SPECTILE_SPECK`` or
``SPECTILE_OPSPARSE``; it tells its version, which is recorded.  ``docs/rivals.md`` describes the interface.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.core import pointers
from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.tsparse.checks import Check

__all__ = ["INTERFACE", "NAMES", "Library", "Product", "methods", "variable"]

#: Methods of the paper's rivals, and how they are called.
NAMES = {
    "cusp": "CUSP",
    "bhsparse": "bhSPARSE",
    "rmerge2": "RMerge2",
    "nsparse": "Nsparse",
    "ac_spgemm": "AC-SpGEMM",
    "speck": "spECK",
    "opsparse": "OpSparse",
}
#: The number of the interface in ``square.h``.
INTERFACE = 1
#: Entries of C from which a library, which allocates beside CuPy's pool, is given what the pool keeps.
LARGE = 100_000_000


class _Csr(ctypes.Structure):
    """``spectile_square_csr``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "entries")),
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "values")),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "_interface": (ctypes.c_int32, ()),
    "_version": (ctypes.c_char_p, ()),
    "_value_bytes": (ctypes.c_int32, ()),
    "_on_device": (ctypes.c_int32, ()),
    "": (ctypes.c_int32, (ctypes.POINTER(_Csr), ctypes.POINTER(_Csr))),
    "_message": (ctypes.c_char_p, (ctypes.c_int32,)),
    "_release": (None, (ctypes.POINTER(_Csr),)),
    "_most_bytes": (ctypes.c_int64, ()),
}


class Product:
    """A square in the library's own memory, which is released with this object."""

    def __init__(self, library: Library, csr: _Csr) -> None:
        self._library, self._csr = library, csr

    def __del__(self) -> None:
        self._library.release(self._csr)

    def matrix(self) -> Any:
        """Return a copy with sorted columns: a CSR matrix of CuPy, or of SciPy if the library works on the host."""
        rows, entries = self._csr.rows, self._csr.entries
        arrays = (
            self._copied(self._csr.values, entries, self._library.dtype),
            self._copied(self._csr.indices, entries, np.dtype(np.int32)),
            self._copied(self._csr.indptr, rows + 1, np.dtype(np.int32)),
        )
        if self._library.on_device:
            from cupyx.scipy.sparse import csr_matrix as sparse
        else:
            from scipy.sparse import csr_array as sparse
        C = sparse(arrays, shape=(rows, rows))
        C.sort_indices()
        return C

    def _copied(self, address: int, length: int, dtype: np.dtype[Any]) -> Any:
        size = length * dtype.itemsize
        if not self._library.on_device:
            return np.frombuffer(ctypes.string_at(address, size) if size else b"", dtype).copy()
        import cupy

        memory = cupy.cuda.UnownedMemory(address or 0, size, self)
        return cupy.ndarray(length, dtype, cupy.cuda.MemoryPointer(memory, 0)).copy()


class Library:
    """An installed library with the interface of ``square.h``.

    Parameters
    ----------
    path : str
        The shared library.

    Attributes
    ----------
    version : str
        What the library says that it is.
    dtype : dtype
        float32 or float64.
    on_device : bool
        Whether its arrays are in device memory.

    Raises
    ------
    OSError
        If it cannot be loaded, lacks a function of the interface, or was made for another one.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, f"spectile_square{name}", None)
            if function is None:
                raise OSError(f"{path} has no function spectile_square{name}")
            function.restype, function.argtypes = result, arguments
        made_for = library.spectile_square_interface()
        if made_for != INTERFACE:
            raise OSError(f"{path} was made for the interface {made_for} of square.h, and this is {INTERFACE}")
        size, version = library.spectile_square_value_bytes(), library.spectile_square_version()
        if size not in (4, 8) or not version:
            raise OSError(f"{path} tells no version, or values of {size} bytes: float has 4 and double 8")
        self._library = library
        self.version = version.decode()
        self.dtype = np.dtype(f"f{size}")
        self.on_device = bool(library.spectile_square_on_device())

    @property
    def most_bytes(self) -> int | None:
        """The most memory that the last call held beside its input; None where the library does not count it."""
        most = int(self._library.spectile_square_most_bytes())
        return None if most < 0 else most

    def square(self, matrix: Any) -> Product:
        """Return the square of a CSR matrix of `dtype` with 32-bit indices, in the library's kind of memory.

        Raises
        ------
        RuntimeError
            If the library fails, or what it returns cannot be a square of the matrix.
        """
        rows = matrix.shape[0]
        addresses = (pointers.address(array) for array in (matrix.indptr, matrix.indices, matrix.data))
        a, c = _Csr(rows, matrix.nnz, *addresses), _Csr()
        status = self._library.spectile_square(ctypes.byref(a), ctypes.byref(c))
        if status:
            message = self._library.spectile_square_message(status) or b"it does not say why"
            raise RuntimeError(f"{self.version} ended with status {status}: {message.decode(errors='replace')}")
        found = Product(self, c)
        whole = c.indptr and (not c.entries or (c.indices and c.values))
        if c.rows != rows or not 0 <= c.entries < 2**31 or not whole:
            raise RuntimeError(f"{self.version} returned {c.entries} entries in {c.rows} rows for {rows} rows")
        return found

    def release(self, csr: _Csr) -> None:
        """Release the memory of a product."""
        self._library.spectile_square_release(ctypes.byref(csr))


def variable(name: str) -> str:
    """Return the environment variable by which the library of a method is named."""
    return f"SPECTILE_{name.upper()}"


def methods(
    matrices: Mapping[str, Any], counts: Mapping[str, Any], check: Check, *, on_device: bool
) -> list[Method | Skipped]:
    """Return the methods of the installed libraries for a square, and why the others are not measured.

    Parameters
    ----------
    matrices : mapping
        The matrix by ``"float32"`` and ``"float64"``, CSR with 32-bit indices, on the device or on the host.
    counts : mapping
        Of the product.
    check : Check
    on_device : bool
        Where the matrices are.
    """
    return [_method(name, title, matrices, counts, check, on_device) for name, title in NAMES.items()]


def _method(
    name: str, title: str, matrices: Mapping[str, Any], counts: Mapping[str, Any], check: Check, on_device: bool
) -> Method | Skipped:
    path = os.environ.get(variable(name))
    if not path:
        return Skipped(name, f"{title} is not installed: name its library in {variable(name)} (docs/rivals.md)")
    try:
        library = Library(path)
    except OSError as error:
        return Skipped(name, f"{title} cannot be used: {error}")
    if library.on_device != on_device:
        where = "needs a CUDA device" if library.on_device else "works on the host: measure it with device=cpu"
        return Skipped(name, f"{title} {where}")
    matrix, precision = matrices[library.dtype.name], library.dtype.name
    method = check.method(
        name,
        precision,
        lambda: library.square(matrix),
        counts,
        lambda C: {"library": library.version},
        clock="events" if on_device else "wall",
    )

    def check_and_tell_memory(C: Product) -> dict[str, float]:
        method.memory_bytes = library.most_bytes  # of the call just made: it allocates past CuPy's pool
        return check(name, precision, C.matrix())

    method.check = check_and_tell_memory
    if on_device and counts["nnz_c"] > LARGE:
        import cupy

        method.prepare = cupy.get_default_memory_pool().free_all_blocks
    return method
