"""Small matrices and pairs of them, one or a batch, by Jacobi rotations: one kernel from the caller's memory and back.

The kernel takes some microseconds, so a call must not take many more: what does not change between calls is kept.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.choose import BATCHED_ORDER, PAIR_ORDER, ROTATED_ORDER, rotation_elements, rotation_threads
from spectile.evd.cuda.small.report import told
from spectile.evd.cuda.units import PAIRS, ROTATIONS
from spectile.evd.types import Definite, Options, Scalar, not_definite, out_of_range, require_finite, scalar_of

_NOWHERE = np.uintp(0)
_ALONE, _BATCHED, _PAIRS = (
    {np.dtype(name).char: order for name, order in orders.items()}
    for orders in (ROTATED_ORDER, BATCHED_ORDER, PAIR_ORDER)
)


def rotate_shape(n: int, count: int, scalar: Scalar) -> Shape:
    """Launch of `rotate_small`: a block a matrix."""
    shared = scalar.itemsize * rotation_elements(n) + 4 * (n + n % 2 + 1)
    return Shape((count,), rotation_threads(n), shared)


class _Plan(NamedTuple):
    """A launch without its addresses."""

    unit: Unit
    shape: Shape
    real: np.dtype[Any]
    layout: tuple[Any, ...]  # stride of the batch, strides of a lower triangle, n, whether to conjugate, vectors


@functools.lru_cache(maxsize=256)
def _plan(shape: tuple[int, ...], strides: tuple[int, ...], char: str, lower: bool, vectors: bool) -> _Plan:
    dtype = np.dtype(char)
    scalar, (count, n, _) = scalar_of(dtype), shape
    stride, along_i, along_j = (np.int64(step // dtype.itemsize) for step in strides)
    if not lower:
        along_i, along_j = along_j, along_i
    layout = (stride, along_i, along_j, np.int32(n), np.int32(not lower), np.int32(vectors))
    return _Plan(ROTATIONS[scalar.name], rotate_shape(n, count, scalar), np.dtype(scalar.real), layout)


def pair_shape(n: int, count: int, scalar: Scalar) -> Shape:
    """Launch of `rotate_pairs`: as `rotate_shape`, and the factor of the second matrix."""
    m, real = n + n % 2, scalar.itemsize // scalar.parts
    elements = rotation_elements(n) + n * m
    return Shape((count,), rotation_threads(n), scalar.itemsize * elements + 2 * real * n + 4 * (n + 3))


@functools.lru_cache(maxsize=256)
def _pair_plan(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], char: str, lower: bool
) -> tuple[Unit, Shape, Any, list[tuple[Any, ...]]]:
    """Return the unit, the launch, the eigenvalues' dtype, and the strides of both matrices."""
    dtype = np.dtype(char)
    scalar = scalar_of(dtype)
    steps = [tuple(np.int64(step // dtype.itemsize) for step in own) for own in strides]
    along = [own if lower else (own[0], own[2], own[1]) for own in steps]
    return PAIRS[scalar.name], pair_shape(shape[-1], shape[0], scalar), np.dtype(scalar.real), along


def takes(a: Any, options: Options) -> bool:
    """Return whether `a` is CuPy's and its matrices are small, with parts that are as large for all of them."""
    import cupy

    if not isinstance(a, cupy.ndarray) or a.size == 0:
        return False
    n = a.shape[-1]
    if n > (_BATCHED if a.size > n * n else _ALONE).get(a.dtype.char, 0):
        return False
    return options.subset is None or options.subset.by_index


def eigh(a: Any, options: Options) -> tuple[Any, Any]:
    """`run.eigh` for what `takes` says: w, and v or None, of the shape of a batch or of one matrix."""
    lead = a.shape[:-2]
    if len(lead) == 1:
        return solve(a, options)
    w, v = solve(a.reshape(-1, *a.shape[-2:]), options)
    return w.reshape(*lead, -1), None if v is None else v.reshape(*lead, *v.shape[1:])


def takes_pair(a: Any, b: Any, options: Options) -> bool:
    """Return whether both are CuPy's, of one dtype, and small, with parts that are as large for all of them."""
    import cupy

    if not (isinstance(a, cupy.ndarray) and isinstance(b, cupy.ndarray) and a.dtype == b.dtype and a.size and b.size):
        return False
    fits = a.shape[-1] <= _PAIRS.get(a.dtype.char, 0)
    return fits and (options.subset is None or options.subset.by_index)


def eigh_pair(a: Any, definite: Definite, options: Options) -> tuple[Any, Any]:
    """`run.eigh` for what `takes_pair` says: w, and v or None, of the shape of a batch or of one problem.

    Raises LinAlgError if a second matrix is not positive definite, and else as `solve`.
    """
    import cupy

    b, n = definite.b, a.shape[-1]
    lead = a.shape[:-2] if a.shape == b.shape else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = ((x if x.shape[:-2] == lead else cupy.broadcast_to(x, (*lead, n, n))).reshape(-1, n, n) for x in (a, b))
    count = len(a)
    unit, shape, real, along = _pair_plan(a.shape, (a.strides, b.strides), a.dtype.char, options.lower)
    w, status = cupy.empty((count, n), real), cupy.empty(count, np.int32)
    v = cupy.empty(a.shape, a.dtype) if options.vectors else None
    kernel(unit, "rotate_pairs")(
        *(shape, a, *along[0], b, *along[1], np.int32(n), np.int32(not options.lower), np.int32(definite.kind)),
        *(np.int32(options.vectors), w, w if v is None else v, status),
    )
    told = status.get()
    if told.any():
        first = int(told[told != 0][0])
        if first > 0:
            raise not_definite(first)
        if first == -1:
            require_finite(np.nan, options.lower, options.check_finite, "a or b")
        _require_solved(w, options)
    if options.subset is not None:
        wanted = slice(options.subset.low, options.subset.high + 1)
        w, v = w[:, wanted], None if v is None else v[:, :, wanted]
    return w.reshape(*lead, -1), None if v is None else v.reshape(*lead, n, -1)


def solve(batch: Any, options: Options) -> tuple[Any, Any]:
    """Return the eigenvalues, shape (count, m), and the eigenvectors, (count, n, m), or None, of a batch of matrices.

    The batch has the shape (count, n, n), n up to `choose.rotated_order`, and the options have no subset by value.  The
    host waits until all matrices have been read; without `check_finite`, and while the stream is captured in a graph,
    it does not.  The results of a matrix that is not finite are NaN, and those of one whose rotations do not converge,
    of which none is known.  Raises ValueError if a triangle holds NaN or infinity, and OverflowError if an eigenvalue
    is beyond the range of its dtype; where the host does not wait, it is infinite.
    """
    import cupy

    plan = _plan(batch.shape, batch.strides, batch.dtype.char, options.lower, options.vectors)
    w = cupy.empty(batch.shape[:2], plan.real)
    v = cupy.empty(batch.shape, batch.dtype) if options.vectors else None
    rotate = kernel(plan.unit, "rotate_small")
    operands = (plan.shape, batch, *plan.layout, w, w if v is None else v)
    if not options.check_finite or cupy.cuda.get_current_stream().is_capturing():
        rotate(*operands, _NOWHERE, _NOWHERE)
    elif not told(lambda word: rotate(*operands, word.address, word.arrived)):
        _require_solved(w, options)
    if options.subset is None:
        return w, v
    wanted = slice(options.subset.low, options.subset.high + 1)
    return w[:, wanted], None if v is None else v[:, :, wanted]


def _require_solved(w: Any, options: Options) -> None:
    """Raise where matrices were not finite or eigenvalues are not."""
    import cupy

    if bool(cupy.isnan(w).any()):
        require_finite(np.nan, options.lower, options.check_finite)
    if bool(cupy.isinf(w).any()):
        raise out_of_range(w.dtype)
