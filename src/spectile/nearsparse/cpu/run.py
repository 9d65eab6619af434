"""The CPU backend of SpAMM: norms, threshold and product of each item of a batch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.memory import require_host_free
from spectile.core.pointers import overlap
from spectile.core.progress import PARTS, Progress
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cpu import dense
from spectile.nearsparse.cpu.multiply import Division, multiply
from spectile.nearsparse.cpu.norms import Maps, as_summed, check_norms, norm_map, row_major, whole_norm
from spectile.nearsparse.cpu.search import allowed, count_valid, error_bound, share_of, threshold
from spectile.nearsparse.operands import copy_if_overlapping, each_product, must_be_copied
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Threshold


@Progress("spamm", unit=PARTS)
def spamm_cpu(a: Any, b: Any, c: Any, out: Any, request: Request) -> SpammResult:
    """Multiply on the CPU; see :func:`spectile.nearsparse.spamm`.  Exactly the valid products, `strict` or not."""
    with np.errstate(all="ignore"):  # what overflows has an infinite bound
        return _product(a, b, c, out, request)


def _product(a: Any, b: Any, c: Any, out: Any, request: Request) -> SpammResult:
    # Of a batch, or a sum with C, every product is SpAMM's.
    chooses = request.method == "auto" and a.ndim == b.ndim == 2 and c is None and 0 not in (*a.shape, *b.shape)
    if chooses and out is None and (at_once := _dense_at_once(a, b, request)) is not None:
        return at_once
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    sums = np.dtype(np.float32) if a.dtype == np.float16 else a.dtype
    # A and B are packed while C is written.
    direct = out is not None and out.dtype == sums and not any(overlap(out, x) for x in (a, b))
    shape = (*batch, a.shape[-2], b.shape[-1])
    require_host_free(memory_bytes(a, b, c, out if direct else None, request), f"the product of shape {shape}")
    result = out if direct else np.empty(shape, sums)
    if c is not None:
        c = copy_if_overlapping(np.ascontiguousarray(c, dtype=sums), result, True)
    taus, ratios, bounds = np.empty(batch), np.empty(batch), np.empty(batch, object)
    method = "spamm"
    for index, one in zip(np.ndindex(batch), each_product(a, b, c, result, batch), strict=True):
        taus[index], ratios[index], bounds[index], method = _one(*one, request, chooses)
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
        method=method,
    )


def _dense_at_once(a: Any, b: Any, request: Request) -> SpammResult | None:
    """Return the dense product where it is taken whatever is valid, and None where norms have to tell more."""
    shape = (*a.shape, b.shape[1])
    known = dense.prospect(shape, request)
    if not known.at_once or (
        known.rounding is not None and request.atol is None and known.rounding.relative >= request.value
    ):
        return None
    x, y = as_summed(a), as_summed(b)
    require_host_free(shape[0] * shape[2] * x.itemsize, f"the product of shape {(shape[0], shape[2])}")
    out = np.empty((shape[0], shape[2]), x.dtype)
    dense.multiply(x, y, request.alpha, out)
    if not dense.tells(x, y, out, request, known.rounding):
        return None
    within = known.rounding is not None
    if request.arithmetic.output != out.dtype:
        out = _rounded(out, request.arithmetic.output)
    return SpammResult(
        out,
        tau=0.0,
        valid_ratio=1.0,
        executed_ratio=1.0,
        error_bound=lambda: error_bound(Maps.of(a, b, _block(request, shape)), 0.0, request, shape, 0.0, within),
        norm_c=lambda: whole_norm(norm_map(out, request.block)),
        method="dense",
    )


def threshold_cpu(a: Any, b: Any, request: Request) -> Threshold:
    """Return what a request leaves; see :func:`spectile.nearsparse.spamm_threshold`."""
    shape = (*a.shape, b.shape[1])
    # One operand at a time is copied where its rows are not as its norms are taken from.
    needed = max(map(_copied_bytes, (a, b))) + _map_bytes(shape, request.block)
    require_host_free(needed, f"the threshold of a product of shape {(shape[0], shape[2])}")
    maps = Maps.of(a, b, request.block, request.norms)
    check_norms(maps)
    tau, compared = threshold(maps, request, shape)
    left = share_of(maps.a, maps.b, count_valid(maps.a, maps.b, compared))
    return Threshold(tau, left, error_bound(maps, compared, request, shape, 0.0))


def memory_bytes(a: Any, b: Any, c: Any, direct: Any, request: Request) -> int:
    """Return the memory that a product takes beside what its caller holds, in bytes, where every tile is valid.

    The operands are as :func:`spamm_cpu` takes them; it is written to `direct`, or to memory of its own where that is
    None.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*a.shape[-2:], b.shape[-1])
    parts, sums = request.arithmetic.parts, as_summed(a[..., :0, :0]).dtype
    block = _block(request, shape)
    rows, blocks, columns = (ceil_div(size, block) for size in shape)
    items, entries = math.prod(batch), math.prod(batch) * shape[0] * shape[2]
    kept = items * _map_bytes(shape, block)
    if direct is None:
        kept += entries * sums.itemsize
    if c is not None:
        converted = not (c.flags.c_contiguous and c.dtype == sums)
        kept += (converted or must_be_copied(c, direct, True)) * entries * sums.itemsize
    # One product at a time: its operands as they are packed from, and what is packed, or sorted in the search.
    copies = sum(_copied_bytes(x) // max(1, math.prod(x.shape[:-2])) for x in (a, b))
    division = Division.of(rows, blocks, columns, block, sums.itemsize // parts, parts)
    packed = division.memory_bytes(sums.itemsize // parts) + 8 * blocks * columns
    searched = _map_bytes(shape, block)
    # C is rounded, and looked at for what overflowed, when all products are done.
    rounded = entries * (np.dtype(request.arithmetic.output).itemsize + 1) * (request.arithmetic.output != sums.name)
    return kept + max(copies + max(packed, searched), rounded)


def _copied_bytes(x: Any) -> int:
    """Return the size of the copy of an operand whose dtype or order is not that of the sums."""
    rows = x.strides[-1] == x.itemsize and x.strides[-2] == x.shape[-1] * x.itemsize
    return 0 if rows and x.dtype != np.float16 else x.size * max(4, x.itemsize)


def _map_bytes(shape: tuple[int, int, int], block: int) -> int:
    """Return the size of the norm maps of A and B."""
    rows, blocks, columns = (ceil_div(size, block) for size in shape)
    return 8 * blocks * (rows + columns)


def _block(request: Request, shape: tuple[int, int, int]) -> int:
    """Return the tile size: one larger than the matrices is one that holds them, and takes no more memory."""
    return min(request.block, max(1, *shape))


def _one(
    a: Any, b: Any, c: Any, out: Any, request: Request, chooses: bool
) -> tuple[float, float, Callable[[], float], str]:
    """Multiply two matrices; return tau, the valid ratio, a function that bounds the error, and what multiplied.

    With `chooses` the dense product does where it is faster: before the threshold is searched, or when it is known.
    """
    shape = (*a.shape, b.shape[1])
    if (block := _block(request, shape)) != request.block:
        request = dataclasses.replace(request, block=block)
    at_once = chooses and dense.prospect(shape, request).at_once
    x, y = row_major(as_summed(a)), row_major(as_summed(b))
    maps = Maps.of(x, y, request.block, request.norms)
    if request.norms_first:
        check_norms(maps)
    if at_once:
        if request.within_error:
            allowed(maps, request, shape)
        return _dense(x, y, out, maps, request, shape)
    tau, compared = threshold(maps, request, shape)
    if chooses:
        share = share_of(maps.a, maps.b, count_valid(maps.a, maps.b, compared))
        if dense.is_faster(shape, request, share, is_known=True):
            return _dense(x, y, out, maps, request, shape)
    # C may be overwritten before its norm is asked for.
    norm_c = 0.0 if c is None else whole_norm(norm_map(c, request.block))
    executed = multiply(x, y, maps.a, maps.b, compared, request.block, request.alpha, request.beta, c, out)
    bound = functools.partial(error_bound, maps, compared, request, shape, norm_c)
    return tau, share_of(maps.a, maps.b, executed), bound, "spamm"


def _dense(
    a: Any, b: Any, out: Any, maps: Maps, request: Request, shape: tuple[int, int, int]
) -> tuple[float, float, Callable[[], float], str]:
    """Return what :func:`_one` returns, of the dense product: nothing is skipped."""
    dense.multiply(a, b, request.alpha, out)
    return 0.0, 1.0, functools.partial(error_bound, maps, 0.0, request, shape, 0.0), "dense"


def _rounded(result: Any, dtype: str) -> Any:
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
