"""The parts of CuPy that its documentation does not promise, looked up here alone, so that a test finds what moved.

They are there from CuPy 13.4 on.  Only 14.1 and later have sparse matrices with 64-bit indices, and a way to make one
without a look at its arrays.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

#: What is used, and the module that has it.
PLACES = {
    "CUDADriverError": "cupy_backends.cuda.api.driver",
    "driver": "cupy_backends.cuda.api",
    "CNumpyArray": "cupy.cuda.function",
    "Module": "cupy.cuda.function",
    "CompileException": "cupy.cuda.compiler",
    "_NVRTCProgram": "cupy.cuda.compiler",
    "get_cublas_handle": "cupy.cuda.device",
    "get_cusolver_handle": "cupy.cuda.device",
    "cublas": "cupy_backends.cuda.libs",
    "cusolver": "cupy_backends.cuda.libs",
    "to_cuda_dtype": "cupy._core._dtype",
}


@functools.cache
def part(name: str) -> Any:
    """Return what `PLACES` names: a class, a function, or a module of a library's functions."""
    try:
        return getattr(importlib.import_module(PLACES[name]), name)
    except AttributeError:
        return importlib.import_module(f"{PLACES[name]}.{name}")


@functools.cache
def _csr(array: bool) -> Any:
    sparse = importlib.import_module("cupyx.scipy.sparse")
    return sparse.csr_array if array else sparse.csr_matrix


def has_wide_indices() -> bool:
    """Return whether matrices of cupyx may have indices of 64 bits."""
    return hasattr(_csr(False), "_from_parts")


def csr_matrix(
    shape: tuple[int, int],
    indptr: Any,
    indices: Any,
    data: Any,
    *,
    has_canonical_format: bool | None = None,
    array: bool = False,
) -> Any:
    """Return a CSR matrix or array of cupyx, of arrays that are known to fit, without a wait where CuPy can.

    Parameters
    ----------
    shape : tuple of int
    indptr, indices, data : cupy.ndarray
        Row starts, columns and values; shared where both index arrays have one dtype.
    has_canonical_format : bool, optional
        Whether rows are sorted and without repetitions, if that is known.
    array : bool, default False
        Whether to make an array, whose ``*`` multiplies entry by entry.

    Raises
    ------
    OverflowError
        If this CuPy would cut indices to 32 bits.
    """
    known = {} if has_canonical_format is None else {"has_canonical_format": has_canonical_format}
    from_parts = getattr(_csr(array), "_from_parts", None)
    if from_parts and indices.dtype == indptr.dtype:  # the constructor reads indptr back, which costs a wait
        return from_parts(data, indices, indptr, shape, **known)
    if not from_parts and max(len(indices), shape[1] - 1) > np.iinfo(np.int32).max:
        raise OverflowError(f"a matrix of {len(indices):,} entries and shape {shape} needs CuPy 14.1: update CuPy")
    matrix = _csr(array)((data, indices, indptr), shape=shape)
    for name, value in known.items():
        setattr(matrix, name, value)
    return matrix
