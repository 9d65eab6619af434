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
from spectile.nearsparse.bounds import Rounding, rounding_terms
from spectile.nearsparse.cpu import dense
from spectile.nearsparse.cpu.multiply import Division, multiply
from spectile.nearsparse.cpu.norms import Maps, as_summed, check_norms, norm_map, row_major, whole_norm
from spectile.nearsparse.cpu.search import allowed, count_valid, error_bound, share_of, threshold
from spectile.nearsparse.operands import copy_if_overlapping, each_product, must_be_copied
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Threshold

# Bytes up to which no product asks whether they are free: asking takes longer than so small a product.
UNASKED = 64 << 20


@Progress("spamm", unit=PARTS)
def spamm_cpu(a: Any, b: Any, c: Any, out: Any, request: Request, norms: tuple[Any, Any] = (None, None)) -> SpammResult:
    """Multiply on the CPU; see :func:`spectile.nearsparse.spamm`.  Exactly the valid products, `strict` or not."""
    with np.errstate(all="ignore"):  # what overflows has an infinite bound
        return _product(a, b, c, out, request, norms)


def _product(a: Any, b: Any, c: Any, out: Any, request: Request, norms: tuple[Any, Any]) -> SpammResult:
    # Of a batch, or a sum with C, every product is SpAMM's.
    chooses = request.method == "auto" and a.ndim == b.ndim == 2 and c is None and 0 not in (*a.shape, *b.shape)
    if chooses and out is None and (made := DenseAtOnce((*a.shape, b.shape[1]), request)(a, b)) is not None:
        return made
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    sums = np.dtype(np.float32) if a.dtype == np.float16 else a.dtype
    # A and B are packed while C is written.
    direct = out is not None and out.dtype == sums and not any(overlap(out, x) for x in (a, b))
    shape = (*batch, a.shape[-2], b.shape[-1])
    if (needed := memory_bytes(a, b, c, out if direct else None, request)) > UNASKED:
        require_host_free(needed, f"the product of shape {shape}")
    result = out if direct else np.empty(shape, sums)
    if c is not None:
        c = copy_if_overlapping(np.ascontiguousarray(c, dtype=sums), result, True)
    taus, ratios, bounds = np.empty(batch), np.empty(batch), np.empty(batch, object)
    method, kept = "spamm", None
    for index, one in zip(np.ndindex(batch), each_product(a, b, c, result, batch), strict=True):
        taus[index], ratios[index], bounds[index], method, kept = _one(*one, request, chooses, norms)
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
        norms=None if batch else kept,
        method=method,
    )


class DenseAtOnce:
    """The dense product of two matrices of (m, k, n), where it is taken whatever is valid.

    A call returns it, or None where it is not taken or norms have to tell more.
    """

    def __init__(self, shape: tuple[int, ...], request: Request) -> None:
        row = request.arithmetic
        self._request = request
        self._terms: Rounding | None = None
        self._converted, self._rounded = row.dtype == "float16", row.output == "float16"
        self._taken = len(shape) == 3 and 0 not in shape and request.method == "auto" and request.beta == 0
        if self._taken:
            sizes = shape[0], shape[1], shape[2]
            self._taken = dense.is_taken_at_once(sizes, request)
            self._terms = rounding_terms(sizes, request.precision) if request.bounds_error else None
        if self._terms is not None and request.atol is None:
            self._taken &= self._terms.relative < request.value
        self._bytes = 8 * row.parts * shape[0] * shape[-1]
        self._copied = 4 * shape[-2] * (shape[0] + shape[-1]) if self._converted else 0

    def __call__(self, a: Any, b: Any) -> SpammResult | None:
        """Multiply."""
        if not self._taken:
            return None
        request, x, y = self._request, a, b
        shape = a.shape[0], a.shape[1], b.shape[1]
        if self._bytes + self._copied > UNASKED:
            require_host_free(self._bytes, f"the product of shape {(shape[0], shape[-1])}")
        if self._converted:
            x = as_summed(a)
            y = x if b is a else as_summed(b)
        with np.errstate(all="ignore"):  # what overflows has an infinite bound
            out = np.matmul(x, y)
            if request.alpha != 1:
                np.multiply(out, out.dtype.type(request.alpha), out=out)
            told = dense.tells(x, y, out, request, self._terms)
            alone = request.rtol is not None and request.atol is None
            if not told and not alone:
                return None
            if self._rounded:
                out = _rounded(out, request.arithmetic.output)
        result = SpammResult(
            out,
            tau=0.0,
            valid_ratio=1.0,
            executed_ratio=1.0,
            error_bound=lambda: error_bound(Maps.of(a, b, _block(request, shape)), 0.0, request, shape, 0.0),
            norm_c=lambda: whole_norm(norm_map(out, request.block)),
            norms=lambda: Maps.of(a, b, request.block).kept(request.block),
            method="dense",
        )
        # By the norms of tiles the bound is less than by a look.
        return result if told or result.error_bound_rel <= request.value / (1 + request.value) else None


def threshold_cpu(a: Any, b: Any, request: Request, norms: tuple[Any, Any]) -> Threshold:
    """Return what a request leaves; see :func:`spectile.nearsparse.spamm_threshold`."""
    shape = (*a.shape, b.shape[1])
    # One operand at a time is copied where its rows are not as its norms are taken from.
    needed = max(map(_copied_bytes, (a, b))) + _map_bytes(shape, request.block)
    if needed > UNASKED:
        require_host_free(needed, f"the threshold of a product of shape {(shape[0], shape[2])}")
    maps = Maps.of(a, b, request.block, norms)
    check_norms(maps)
    tau, compared = threshold(maps, request, shape)
    left = share_of(maps.a, maps.b, count_valid(maps.a, maps.b, compared))
    return Threshold(tau, left, error_bound(maps, compared, request, shape, 0.0))


def memory_bytes(a: Any, b: Any, c: Any, direct: Any, request: Request) -> int:
    """Return the memory that a product takes beside what its caller holds, in bytes, where every tile is valid.

    Parameters
    ----------
    a, b, c : numpy.ndarray
        As :func:`spamm_cpu` takes them; `c` may be None.
    direct : numpy.ndarray or None
        What the product is written to, if it is not to memory of its own.
    request : Request
        What is wanted.
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
    a: Any, b: Any, c: Any, out: Any, request: Request, chooses: bool, norms: tuple[Any, Any]
) -> tuple[float, float, Callable[[], float], str, Callable[[], Any]]:
    """Multiply two matrices; return tau, the valid ratio, what bounds the error, what multiplied, what has the norms.

    With `chooses` the dense product does where it is faster: before the threshold is searched, or when it is known.
    """
    shape, given = (*a.shape, b.shape[1]), request.block
    if (block := _block(request, shape)) != given:
        request = dataclasses.replace(request, block=block)
    at_once = chooses and dense.is_taken_at_once(shape, request)
    x = row_major(as_summed(a))
    y = x if b is a else row_major(as_summed(b))
    maps = Maps.of(x, y, request.block, norms)
    kept = functools.partial(maps.kept, given)
    if request.norms_first:
        check_norms(maps)
    if at_once:
        if request.bounds_error:
            allowed(maps, request, shape)
        return *_dense(x, y, out, maps, request, shape), kept
    tau, compared = threshold(maps, request, shape)
    if chooses:
        share = share_of(maps.a, maps.b, count_valid(maps.a, maps.b, compared))
        if dense.is_faster(shape, request, share, is_known=True):
            return *_dense(x, y, out, maps, request, shape), kept
    # C may be overwritten before its norm is asked for.
    norm_c = 0.0 if c is None else whole_norm(norm_map(c, request.block))
    executed = multiply(x, y, maps.a, maps.b, compared, request.block, request.alpha, request.beta, c, out)
    bound = functools.partial(error_bound, maps, compared, request, shape, norm_c)
    return tau, share_of(maps.a, maps.b, executed), bound, "spamm", kept


def _dense(
    a: Any, b: Any, out: Any, maps: Maps, request: Request, shape: tuple[int, int, int]
) -> tuple[float, float, Callable[[], float], str]:
    """Return what :func:`_one` returns but the norms, of the dense product: nothing is skipped."""
    np.matmul(a, b, out=out)
    if request.alpha != 1:
        np.multiply(out, out.dtype.type(request.alpha), out=out)
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
