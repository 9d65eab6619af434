"""The CUDA backend of SpAMM: what is asked for, turned into norm maps, thresholds and products.

Kernels: ``norm_map.cu``, ``survey.cu`` (counts, bound, search), ``order.cu`` (tiles by falling work), ``product.cu``
(mma.sync and FFMA, every precision, sm_80 and later), ``product_wgmma.cu`` (float16) and ``product_tf32.cu`` (3xTF32),
both on ``hopper.cu``, ``product_blocks.cu`` (strict at blocks below 32).
Everything runs on CuPy's current stream; nothing is read back before a number of the result is asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import arrays, device, memory
from spectile.nearsparse.cuda.launch import log2, row_major
from spectile.nearsparse.cuda.norms import NormMaps, Norms, check_norms, norm_map_cuda
from spectile.nearsparse.cuda.product import Product, choose_kernel
from spectile.nearsparse.cuda.survey import (
    count_products,
    frobenius,
    kept_norms,
    rounding,
    search_tau,
    skipped_bound,
    tau_for_error,
    tune_tau_cuda,
)
from spectile.nearsparse.cuda.units import PORTABLE, Kernel
from spectile.nearsparse.result import SpammResult

__all__ = [
    "Kernel",
    "NormMaps",
    "Norms",
    "Product",
    "choose_kernel",
    "count_products",
    "norm_map_cuda",
    "search_tau",
    "skipped_bound",
    "spamm_cuda",
    "tune_tau_cuda",
]


# Products of a batch that one launch takes: the norm kernel has two layers of thread blocks for each, 65,535 at most.
LAUNCHED_ITEMS = 32767


def _flat(array: Any, batch: tuple[int, ...]) -> Any:
    """Return `array` as one matrix or one flat batch without copying, or None where broadcasting is more involved."""
    if math.prod(array.shape[:-2]) == 1:
        return array.reshape(array.shape[-2:])
    if array.shape[:-2] != batch:
        return None
    flat = array.reshape(-1, *array.shape[-2:])
    return flat if flat.data.ptr == array.data.ptr else None


@dataclass(frozen=True)
class _Options:
    """How a product is asked for; see :func:`spectile.nearsparse.spamm`."""

    tau: float | None
    valid_ratio: float | None
    rtol: float | None
    block: int
    alpha: float
    beta: float
    strict: bool
    precision: str
    check_finite: bool


def spamm_cuda(a: Any, b: Any, *, c: Any, out: Any, **options: Any) -> SpammResult:
    """Multiply on the current device and stream; see :func:`spectile.nearsparse.spamm`."""
    import cupy

    asked = _Options(**options)
    precision = asked.precision
    device.require_device()
    log2(asked.block)
    (a_, to_caller_kind), (b_, _) = arrays.to_device(a), arrays.to_device(b)
    a_, b_ = (row_major(n, x, on_device=arrays.on_device(y)) for n, x, y in (("a", a_, a), ("b", b_, b)))
    c_ = None
    dtype = np.dtype(PORTABLE[precision].output)
    if c is not None:
        # Another dtype of C is converted: the kernels read beta C in the dtype of the result.
        c_ = row_major("c", cupy.asarray(arrays.to_device(c)[0], dtype=dtype), on_device=arrays.on_device(c))
    batch = np.broadcast_shapes(a_.shape[:-2], b_.shape[:-2])
    shape = (*batch, a_.shape[-2], b_.shape[-1])
    direct = out is not None and arrays.on_device(out)
    target = arrays.to_device(out)[0] if direct else None
    if target is not None and not target.flags.c_contiguous:
        raise ValueError(f"out has strides {target.strides}: pass a C-contiguous array")
    # Blocks of `out` would overwrite operands that others still read.
    fresh = target is None or any(cupy.may_share_memory(target, x) for x in (a_, b_))
    overwritten = False
    if target is not None and c_ is not None and cupy.may_share_memory(target, c_):
        # An entry of C is read just before the same one of `out` is written, and only that one.
        overwritten = not fresh and target.data.ptr == c_.data.ptr and target.strides == c_.strides
        c_ = c_ if overwritten else c_.copy()
    size = math.prod(shape) * dtype.itemsize
    with memory.allocating(f"the product of shape {shape}", size):
        result: Any = cupy.empty(shape, dtype) if fresh else target
        parts = _multiply(a_, b_, c_, result, batch, asked, overwritten)
    if asked.check_finite and precision == "fp16c16" and result.size and bool(cupy.isinf(result).any()):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    if target is not None and result is not target:
        target[...] = result
    if out is not None and not direct:
        out[...] = cupy.asnumpy(result)
    returned = out if out is not None else to_caller_kind(result)

    def collect(number: Callable[[_Item], float]) -> Callable[[], Any]:
        def read() -> Any:
            values = np.array([number(part) for part in parts]).reshape(batch)
            return float(values) if values.ndim == 0 else values

        return read

    return SpammResult(
        returned,
        tau=collect(_Item.threshold),
        valid_ratio=collect(_Item.valid_ratio),
        executed_ratio=collect(_Item.executed_ratio),
        error_bound=collect(_Item.error_bound),
        norm_c=collect(_Item.norm_c),
    )


@dataclass
class _Item:
    """One product of a batch: where its numbers are on the device."""

    product: Product
    item: tuple[int, int]
    tau: Any
    precision: str
    alpha: float
    beta: float
    #: What beta multiplies, or an array of its norm where it is overwritten.
    c: Any
    out: Any

    def _device_tau(self) -> Any:
        import cupy

        return cupy.asarray([self.tau]) if isinstance(self.tau, float) else self.tau

    def threshold(self) -> float:
        return self.tau if isinstance(self.tau, float) else float(self.tau[0])

    def _ratio(self, grain: tuple[int, int, int]) -> float:
        norms_a, norms_b = self.product.maps.of(self.item)
        total = norms_a.size * norms_b.shape[0]
        if total == 0:
            return 1.0
        return float(count_products(self.product.maps, self.item, self._device_tau(), grain)[0]) / total

    def valid_ratio(self) -> float:
        return self._ratio((1, 1, 1))

    def executed_ratio(self) -> float:
        return self._ratio(self.product.grain)

    def error_bound(self) -> float:
        norms_a, norms_b = self.product.maps.of(self.item)
        skipped = float(skipped_bound(self.product.maps, self.item, self._device_tau()))
        norm_c = frobenius(self.c) if self.c is not None else 0.0
        lost = rounding(self.product.shape, norms_a, norms_b, self.precision, self.alpha, self.beta, norm_c)
        return abs(self.alpha) * skipped + lost

    def norm_c(self) -> float:
        return frobenius(self.out)


def _multiply(
    a: Any, b: Any, c: Any, out: Any, batch: tuple[int, ...], asked: _Options, overwritten: bool
) -> list[_Item]:
    """Launch everything; return one entry for each product of the batch.  C may be `overwritten` by `out`."""
    import cupy

    tau, precision, alpha, beta = asked.tau, asked.precision, asked.alpha, asked.beta
    flat_a, flat_b = _flat(a, batch), _flat(b, batch)
    if flat_a is None or flat_b is None:
        # Involved broadcasting: one product at a time, still without copies.
        wide_a, wide_b = (cupy.broadcast_to(a, (*batch, *a.shape[-2:])), cupy.broadcast_to(b, (*batch, *b.shape[-2:])))
        return list(
            itertools.chain.from_iterable(
                _multiply(wide_a[i], wide_b[i], None if c is None else c[i], out[i], (), asked, overwritten)
                for i in np.ndindex(batch)
            )
        )
    flat_out = out.reshape(-1, *out.shape[-2:]) if batch else out
    flat_c = None if c is None else (c.reshape(flat_out.shape) if batch else c)
    count = flat_out.shape[0] if batch else 1
    if count > LAUNCHED_ITEMS:
        found: list[_Item] = []
        for first in range(0, count, LAUNCHED_ITEMS):
            some = slice(first, first + LAUNCHED_ITEMS)
            x, y, z = (one if one is None or one.ndim == 2 else one[some] for one in (flat_a, flat_b, flat_c))
            target = flat_out[some]
            found += _multiply(x, y, z, target, (len(target),), asked, overwritten)
        return found
    items = [(i if flat_a.ndim == 3 else 0, i if flat_b.ndim == 3 else 0) for i in range(count)]
    added = kept_norms(flat_c, asked.block) if overwritten else flat_c
    maps = NormMaps(flat_a, flat_b, asked.block)
    if flat_a.size or flat_b.size:
        maps()
    if asked.check_finite or tau is None:
        check_norms(maps, flat_a, flat_b)
    taus: Any = tau
    if asked.valid_ratio is not None:
        searches = [search_tau(maps, item, asked.valid_ratio)[0] for item in items]
        taus = cupy.concatenate(searches) if items else cupy.empty(0)
    elif asked.rtol is not None:
        shape = (a.shape[-2], a.shape[-1], b.shape[-1])
        taus = cupy.asarray([tau_for_error(maps, item, asked.rtol, shape, precision) for item in items], np.float64)
    else:
        assert tau is not None
        taus = float(tau)
    product = Product(
        flat_a, flat_b, flat_out, maps, taus,
        precision=precision, alpha=alpha, beta=beta, c=flat_c, strict=asked.strict,
    )  # fmt: skip
    if flat_out.size:
        product()
    return [
        _Item(
            product, item, taus if isinstance(taus, float) else taus[i : i + 1], precision, alpha, beta,
            None if added is None else (added[i] if batch else added), flat_out[i] if batch else flat_out,
        )
        for i, item in enumerate(items)
    ]  # fmt: skip
