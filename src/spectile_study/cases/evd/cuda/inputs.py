"""Matrices made on the device, and what is derived from them once for many cases."""

from __future__ import annotations

import functools
import os
from typing import Any

import cupy
import numpy as np

from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd import rivals

#: A matrix above this order is made again where it is wanted, instead of being kept beside its work space.
KEPT_ORDER = 40_000


def fill(a: Any, seed: int) -> Any:
    """Fill a column-major matrix with a Hermitian one of standard normal entries, and return it."""
    n = a.shape[0]
    random = cupy.random.RandomState(seed)
    for start in range(0, n, 4096):
        # Row block by row block of the transpose, its other triangle at once, so that no second matrix is needed.
        stop = min(start + 4096, n)
        rows = random.standard_normal((stop - start, n - start))
        if a.dtype.kind == "c":
            rows = rows + 1j * random.standard_normal(rows.shape)
        square = cupy.tril(rows[:, : stop - start], -1)
        diagonal = cupy.diag(cupy.diag(rows).real)
        a[start:stop, start:stop] = square + square.conj().T + diagonal
        a[stop:, start:stop] = rows[:, stop - start :].conj().T
        a[start:stop, stop:] = rows[:, stop - start :]
    return a


def matrix_of(n: int, seed: int, precision: str = "float64") -> Any:
    """Return a Hermitian matrix of standard normal entries, column-major, made on the device."""
    return fill(cupy.empty((n, n), precision, order="F"), seed)


def first_columns(a: Any) -> dict[str, str]:
    """Digest the input's first columns: a matrix of 8 GiB is not sent through the host for its name."""
    return {"a_first_columns": digest_array(cupy.asnumpy(a[:, :8]))}


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
    """Eigenvalues of `_matrix` by the vendor in float64 or complex128; many cases share one."""
    a = matrix_of(n, seed, precision)
    return vendor_values(a.astype(np.promote_types(precision, np.float64), order="F", copy=False))


def wait(result: Any) -> Any:
    """Return `result` when the current stream has ended."""
    cupy.cuda.get_current_stream().synchronize()
    return result
