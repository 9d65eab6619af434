"""SpAMM over several GPUs of one host: every GPU multiplies rows of C, cut where their work is even.

Three placements of the data, each with a plan:

- `Resident`: the operands lie on their GPUs, rows of A and all of B, or all of A and columns of B; C stays there.
- `FromDevice`: all on the first GPU, whose link is the bound.
- `FromHost`: all in host memory (pinned, to be fast), larger than a GPU's memory perhaps.

`Batch` deals whole products.  Cuts are multiples of the tiles', and every part uses the kernel that one GPU would use
for the whole product: the result is that of one GPU, to the bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectile.core import arrays, device, memory, pointers
from spectile.core.places import home_of
from spectile.core.progress import PARTS, Progress
from spectile.nearsparse.cuda import repeated
from spectile.nearsparse.cuda.after import After
from spectile.nearsparse.cuda.geometry import check_sizes, log2, row_major
from spectile.nearsparse.cuda.parts import real_forms
from spectile.nearsparse.multi.batch import Batch, Share, partitioned
from spectile.nearsparse.multi.cut import distribute
from spectile.nearsparse.multi.from_device import FromDevice
from spectile.nearsparse.multi.from_host import FromHost, free_bytes
from spectile.nearsparse.multi.plan import Plan, norm_of_added
from spectile.nearsparse.multi.resident import Resident
from spectile.nearsparse.multi.streams import synchronize
from spectile.nearsparse.operands import copy_if_overlapping, each_product, flat_batch
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Split

__all__ = ["Batch", "FromDevice", "FromHost", "Resident", "current_device", "distribute", "fits", "spamm_devices"]


def fits(a: Any, b: Any, output: str) -> bool:
    """Return whether copies of two host matrices and their product fit the current device, which may be none."""
    device.require_device()
    real_form = 2 * b.nbytes if b.dtype.kind == "c" else 0
    size = a.nbytes + b.nbytes + real_form + a.shape[0] * b.shape[1] * np.dtype(output).itemsize
    return bool(size + size // 20 <= free_bytes())


def current_device() -> list[int]:
    """Return the id of the current device, as a list of devices."""
    import cupy

    return [cupy.cuda.Device().id]


@Progress("spamm", unit=PARTS)
def spamm_devices(
    a: Any, b: Any, c: Any, out: Any, request: Request, devices: Sequence[int], split: Split, key: Any = None
) -> SpammResult:
    """Multiply on several devices; see :func:`spectile.nearsparse.spamm`.

    Operands on their devices that have a `key`, of :func:`spectile.nearsparse.cuda.repeated.key_of`, are planned.
    """
    log2(request.block)
    if isinstance(a, list | tuple):
        return _distributed(a, b, c, out, devices, request, split, key)
    result, plans, batch = _in_one_place(a, b, c, out, devices, request)
    _check_overflow([part for plan in plans for part in plan.outputs()], request)
    # The result may live long, and reads its numbers from the plans.
    for plan in plans:
        plan.release()
    after = After.of(devices)
    if not batch or isinstance(plans[0], Batch):
        return SpammResult(result, **plans[0].numbers(), read=after)
    numbers = [plan.numbers() for plan in plans]
    collected: dict[str, Any] = {name: _collected([listed[name] for listed in numbers], batch) for name in numbers[0]}
    return SpammResult(result, **collected, read=after)


def _check_overflow(outputs: Sequence[Any], request: Request) -> None:
    if request.check_finite and request.precision == "fp16c16" and any(map(_overflows, outputs)):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")


def _collected(listed: list[Any], batch: tuple[int, ...]) -> Callable[[], Any]:
    return lambda: np.array([one() if callable(one) else one for one in listed]).reshape(batch)


def _distributed(
    a: Sequence[Any],
    b: Sequence[Any],
    c: Any,
    out: Any,
    devices: Sequence[int],
    request: Request,
    split: Split,
    key: Any,
) -> SpammResult:
    """Multiply operands of which every device has its parts and copies."""
    if not all(arrays.on_device(part) for part in (*a, *b, *(c or ()), *(out or ()))):
        raise ValueError("distributed operands are GPU arrays, one a device: see distribute")
    given, output = _on_devices("a", a, devices), request.arithmetic.output
    mine, copies, added, targets = (
        [row_major(name, part, on_device=True) for part, _ in _on_devices(name, parts or (), devices)]
        for name, parts in (("a", a), ("b", b), ("c", c), ("out", out))
    )
    added = _there(mine, lambda part: part.astype(output, copy=False), added)
    shapes = [
        (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        for x, y in zip(mine, copies, strict=True)
    ]
    if targets:
        _there(mine, lambda part, shape: pointers.output("out", part, output, shape), targets, shapes)
        # Every device reads all of its operands while it writes.
        mine, copies = pointers.apart(targets, mine, copies)
        added = [
            copy_if_overlapping(pointers.apart([y for y in targets if y is not z], x)[0], z, True)
            for x, z in zip(added, targets, strict=False)
        ]
    else:
        targets = _there(mine, lambda shape: _empty(shape, output), shapes)
    result = out or [give(part) for (_, give), part in zip(given, targets, strict=True)]
    if max(map(len, shapes)) > 2:
        return _batch(mine, copies, added, targets, devices, request, result)
    plan = functools.partial(Resident, mine, copies, targets, request, added or None, split)
    if key is not None and all(x is y for x, y in zip((*a, *b), (*mine, *copies), strict=True)):
        planned = repeated.execute(key, mine, copies, targets, request.value, plan)
        if planned is not None:
            planned.c = result
            return planned
    once = plan()
    tau, norm_c = once.threshold(mine, copies), norm_of_added(added, targets, request.block)
    norms = once.run(mine, copies, targets, tau, added or None)
    assert norms is not None  # operands that overlap a target were copied
    _check_overflow(targets, request)
    return once.result(result, norms, norm_c)


def _batch(
    a: list[Any], b: list[Any], c: list[Any], out: list[Any], devices: Sequence[int], request: Request, result: Any
) -> SpammResult:
    """Multiply the products of a batch, whole ones on every device."""
    parts = list(zip(a, b, c or [None] * len(a), out, strict=True))
    if request.arithmetic.parts == 2:
        parts = _there(a, lambda one: real_forms(*one), parts)
    shares = [Share(index, x, y, z, w) for index, (x, y, w, z) in zip(devices, parts, strict=True) if z.size]
    plan = Batch(shares, request, (sum(map(len, out)),))
    plan()
    _check_overflow(out, request)
    plan.release()
    return SpammResult(result, **plan.numbers(), read=After.of(devices))


def _there(places: list[Any], work: Callable[..., Any], *given: list[Any]) -> list[Any]:
    """Return what `work` makes of each of `given`, on the device of the array at its place."""
    made = []
    for place, *one in zip(places, *given, strict=False):
        with place.device:
            made.append(work(*one))
    return made


def _empty(shape: tuple[int, ...], dtype: str) -> Any:
    import cupy

    with memory.allocating(f"the product of shape {shape}", math.prod(shape) * np.dtype(dtype).itemsize):
        return cupy.empty(shape, dtype)


def _in_one_place(
    a: Any, b: Any, c: Any, out: Any, devices: Sequence[int], request: Request
) -> tuple[Any, list[Plan], tuple[int, ...]]:
    """Multiply what lies on one of the devices, or in host memory, and wait for it there."""
    import cupy

    on_gpu, output = arrays.on_device(a), request.arithmetic.output
    kind, home, order, target = lambda result: result, devices[0], list(devices), out
    if on_gpu:
        (a, kind), (b, _) = arrays.to_device(a, "a"), arrays.to_device(b, "b")
        c, target = (None if x is None else arrays.to_device(x, name)[0] for name, x in (("c", c), ("out", out)))
        there = {name: x.device.id for name, x in (("a", a), ("b", b), ("c", c), ("out", target)) if x is not None}
        home = home_of(there, devices)
        order.sort(key=lambda index: index != home)
    with cupy.cuda.Device(home):
        a, b = (_with_rows(name, x) for name, x in (("a", a), ("b", b)))
        c = None if c is None else _with_rows("c", c.astype(output, copy=False))
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
        if target is not None:
            pointers.output("out", target, output, shape)
        # Rows of `out` would overwrite operands that others still read.
        fresh = target is None or any(pointers.overlap(target, x) for x in (a, b))
        c = copy_if_overlapping(c, target, direct=not fresh)
        result = (_empty if on_gpu else np.empty)(shape, output) if fresh else target
        forms = (a, b, c, result) if request.arithmetic.parts == 1 else real_forms(a, b, c, result)
        plans = _multiply(*forms, batch, order, request)
        if not on_gpu:
            for index in devices:
                with cupy.cuda.Device(index):
                    synchronize()
        if target is not None and fresh:
            target[...] = result
    return (kind(result) if out is None else out), plans, batch


def _multiply(
    a: Any, b: Any, c: Any, out: Any, batch: tuple[int, ...], devices: Sequence[int], request: Request
) -> list[Plan]:
    """Multiply real forms; return the plans that did."""
    x, y, added, z = (flat_batch(one, batch) for one in (a, b, c, out))
    if math.prod(batch) >= max(2, len(devices)) and x is not None and y is not None:
        several = Batch(partitioned(x, y, z, added, devices), request, batch)
        several()
        several.check_host()
        return [several]
    plans: list[Plan] = []
    for x, y, added, z in each_product(a, b, c, out, batch):
        if isinstance(x, np.ndarray):
            streamed = FromHost(x, y, z, devices, request, added)
            streamed()
            streamed.wait()
            streamed.check_host()
            plans.append(streamed)
        else:
            plans.append(FromDevice(x, y, z, devices, request, added))
            plans[-1]()
    return plans


def _with_rows(name: str, x: Any) -> Any:
    """Return `x`, copied where its rows are not contiguous; of the device, refused."""
    if not isinstance(x, np.ndarray):
        return row_major(name, x, on_device=True)
    check_sizes(name, x)
    return x if x.strides[-1] == x.itemsize and x.strides[-2] > 0 else np.ascontiguousarray(x)


def _on_devices(name: str, parts: Sequence[Any], devices: Sequence[int]) -> list[tuple[Any, Callable[[Any], Any]]]:
    """Return each part as a CuPy array of its device, and the function that gives one back in its kind."""
    import cupy

    listed = []
    for part, index in zip(parts, devices, strict=False):
        # CuPy would copy what lies on another than the current device.
        with cupy.cuda.Device(index):
            listed.append(arrays.to_device(part, name))
            arrays.require_here(name, listed[-1][0])
    return listed


def _overflows(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return bool(np.isinf(part).any())
    with part.device:
        return bool(abs(part).max() == math.inf) if part.size else False
