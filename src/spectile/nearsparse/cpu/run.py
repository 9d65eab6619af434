"""The CPU backend of SpAMM: norms, threshold and product of each item of a batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.pointers import overlap
from spectile.nearsparse.cpu.multiply import multiply
from spectile.nearsparse.cpu.norms import as_summed, check_norms, norm_map, row_major
from spectile.nearsparse.cpu.search import count_valid, error_bound, share_of, threshold, whole_norm
from spectile.nearsparse.operands import copy_if_overlapping, each_product
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Threshold


def spamm_cpu(a: Any, b: Any, c: Any, out: Any, request: Request) -> SpammResult:
    """Multiply on the CPU; see :func:`spectile.nearsparse.spamm`.  Exactly the valid products, `strict` or not."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    sums = as_summed(a[..., :0, :0]).dtype
    # A and B are packed while C is written.
    direct = out is not None and out.dtype == sums and not any(overlap(out, x) for x in (a, b))
    result = out if direct else np.empty((*batch, a.shape[-2], b.shape[-1]), sums)
    if c is not None:
        c = copy_if_overlapping(np.ascontiguousarray(c, dtype=sums), result, True)
    taus, ratios, bounds = np.empty(batch), np.empty(batch), np.empty(batch, object)
    for index, one in zip(np.ndindex(batch), each_product(a, b, c, result, batch), strict=True):
        taus[index], ratios[index], bounds[index] = _one(*one, request)
    if request.arithmetic.output != result.dtype:
        result = _rounded(result, request.arithmetic.output)
    if out is not None and result is not out:
        out[...] = result
        result = out
    return SpammResult(
        result,
        tau=_number(taus),
        valid_ratio=_number(ratios),
        executed_ratio=_number(ratios),
        error_bound=lambda: _collect(batch, lambda index: bounds[index]()),
        norm_c=lambda: _collect(batch, lambda index: whole_norm(norm_map(result[index], request.block))),
    )


def threshold_cpu(a: Any, b: Any, request: Request) -> Threshold:
    """Return what a request leaves; see :func:`spectile.nearsparse.spamm_threshold`."""
    shape = (*a.shape, b.shape[1])
    norms_a, norms_b = (norm_map(x, request.block) for x in (a, b))
    check_norms(norms_a, norms_b)
    tau = threshold(norms_a, norms_b, request, shape)
    left = share_of(norms_a, norms_b, count_valid(norms_a, norms_b, tau))
    return Threshold(tau, left, error_bound(norms_a, norms_b, tau, request, shape, 0.0))


def _one(a: Any, b: Any, c: Any, out: Any, request: Request) -> tuple[float, float, Callable[[], float]]:
    """Multiply two matrices; return tau, the valid ratio, and a function that bounds the error."""
    # A tile larger than the matrices is one that holds them, and takes no more memory.
    request = dataclasses.replace(request, block=min(request.block, max(1, *a.shape, b.shape[1])))
    a, b = (row_major(as_summed(x)) for x in (a, b))
    norms_a, norms_b = norm_map(a, request.block), norm_map(b, request.block)
    if request.norms_first:
        check_norms(norms_a, norms_b)
    shape = (*a.shape, b.shape[1])
    tau = threshold(norms_a, norms_b, request, shape)
    # C may be overwritten before its norm is asked for.
    norm_c = 0.0 if c is None else whole_norm(norm_map(c, request.block))
    executed = multiply(a, b, norms_a, norms_b, tau, request.block, request.alpha, request.beta, c, out)
    bound = functools.partial(error_bound, norms_a, norms_b, tau, request, shape, norm_c)
    return tau, share_of(norms_a, norms_b, executed), bound


def _rounded(result: Any, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        rounded = result.astype(dtype)
    if np.isinf(rounded).any() and not np.isinf(result).any():
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    return rounded


def _collect(batch: tuple[int, ...], number: Callable[[Any], float]) -> Any:
    values = np.empty(batch)
    for index in np.ndindex(batch):
        values[index] = number(index)
    return _number(values)


def _number(values: Any) -> Any:
    return float(values) if values.ndim == 0 else values
