"""What an eigenproblem costs, for the choice between the host and a GPU: counts that fit what was measured.

A one-stage reduction reads half of what is left of the matrix for each column (on a GPU two stages do not, which is an
upper estimate there); divide and conquer and the transformation back are products.  Scalar work is the tridiagonal
matrix's, and for a dense one the columns' too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.arrays import host_array
from spectile.core.placement import Work
from spectile.evd.types import Scalar, Subset, scalar_of, working_dtype

#: Operations of products for n³, of all eigenvectors and of the reduction of a generalized problem.
VECTORS_FLOPS, GENERALIZED_FLOPS = 6, 3
#: Scalar operations for n², of a dense matrix and of a tridiagonal one; for n² w of a band, and for n³ of its vectors.
DENSE_SCALAR, TRIDIAGONAL_SCALAR, BAND_SCALAR, BAND_VECTORS_SCALAR = 40, 15, 2, 1 / 4
#: Order up to which a GPU solves a batch at once.
BATCHED_ORDER = 512
#: Steps of a GPU for each row of a tridiagonal matrix.
TRIDIAGONAL_STEPS = 0.1


def dense(
    shape: tuple[int, ...],
    operands: tuple[Any, ...],
    *,
    vectors: bool,
    subset: Subset | None = None,
    functions: int = 0,
) -> Work:
    """Return what dense problems cost, of the shape (..., n, n) of all operands together.

    The operands, A, and B of a generalized problem, lie on the host; `functions` products of n × n matrices follow.
    """
    n, count, scalar = shape[-1], math.prod(shape[:-2]), _scalar(dict(zip("ab", operands, strict=False)))
    columns = (subset.high - subset.low + 1 if subset is not None and subset.by_index else n) if vectors else 0
    products = VECTORS_FLOPS * n**2 * columns + GENERALIZED_FLOPS * n**3 * (len(operands) - 1) + 2 * functions * n**3
    return Work(
        real=scalar.real,
        flops=count * scalar.parts**2 * products,
        streamed=count * scalar.itemsize * n**3 / 6,
        scalar=count * DENSE_SCALAR * n**2,
        steps=n if n <= BATCHED_ORDER else n * count,
        moved=count * scalar.itemsize * n * (n * len(operands) + columns),
    )


def tridiagonal(d: Any, e: Any, *, vectors: bool) -> Work:
    """Return what the problem of diagonal `d`, shape (..., n), and subdiagonal `e` costs."""
    scalar = _scalar({"d": d, "e": e})
    n, count = _order(host_array("d", d).shape, 1)
    return Work(
        real=scalar.real,
        flops=0,
        streamed=0,
        scalar=count * TRIDIAGONAL_SCALAR * n**2,
        steps=count * TRIDIAGONAL_STEPS * n,
        moved=count * scalar.itemsize * n * (3 + (n if vectors else 0)),
    )


def banded(a_band: Any, *, vectors: bool) -> Work:
    """Return what the problem of a band, shape (..., w + 1, n), costs."""
    scalar, shape = _scalar({"a_band": a_band}), host_array("a_band", a_band).shape
    n, count = _order(shape, 2)
    rows, columns = (shape[-2] if len(shape) > 1 else 1), (n if vectors else 0)
    return Work(
        real=scalar.real,
        flops=count * scalar.parts**2 * VECTORS_FLOPS * n**2 * columns,
        streamed=0,
        scalar=count * scalar.parts**2 * n**2 * (BAND_SCALAR * rows + BAND_VECTORS_SCALAR * columns),
        steps=count * n,
        moved=count * scalar.itemsize * n * (rows + columns),
    )


def _order(shape: tuple[int, ...], axes: int) -> tuple[int, int]:
    """Return n and the matrices of a batch; shapes that hold no problem are judged where it is solved."""
    return (shape[-1] if shape else 0), math.prod(shape[:-axes])


def _scalar(operands: dict[str, Any]) -> Scalar:
    """Return the working dtype of operands on the host, of any library, by name."""
    dtypes = [working_dtype(host_array(name, one).dtype, name) for name, one in operands.items()]
    return scalar_of(np.result_type(*dtypes))
