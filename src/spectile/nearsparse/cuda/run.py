"""The CUDA backend of SpAMM: a request turned into norm maps, thresholds and products.

Kernels: ``norm_map.cu``, ``survey.cu`` (counts, bound, search), ``product.cu``
(mma.sync and FFMA, every precision, sm_80 and later), ``product_wgmma.cu`` (float16) and ``product_tf32.cu`` (3xTF32),
both on ``hopper.cuh``, ``product_blocks.cu`` (strict at blocks below 32).
Everything runs on CuPy's current stream; nothing is read back before a number of the result is asked for.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import arrays, device, memory, pointers
from spectile.core.pointers import address
from spectile.nearsparse import checks
from spectile.nearsparse.cuda import dense, parts, repeated
from spectile.nearsparse.cuda.after import After
from spectile.nearsparse.cuda.choose import LAUNCHED_ITEMS
from spectile.nearsparse.cuda.geometry import log2, row_major
from spectile.nearsparse.cuda.norms import NormMaps, Norms, check_norms, told, told_grain
from spectile.nearsparse.cuda.plan import DenseNorms, dense_result
from spectile.nearsparse.cuda.product import Product, prepared_choice
from spectile.nearsparse.cuda.search import Wanted, check_error, found, search, threshold
from spectile.nearsparse.cuda.survey import error_bound, frobenius, kept_norms, ratio
from spectile.nearsparse.operands import copy_if_overlapping, each_product, flat_batch
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Threshold


def spamm_cuda(a: Any, b: Any, c: Any, out: Any, request: Request, key: Any = None) -> SpammResult:
    """Multiply on the current device and stream; see :func:`spectile.nearsparse.spamm`.

    A product that has a `key`, of :func:`spectile.nearsparse.cuda.repeated.key_of`, is planned; batches, sums with C,
    those that are checked for NaN, and those in a capture are not.
    """
    import cupy

    device.require_device()
    log2(request.block)
    product = _Arrays.of(a, b, c, out, request)
    with memory.allocating(f"the product of shape {product.shape}", product.bytes):
        target: Any = cupy.empty(product.shape, request.arithmetic.output) if product.fresh else product.out
        if key is not None and 0 not in (*a.shape, b.shape[1]) and (out is None or not product.fresh):
            plan = functools.partial(repeated.planned, a, b, target, request)
            result = repeated.execute(key, a, b, target, request.value, plan)
            if result is not None:
                return result
        items = _multiply(product.a, product.b, product.c, target, product.batch, request)
    if request.check_finite and request.precision == "fp16c16" and target.size and bool(cupy.isinf(target).any()):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    return _result(product.returned(target, out), items, product.batch)


def threshold_cuda(a: Any, b: Any, request: Request) -> Threshold:
    """Return what a request leaves; see :func:`spectile.nearsparse.spamm_threshold`.  Reads the numbers back."""
    device.require_device()
    log2(request.block)
    product = _Arrays.of(a, b, None, None, request)
    shape = (*product.a.shape, product.b.shape[1])
    a, b = product.a, product.b
    if request.arithmetic.parts == 2:
        a, b, _, _ = parts.real_forms(a, b, None, None)
    maps = told(_measured(a, b, request), request)
    check_norms(maps, a, b)
    tau = threshold(maps, (0, 0), request, shape)
    return Threshold(tau, ratio(maps, (0, 0), tau), error_bound(maps, (0, 0), tau, request, shape, 0.0))


def norm_map_cuda(a: Any, block: int) -> Any:
    """Return the norm map of one matrix, float64 (float32 for float16), of the kind of `a`."""
    import cupy

    matrix, to_caller_kind = arrays.to_device(a, "a")
    arrays.require_here("a", matrix)
    if matrix.ndim != 2:
        raise ValueError(f"a norm map is of a matrix, not of an array with {matrix.ndim} dimensions: pass one matrix")
    checks.check_precision(matrix, matrix, None, "cuda")
    matrix = row_major("a", matrix, on_device=True)
    paired = matrix.dtype.kind == "c"
    matrix = parts.real_view(matrix) if paired else matrix
    maps = NormMaps(matrix, cupy.empty((matrix.shape[1], 0), matrix.dtype), block, paired=paired)
    if matrix.size:
        maps()
    return to_caller_kind(maps.tiles.a if paired else maps.a)


@dataclass
class _Arrays:
    """The operands on the device, and where the result goes."""

    a: Any
    b: Any
    c: Any
    out: Any
    #: Whether the product writes to memory of its own, since `out` is not on the device or is still to be read.
    fresh: bool
    batch: tuple[int, ...]
    dtype: Any
    to_caller_kind: Callable[[Any], Any]

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, out: Any, request: Request) -> _Arrays:
        import cupy

        dtype = np.dtype(request.arithmetic.output)
        (a_, to_caller_kind), (b_, _) = arrays.to_device(a, "a"), arrays.to_device(b, "b")
        target = arrays.to_device(out, "out")[0] if out is not None and arrays.on_device(out) else None
        added = None if c is None else arrays.to_device(c, "c")[0]
        for name, x in (("a", a_), ("b", b_), ("c", added), ("out", target)):
            if x is not None:
                arrays.require_here(name, x)
        a_, b_ = (row_major(n, x, on_device=arrays.on_device(y)) for n, x, y in (("a", a_, a), ("b", b_, b)))
        c_ = None
        if c is not None:
            # Another dtype of C is converted: the kernels read beta C in the dtype of the result.
            c_ = row_major("c", cupy.asarray(added, dtype=dtype), on_device=arrays.on_device(c))
        batch = np.broadcast_shapes(a_.shape[:-2], b_.shape[:-2])
        if target is not None:
            pointers.output("out", target, dtype, (*batch, a_.shape[-2], b_.shape[-1]))
        # Blocks of `out` would overwrite operands that others still read.
        fresh = target is None or any(pointers.overlap(target, x) for x in (a_, b_))
        c_ = copy_if_overlapping(c_, target, direct=not fresh)
        return cls(a_, b_, c_, target, fresh, batch, dtype, to_caller_kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of C."""
        return (*self.batch, self.a.shape[-2], self.b.shape[-1])

    @property
    def bytes(self) -> int:
        """Size of C."""
        return math.prod(self.shape) * self.dtype.itemsize

    def returned(self, result: Any, out: Any) -> Any:
        """Return `out` with the result in it, or the result in the kind of the operands."""
        import cupy

        if out is None:
            return self.to_caller_kind(result)
        if self.out is None:
            out[...] = cupy.asnumpy(result)
        elif self.fresh:
            self.out[...] = result
        return out


def _result(returned: Any, items: list[_Item], batch: tuple[int, ...]) -> SpammResult:
    import cupy

    after = After.of([cupy.cuda.runtime.getDevice()])
    if len(items) == 1 and items[0].product is None:
        one = items[0]
        result = dense_result(one.out, one.maps, one.request, one.shape, one.request.value, one.norm_c, read=after)
        result.c = returned
        return result

    def collect(number: Callable[[_Item], float]) -> Callable[[], Any]:
        def read() -> Any:
            values = np.array([number(item) for item in items]).reshape(batch)
            return float(values) if values.ndim == 0 else values

        return read

    return SpammResult(
        returned,
        tau=collect(lambda item: found(item.tau, item.request)),
        valid_ratio=collect(lambda item: ratio(item.maps, item.index, item.tau)),
        executed_ratio=collect(_Item.executed_ratio),
        error_bound=collect(_Item.error_bound),
        norm_c=collect(lambda item: frobenius(item.out)),
        read=after,
    )


@dataclass
class _Item:
    """One product of a batch: where its numbers are on the device."""

    #: None where the dense product ran.
    product: Product | None
    #: Its matrices of A and B in their batches.
    index: tuple[int, int]
    tau: Any
    request: Request
    #: What beta multiplies, or an array of its norm where it is overwritten.
    c: Any
    out: Any
    maps: Norms
    #: (m, k, n).
    shape: tuple[int, int, int]

    def norm_c(self) -> float:
        """Return the norm of what beta multiplies."""
        return frobenius(self.c) if self.c is not None else 0.0

    def error_bound(self) -> float:
        """Return the bound of the error."""
        return error_bound(self.maps, self.index, self.tau, self.request, self.shape, self.norm_c())

    def executed_ratio(self) -> float:
        """Return the share of the tile products that were multiplied."""
        if self.product is None:
            return 1.0
        return ratio(self.maps, self.index, self.tau, told_grain(self.product.grain, self.request))


def _multiply(a: Any, b: Any, c: Any, out: Any, batch: tuple[int, ...], request: Request) -> list[_Item]:
    """Launch everything; return one entry for each product of the batch.  C may be `out`."""
    flat_a, flat_b = flat_batch(a, batch), flat_batch(b, batch)
    if flat_a is None or flat_b is None:
        # Involved broadcasting: one product at a time, still without copies.
        return list(
            itertools.chain.from_iterable(_multiply(*one, (), request) for one in each_product(a, b, c, out, batch))
        )
    flat_out = out.reshape(math.prod(batch), *out.shape[-2:]) if batch else out
    flat_c = None if c is None else (c.reshape(flat_out.shape) if batch else c)
    count = flat_out.shape[0] if batch else 1
    items: list[_Item] = []
    for first in range(0, count, LAUNCHED_ITEMS):
        part = slice(first, first + LAUNCHED_ITEMS)
        x, y, added, target = (
            one if one is None or one.ndim == 2 else one[part] for one in (flat_a, flat_b, flat_c, flat_out)
        )
        items += _launch(x, y, added, target, request)
    return items


def _launch(a: Any, b: Any, c: Any, out: Any, request: Request) -> list[_Item]:
    """Launch one product, or a flat batch of them."""
    count = out.shape[0] if out.ndim == 3 else 1
    indices = [(i if a.ndim == 3 else 0, i if b.ndim == 3 else 0) for i in range(count)]
    shape = (a.shape[-2], a.shape[-1], b.shape[-1])
    overwritten = c is not None and address(c) == address(out) and c.size > 0
    added = c if c is None or request.arithmetic.parts == 1 else parts.real_view(c)
    added = kept_norms(added, request.block) if overwritten else added
    # Of a batch every product is SpAMM's.
    chooses = out.ndim == 2 and a.size > 0 < b.size
    verdict, limit = dense.decide_here(shape, request) if chooses else ("spamm", 1.0)
    if verdict == "dense" and request.check_finite:
        verdict, limit = "count", -1.0
    if verdict == "dense":
        check_error(request, request.value, shape)
        dense.multiply(a, b, c, out, request)
        return [_Item(None, (0, 0), 0.0, request, added, out, DenseNorms(a, b, request.block), shape)]
    x, y, beside, z = (a, b, c, out) if request.arithmetic.parts == 1 else parts.real_forms(a, b, c, out)
    choice = prepared_choice(x, y, z, request.real, counts=verdict == "count")
    multiplied = _measured(x, y, request)
    maps = told(multiplied, request)
    if request.check_finite:
        check_norms(maps, x, y)
    taus = _thresholds(maps, indices, request, shape)
    if request.check_finite and request.tau is None:
        for i in range(len(indices)):
            found(taus[i : i + 1], request)
    if verdict == "count" and ratio(maps, (0, 0), taus) > limit:
        dense.multiply(a, b, c, out, request)
        return [_Item(None, (0, 0), 0.0, request, added, out, maps, shape)]
    product = Product(
        x, y, z, multiplied, taus,
        precision=request.real.precision, alpha=request.alpha, beta=request.beta, c=beside, choice=choice,
    )  # fmt: skip
    if out.size:
        product()
    return [
        _Item(
            product, index, taus if isinstance(taus, float) else taus[i : i + 1], request,
            added if added is None or out.ndim == 2 else added[i], out if out.ndim == 2 else out[i], maps, shape,
        )
        for i, index in enumerate(indices)
    ]  # fmt: skip


def _measured(a: Any, b: Any, request: Request) -> NormMaps:
    """Return the norm maps of the real forms of A and B, enqueued."""
    maps = NormMaps(a, b, request.block, paired=request.arithmetic.parts == 2)
    if request.norms is not None:
        maps.take(*(arrays.to_device(x, "a norm map")[0] for x in request.norms))
    elif a.size or b.size:
        maps()
    return maps


def _thresholds(maps: Norms, indices: list[tuple[int, int]], request: Request, shape: tuple[int, int, int]) -> Any:
    """Return tau, or an array on the device of one for each product."""
    import cupy

    if request.tau is not None:
        return float(request.tau)
    wanted = Wanted.of(request)
    results = [search(maps, index, wanted, shape, request.precision)[:1] for index in indices]
    return results[0] if len(results) == 1 else cupy.concatenate(results) if results else cupy.empty(0)
