"""An error relative to the norm of the product itself, which is known when the product is.

With ``||C - A B|| <= e`` the norm of A B is at least ``||C|| - e``, so that ``e <= rtol (||C|| - e)`` proves
``||C - A B|| <= rtol ||A B||``.  The first product is made within an absolute error that an estimate of ``||A B||``
suggests.  Where it does not prove what was asked for, it has at least bounded ``||A B||`` from below, and the next one
is made within `rtol` times that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import arrays
from spectile.core.pointers import overlap
from spectile.nearsparse.checks import Operands, shape_of
from spectile.nearsparse.operands import each_product
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request

# Vectors of random signs that estimate a norm, and the part of the error that is allowed by it which is asked for.
VECTORS, CAUTION = 8, 0.7
# Products that may be made, by how much that shrinks where one does not bound the norm, and its least part of an error.
TRIES, SHRINK, LEAST = 12, 1 / 64, 1 / 16
# What the norm of C may be off by.
SLACK = 1e-9

Run = Callable[[Operands, Request], SpammResult]
AtOnce = Callable[[Operands, Request], SpammResult | None]


def product(operands: Operands, request: Request, run: Run, at_once: AtOnce | None = None) -> SpammResult:
    """Return alpha A B + beta C, where the error of alpha A B is within ``request.rtol`` of its norm.

    Parameters
    ----------
    operands : Operands
        Of one product, or of a batch that is not in lists.
    request : Request
        With `rtol`.
    run : callable
        Makes one product within another error.
    at_once : callable, optional
        Makes one product that is known to be within this one, or returns None.

    Raises
    ------
    ValueError
        Where rounding alone may be more, and in a capture, which reads nothing back.
    """
    if operands.distributed:
        if max(len(shape_of(x)) for x in (*operands.a, *operands.b)) > 2:
            raise ValueError(
                "rtol is relative to each product of a batch, which is in lists: give rtol_factors or atol"
            )
    elif max(len(shape_of(x)) for x in (operands.a, operands.b)) > 2:
        return _batch(operands, request, run, at_once)
    made = None if at_once is None else at_once(operands, request)
    if made is not None:
        return made
    x, y, out = operands.a, operands.b, operands.out
    known = type(out) is type(x) is type(y) and hasattr(out, "flags")  # of NumPy or CuPy
    if request.beta == 0 and (out is None or (known and not overlap(out, x) and not overlap(out, y))):
        return _within(operands, request, run)
    # What C or an operand loses to one product is there for no second one.
    alone = dataclasses.replace(operands, c=None, out=None)
    found = _within(alone, dataclasses.replace(request, alpha=1.0, beta=0.0), run)
    return run(operands, dataclasses.replace(request, rtol=None, tau=found.tau, method="spamm"))


def _within(operands: Operands, request: Request, run: Run) -> SpammResult:
    # More than half of the norm is never allowed, as nothing is known of a smaller product.
    rtol, proven, target = min(request.asked[1], 0.5), 0.0, math.nan
    factor = abs(request.alpha) or 1.0
    skipped = CAUTION * rtol * _estimate(operands)
    for _ in range(TRIES):
        # What is skipped is searched for, and rounding added; where nothing is known everything is multiplied.
        known = 0 < skipped < math.inf
        limit: dict[str, Any] = {"atol": skipped} if known else {"rtol": None, "tau": 0.0}
        made = run(operands, dataclasses.replace(request, **limit))
        tau, error, norm = made.tau, made.error_bound, made.norm
        proven = max(proven, norm * (1 - SLACK) - error)
        target = rtol * proven
        if error == 0 or error <= target:
            return made
        if not error < math.inf or tau == 0 or 0 < skipped * factor <= LEAST * target:
            break
        # The next one is within what is known to be allowed, if that leaves anything to rounding, or as little as pays.
        rest = 0.9 * target - max(0.0, error - skipped * factor)
        within = rest if LEAST * target < rest < 0.95 * skipped * factor else LEAST * target
        skipped = within / factor if target > 0 else skipped * SHRINK
    share = error / proven if proven > 0 else math.inf
    raise ValueError(
        f"rtol = {request.rtol} is below what rounding alone is bounded by, {share:.3g} for this inner dimension and "
        "precision and so small a product of these matrices, or they hold NaN or infinity: take a larger rtol or "
        "float64, or give rtol_factors or atol"
    )


def _batch(operands: Operands, request: Request, run: Run, at_once: AtOnce | None) -> SpammResult:
    """Return the products of a batch, each within its own norm."""
    a, b, c, out = operands.a, operands.b, operands.c, operands.out
    if operands.on_gpu:
        a, b, c = (None if x is None else arrays.to_device(x, name)[0] for x, name in ((a, "a"), (b, "b"), (c, "c")))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    made = _module(a).empty((*batch, a.shape[-2], b.shape[-1]), request.arithmetic.output)
    items = [
        product(dataclasses.replace(operands, a=x, b=y, c=z, out=target), request, run, at_once)
        for x, y, z, target in each_product(a, b, c, made, batch)
    ]
    if out is not None:
        (arrays.to_device(out, "out")[0] if arrays.on_device(out) else out)[...] = made
    numbers: dict[str, Any] = {
        name: np.reshape([getattr(item, name) for item in items], batch)
        for name in ("tau", "valid_ratio", "executed_ratio", "error_bound", "norm")
    }
    kind = arrays.to_device(operands.a, "a")[1] if operands.on_gpu else lambda result: result
    return SpammResult(
        kind(made), norm_c=numbers.pop("norm"), **numbers,
        method="dense" if items and all(item.method == "dense" for item in items) else "spamm",
    )  # fmt: skip


def _estimate(operands: Operands) -> float:
    """Return about ``||A B||_F``, of products with random signs; 0 or no number where it leaves the range."""
    a, b = (x if operands.distributed else [x] for x in (operands.a, operands.b))
    return math.sqrt(sum(_square_estimate(*pair) for pair in zip(a, b, strict=True)))


def _square_estimate(a: Any, b: Any) -> float:
    where: Any = contextlib.nullcontext()
    if not isinstance(a, np.ndarray) and arrays.on_device(a):
        import cupy

        a, b = arrays.to_device(a, "a")[0], arrays.to_device(b, "b")[0]
        where = a.device
        if cupy.cuda.get_current_stream().is_capturing():
            raise ValueError("rtol reads the norm of the product back, as no capture does: give rtol_factors or atol")
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (b.shape[1], VECTORS))
    with where, np.errstate(all="ignore"):
        made = _times(a, _times(b, _module(a).asarray(signs)))
        return float((abs(made).astype(np.float64) ** 2).sum()) / VECTORS


def _times(x: Any, y: Any) -> Any:
    """Return the product with few vectors, of float16 in float32 by a few rows at a time."""
    wide = np.result_type(x.dtype, np.float32)
    y = y.astype(wide, copy=False)
    if x.dtype == wide:
        return x @ y
    rows = max(1, (1 << 22) // max(1, x.shape[1]))
    strips = [x[first : first + rows].astype(wide) @ y for first in range(0, len(x), rows)]
    return _module(x).concatenate(strips) if strips else _module(x).empty((0, y.shape[1]), wide)


def _module(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np
    import cupy

    return cupy
