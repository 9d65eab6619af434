"""Matrices made on the device, the same bits as the host's, and what is derived from them once for many cases."""

from __future__ import annotations

import functools
import os
from typing import Any

import cupy
import numpy as np

from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd import rivals
from spectile_study.inputs import counted

#: A matrix above this order is made again where it is wanted, instead of being kept beside its work space.
KEPT_ORDER = 40_000


#: Columns that a kernel fills at once, and columns that are compared with the host's.
_FILLED, _COMPARED = 8192, 8
_BODIES = {
    "hermitian": "a = (T)counted(max(row, column) << 32 | min(row, column), seed)",
    "hermitian_complex": """
        const unsigned long long high = max(row, column), low = min(row, column);
        const double sign = row > column ? 1.0 : row < column ? -1.0 : 0.0;
        a = T(counted(high << 32 | low, seed), sign * counted(low << 32 | high, seed));
    """,
    "dense": "a = (T)counted(row << 32 | column, seed)",
}


@functools.cache
def _kernel(kind: str) -> Any:
    """Return CuPy's elementwise kernel that makes entries of `counted` from their rows and columns."""
    arguments = "uint64 row, uint64 column, uint64 seed"
    return cupy.ElementwiseKernel(arguments, "T a", _BODIES[kind], f"counted_{kind}", preamble=counted.PREAMBLE)


def _fill(a: Any, kind: str, seed: int) -> Any:
    kernel, start = _kernel(kind), np.uint64(counted.start(seed))
    i = cupy.arange(a.shape[0], dtype=np.uint64)
    for first in range(0, a.shape[1], _FILLED):
        j = cupy.arange(first, min(first + _FILLED, a.shape[1]), dtype=np.uint64)
        kernel(i, j[:, None], start, a.T[first : first + _FILLED])  # along columns, which lie together
    return a


def fill(a: Any, seed: int) -> Any:
    """Fill a column-major matrix with the Hermitian one of `counted`, and return it."""
    return _fill(a, "hermitian_complex" if a.dtype.kind == "c" else "hermitian", seed)


def matrix_of(n: int, seed: int, precision: str = "float64") -> Any:
    """Return the Hermitian matrix of `counted`, column-major, made on the device."""
    return fill(cupy.empty((n, n), precision, order="F"), seed)


def dense_of(n: int, k: int, seed: int) -> Any:
    """Return the n x k matrix of `counted` without symmetry, float64, column-major, made on the device."""
    return _fill(cupy.empty((n, k), order="F"), "dense", seed)


def first_columns(a: Any, seed: int) -> dict[str, str]:
    """Digest the first columns of a Hermitian input: a matrix of 8 GiB is not sent through the host for its name.

    Raises
    ------
    ValueError
        If the host makes other columns of the same matrix.
    """
    made = cupy.asnumpy(a[:, :_COMPARED])
    expected = counted.hermitian(np.arange(len(made))[:, None], np.arange(made.shape[1]), seed, made.dtype)
    if not np.array_equal(made, expected):
        raise ValueError(
            f"the device made another matrix of order {len(made):,} and seed {seed} than the host: report the device"
        )
    return {"a_first_columns": digest_array(made)}


def vendor_values(a: Any) -> Any:
    """Eigenvalues by cuSOLVER's two-stage solver where there is one, else by its one-stage solver; overwrites `a`."""
    two_stage = rivals.two_stage_reason() is None
    solver = rivals.Syevd(
        a,
        vectors=False,
        algorithm="two_stage" if two_stage else "one_stage",
        path=os.environ.get(rivals.CUSOLVER_PATH) if two_stage else None,
    )
    w = solver()[0].copy()
    del solver
    cupy.get_default_memory_pool().free_all_blocks()
    return w


@functools.cache
def reference_values(n: int, seed: int, precision: str = "float64") -> Any:
    """Eigenvalues of `matrix_of` by the vendor in float64 or complex128; many cases share one."""
    a = matrix_of(n, seed, precision)
    return vendor_values(a.astype(np.promote_types(precision, np.float64), order="F", copy=False))


def wait(result: Any) -> Any:
    """Return `result` when the current stream has ended."""
    cupy.cuda.get_current_stream().synchronize()
    return result
