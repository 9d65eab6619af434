"""SpAMM over several GPUs of one host: every GPU multiplies rows of C, cut where their work is even.

Three placements of the data, each a plan that is made once and can be called many times:

- `Resident`: the operands lie on their GPUs, rows of A and all of B, or all of A and columns of B; C stays there.
- `FromDevice`: all on the first GPU, whose link is the bound.
- `FromHost`: all in host memory (pinned, to be fast), larger than a GPU's memory perhaps.

`Batch` deals whole products.  Cuts are multiples of the tiles', and every part uses the kernel that one GPU would use
for the whole product: the result is that of one GPU, to the bit.  The same device may be named several times.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectile.core import arrays, device, pointers
from spectile.nearsparse.cuda.after import After
from spectile.nearsparse.cuda.geometry import check_sizes, log2, row_major
from spectile.nearsparse.multi.batch import Batch, Share, partitioned
from spectile.nearsparse.multi.cut import distribute
from spectile.nearsparse.multi.from_device import FromDevice
from spectile.nearsparse.multi.from_host import FromHost, free_bytes
from spectile.nearsparse.multi.plan import Plan
from spectile.nearsparse.multi.resident import Resident
from spectile.nearsparse.multi.streams import synchronize
from spectile.nearsparse.operands import copy_if_overlapping, each_product, flat_batch
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Split

__all__ = [
    "Batch",
    "FromDevice",
    "FromHost",
    "Resident",
    "current_device",
    "device_list",
    "distribute",
    "fits",
    "spamm_devices",
]


def fits(a: Any, b: Any, output: str) -> bool:
    """Return whether copies of two host matrices and their product fit the current device, which may be none."""
    device.require_device()
    size = a.nbytes + b.nbytes + a.shape[0] * b.shape[1] * np.dtype(output).itemsize
    return size + size // 20 <= free_bytes()


def current_device() -> list[int]:
    """Return the id of the current device, as a list of devices."""
    import cupy

    return [cupy.cuda.Device().id]


def device_list(devices: int | Sequence[int]) -> list[int]:
    """Return the ids of the devices asked for: the first so many, or those named.

    Raises
    ------
    ValueError
        If there are fewer.
    """
    device.require_device()
    import cupy

    visible = cupy.cuda.runtime.getDeviceCount()
    if isinstance(devices, (int, np.integer)):
        listed = list(range(devices)) if devices <= visible else [visible]
    else:
        listed = [int(index) for index in devices]
    if not listed or min(listed) < 0 or max(listed) >= visible:
        raise ValueError(
            f"devices = {reprlib.repr(devices)}: {visible} are visible, name some of 0 to {visible - 1} or their number"
        )
    return listed


def spamm_devices(
    a: Any, b: Any, c: Any, out: Any, request: Request, devices: Sequence[int], split: Split
) -> SpammResult:
    """Multiply on several devices; see :func:`spectile.nearsparse.spamm`."""
    log2(request.block)
    if isinstance(a, list | tuple):
        result, plans, batch = _on_parts(a, b, c, out, devices, request, split)
    else:
        place = _on_first if arrays.on_device(a) else _on_host
        result, plans, batch = place(a, b, c, out, devices, request)
    outputs = [part for plan in plans for part in plan.outputs()]
    # The result may live long, and reads its numbers from the plans.
    for plan in plans:
        plan.release()
    if request.check_finite and request.precision == "fp16c16" and any(map(_overflows, outputs)):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    after = After(devices)
    if not batch or isinstance(plans[0], Batch):
        return SpammResult(result, **plans[0].numbers(), read=after)
    numbers = [plan.numbers() for plan in plans]
    collected: dict[str, Any] = {name: _collected([listed[name] for listed in numbers], batch) for name in numbers[0]}
    return SpammResult(result, **collected, read=after)


def _collected(listed: list[Any], batch: tuple[int, ...]) -> Callable[[], Any]:
    return lambda: np.array([one() if callable(one) else one for one in listed]).reshape(batch)


def _on_parts(
    a: Sequence[Any], b: Sequence[Any], c: Any, out: Any, devices: Sequence[int], request: Request, split: Split
) -> tuple[Any, list[Plan], tuple[int, ...]]:
    """Multiply distributed operands."""
    if not all(arrays.on_device(part) for part in (*a, *b, *(c or ()), *(out or ()))):
        raise ValueError("distributed operands are GPU arrays, one a device: see distribute")
    given = _on_devices("a", a, devices)
    mine, copies, added, targets = (
        [row_major(name, part, on_device=True) for part, _ in _on_devices(name, parts or (), devices)]
        for name, parts in (("a", a), ("b", b), ("c", c), ("out", out))
    )
    for part, x, y in zip(targets, mine, copies, strict=False):
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        with part.device:
            pointers.output("out", part, request.arithmetic.output, shape)
    added = _of_dtype(added, request)
    if targets:
        # Every device reads all of its operands while it writes.
        mine, copies = (_apart(parts, targets) for parts in (mine, copies))
        added = [
            copy_if_overlapping(_apart([x], [y for y in targets if y is not z])[0], z, True)
            for x, z in zip(added, targets, strict=False)
        ]
    plan: Plan
    batch: tuple[int, ...] = ()
    if max(part.ndim for part in (*mine, *copies)) > 2:
        targets = targets or _empty(mine, copies, request)
        shares = [
            Share(index, x, y, z, added[number] if added else None)
            for number, (index, x, y, z) in enumerate(zip(devices, mine, copies, targets, strict=True))
            if z.size
        ]
        batch = (sum(len(part) for part in targets),)
        plan = Batch(shares, request, batch)
    else:
        plan = Resident(mine, copies, targets or None, request, added or None, split)
        targets = plan.out
    plan()
    result = out
    if out is None:
        result = [give(part) for (_, give), part in zip(given, targets, strict=True)]
    return result, [plan], batch


def _apart(parts: list[Any], targets: list[Any]) -> list[Any]:
    """Return arrays, copied where a target overlaps them."""
    return [_copied(part) if any(pointers.overlap(part, target) for target in targets) else part for part in parts]


def _copied(part: Any) -> Any:
    with part.device:
        return part.copy()


def _empty(a: Sequence[Any], b: Sequence[Any], request: Request) -> list[Any]:
    """Return a new C for each pair of parts of a batch."""
    import cupy

    listed = []
    for x, y in zip(a, b, strict=True):
        with x.device:
            count = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            listed.append(cupy.empty((*count, x.shape[-2], y.shape[-1]), request.arithmetic.output))
    return listed


def _of_dtype(parts: list[Any], request: Request) -> list[Any]:
    """Return arrays, converted to the dtype of C where they have another."""
    listed = []
    for part in parts:
        with part.device:
            listed.append(part.astype(request.arithmetic.output, copy=False))
    return listed


def _on_first(
    a: Any, b: Any, c: Any, out: Any, devices: Sequence[int], request: Request
) -> tuple[Any, list[Plan], tuple[int, ...]]:
    """Multiply what lies on one of the devices."""
    import cupy

    (a_, to_caller_kind), (b_, _) = arrays.to_device(a, "a"), arrays.to_device(b, "b")
    c_, target = (None if x is None else arrays.to_device(x, name)[0] for name, x in (("c", c), ("out", out)))
    home = a_.device
    for name, x in (("b", b_), ("c", c_), ("out", target)):
        if x is not None and (home.id not in devices or x.device != home):
            raise ValueError(
                f"a and {name} lie on devices {home.id} and {x.device.id}: both must lie on one of devices = {devices}"
            )
    order = sorted(devices, key=lambda index: index != home.id)
    with home:
        a_, b_ = (row_major(name, x, on_device=True) for name, x in (("a", a_), ("b", b_)))
        if c_ is not None:
            c_ = row_major("c", c_.astype(request.arithmetic.output, copy=False), on_device=True)
        batch = np.broadcast_shapes(a_.shape[:-2], b_.shape[:-2])
        if target is not None:
            pointers.output("out", target, request.arithmetic.output, (*batch, a_.shape[-2], b_.shape[-1]))
        # Rows of `out` would overwrite operands that others still read.
        fresh = target is None or any(pointers.overlap(target, x) for x in (a_, b_))
        c_ = copy_if_overlapping(c_, target, direct=not fresh)
        result = cupy.empty((*batch, a_.shape[-2], b_.shape[-1]), request.arithmetic.output) if fresh else target
        flat = [flat_batch(x, batch) for x in (a_, b_, c_, result)]
        plans: list[Plan]
        if math.prod(batch) >= max(2, len(devices)) and flat[0] is not None and flat[1] is not None:
            plans = [Batch(partitioned(flat[0], flat[1], flat[3], flat[2], order), request, batch)]
            plans[0]()
        else:
            plans = []
            for x, y, added, z in each_product(a_, b_, c_, result, batch):
                plans.append(FromDevice(x, y, z, order, request, added))
                plans[-1]()
        if target is not None and fresh:
            target[...] = result
    return (to_caller_kind(result) if out is None else out), plans, batch


def _on_host(
    a: Any, b: Any, c: Any, out: Any, devices: Sequence[int], request: Request
) -> tuple[Any, list[Plan], tuple[int, ...]]:
    """Multiply what lies in host memory, and wait for it."""
    import cupy

    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    for name, x in (("a", a), ("b", b)):
        check_sizes(name, x)
    a, b = (_with_rows(x) for x in (a, b))
    if c is not None:
        c = _with_rows(c.astype(request.arithmetic.output, copy=False))
    fresh = out is None or any(pointers.overlap(out, x) for x in (a, b))
    c = copy_if_overlapping(c, out, direct=not fresh)
    result = np.empty((*batch, a.shape[-2], b.shape[-1]), request.arithmetic.output) if fresh else out
    plans: list[Plan]
    if math.prod(batch) >= max(2, len(devices)):
        flat = [flat_batch(x, batch) for x in (a, b)]
        wide = [
            np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) if y is None else y
            for x, y in zip((a, b), flat, strict=True)
        ]
        plan = Batch(
            partitioned(wide[0], wide[1], flat_batch(result, batch), flat_batch(c, batch), devices), request, batch
        )
        plan()
        if request.check_finite:
            plan.check_host()
        plans = [plan]
    else:
        plans = []
        for x, y, added, z in each_product(a, b, c, result, batch):
            whole = FromHost(_with_rows(x), _with_rows(y), z, devices, request, added)
            whole()
            if request.check_finite:
                whole.check_finite(whole.a, whole.b)
            plans.append(whole)
    for index in dict.fromkeys(devices):
        with cupy.cuda.Device(index):
            synchronize()
    if out is not None and fresh:
        out[...] = result
    return (result if out is None else out), plans, batch


def _with_rows(x: np.ndarray) -> np.ndarray:
    """Return `x`, copied where its rows are not contiguous."""
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
