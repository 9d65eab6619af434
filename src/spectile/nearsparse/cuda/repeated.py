"""Plans of calls, found by their layout: the first call of a kind makes one, and all are executed in the same way.

A call that has a plan went through all checks once, and needs them no more.  Plans are bounded in number, and each
belongs to a stream.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from spectile.core.pointers import beyond_vectors
from spectile.nearsparse.cuda import dense
from spectile.nearsparse.cuda.after import PER_THREAD
from spectile.nearsparse.cuda.plan import CallPlan, DensePlan
from spectile.nearsparse.cuda.search import check_error
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request

# Plans that are kept.
LIMIT = 256
# CUDA's names for the default stream.
_DEFAULT = (0, 1)
# Kinds of options that keys hold.
_PLAIN = {int, float, bool, str, type(None)}

_lock = threading.Lock()
_plans: dict[Any, Any] = {}


def key_of(a: Any, b: Any, out: Any, value: Any, *options: Any, devices: Any = None) -> Any:
    """Return what decides how a call runs, or None for one that is not run from a plan.

    `value` is the threshold, ratio or error; `options` are everything else that the call depends on, and which of the
    three was given.  With `devices` the operands are lists of parts that lie on these.
    """
    import cupy

    if not isinstance(value, float | int) or (isinstance(value, int) and value > sys.float_info.max):
        return None
    lists = list | tuple
    if devices is None:
        layouts, places = (_layout_of(a, b, out),), (cupy.cuda.runtime.getDevice(),)
    elif isinstance(a, lists) and isinstance(b, lists) and isinstance(out, lists | None) and len(a) == len(b):
        targets = [None] * len(a) if out is None else out
        places = (*devices, None) if isinstance(devices, lists) else (devices,)
        layouts = tuple(map(_layout_of, a, b, targets)) if len(a) == len(targets) else (None,)
    else:
        return None
    if None in layouts or not _PLAIN.issuperset(map(type, (*options, *places))):
        return None
    return layouts, places, options


def _layout_of(a: Any, b: Any, out: Any) -> Any:
    """Return how matrices lie on their device and which stream is current there, or None for other arrays."""
    import cupy

    kind = cupy.ndarray
    if type(a) is not kind or type(b) is not kind or not (out is None or type(out) is kind):
        return None
    if len(a.shape) != 2 or len(b.shape) != 2:
        return None
    device = a.data.device_id
    stream = cupy.cuda.get_current_stream(device).ptr
    number = stream if stream in _DEFAULT else _number(stream)
    if number is None:
        return None
    key: tuple[Any, ...] = (
        a.shape, a.strides, a.dtype.char, b.shape, b.strides, b.dtype.char, beyond_vectors(a, b, out),
        device, b.data.device_id, number,
    )  # fmt: skip
    if stream == PER_THREAD:
        key = (*key, threading.get_ident())
    return key if out is None else (key, out.shape, out.strides, out.dtype.char, out.data.device_id)


def _number(stream: int) -> int | None:
    """Return the number of a stream, which no other has or will have, or None where the driver knows none.

    The address of a stream that is destroyed, perhaps with work under way, may be that of the next one.  A stream
    that is captured has none either: to ask for it would end the capture.
    """
    import cupy

    if cupy.cuda.runtime.streamIsCapturing(stream):
        return None
    number = ctypes.c_ulonglong()
    return None if _numbers()(stream, ctypes.byref(number)) else number.value


@functools.cache
def _numbers() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuStreamGetId
    function.argtypes = [ctypes.c_void_p] * 2
    return function


def execute(
    key: Any, a: Any, b: Any, out: Any, value: float, make: Callable[[], Any] | None = None
) -> SpammResult | None:
    """Run a call from its plan; return None where there is none, or where this call must not use it.

    `make` returns the plan of a call that went through all checks, where there is none.
    """
    import cupy

    plan = _plans.get(key)
    if plan is None:
        if make is None or cupy.cuda.get_current_stream().is_capturing():
            return None
        plan = _kept(key, make())
    if plan.request.method != "spamm" and cupy.cuda.get_current_stream().is_capturing():
        return None
    value = float(value)
    most = 1.0 if plan.request.valid_ratio is not None else sys.float_info.max
    if not (value >= 0 if plan.request.tau is not None else 0 < value <= most):
        return None
    check_error(plan.request, value, plan.shape)
    try:
        out = plan.empty() if out is None else out
        norms = plan.run(a, b, out, value)
        return None if norms is None else plan.result(out, norms)
    except cupy.cuda.memory.OutOfMemoryError:
        # The call that is made anew says what lacks.
        return None


def _kept(key: Any, plan: Any) -> Any:
    with _lock:
        _plans[key] = plan
        while len(_plans) > LIMIT:
            del _plans[next(iter(_plans))]
    return plan


def planned(a: Any, b: Any, out: Any, request: Request) -> CallPlan | DensePlan:
    """Return the plan of a product on the current device."""
    sizes = *a.shape, b.shape[1]
    near = max(x.strides[0] for x in (a, b)) < 2**31  # else cuBLAS takes copies
    at_once = request.valid_ratio is None and near and dense.decide_here(sizes, request)[0] == "dense"
    return (DensePlan if at_once else CallPlan)(a, b, out, request)
