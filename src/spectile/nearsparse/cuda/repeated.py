"""Plans of calls, found by their layout: the first call of a kind makes one, and all are executed in the same way.

A call that has a plan went through all checks once, and needs them no more.  Plans are bounded in number, and each
belongs to a stream.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
from typing import Any

import numpy as np

from spectile.core import memory
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
_plans: dict[Any, CallPlan | DensePlan] = {}


def key_of(a: Any, b: Any, out: Any, value: Any, *options: Any) -> Any:
    """Return what decides how a call runs, or None for one that is not run from a plan.

    `value` is the threshold, ratio or error; `options` are everything else that the call depends on, and which of the
    three was given.
    """
    import cupy

    kind = cupy.ndarray
    if type(a) is not kind or type(b) is not kind or not (out is None or type(out) is kind):
        return None
    if not isinstance(value, float | int) or (isinstance(value, int) and value > sys.float_info.max):
        return None
    if len(a.shape) != 2 or len(b.shape) != 2:
        return None
    if not _PLAIN.issuperset(map(type, options)):
        return None
    stream = cupy.cuda.get_current_stream().ptr
    number = stream if stream in _DEFAULT else _number(stream)
    if number is None:
        return None
    key: tuple[Any, ...] = (
        a.shape, a.strides, a.dtype.char, b.shape, b.strides, b.dtype.char, beyond_vectors(a, b, out),
        a.data.device_id, b.data.device_id, cupy.cuda.runtime.getDevice(), number, options,
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


def execute(key: Any, a: Any, b: Any, out: Any, value: float, request: Request | None = None) -> SpammResult | None:
    """Run a call from its plan; return None where there is none, or where this call must not use it.

    The `request` of a call that went through all checks makes a plan where there is none.
    """
    import cupy

    plan, fresh = _plans.get(key), None
    if plan is None:
        if request is None or cupy.cuda.get_current_stream().is_capturing():
            return None
        plan, fresh = _made(key, a, b, out, request)
    if (plan.ordered_by_work or plan.request.method != "spamm") and cupy.cuda.get_current_stream().is_capturing():
        return None
    value = float(value)
    most = 1.0 if plan.request.valid_ratio is not None else sys.float_info.max
    if not (value >= 0 if plan.request.tau is not None else 0 < value <= most):
        return None
    check_error(plan.request, value, plan.shape)
    try:
        if out is None:
            out = cupy.empty(plan.result_shape, plan.output) if fresh is None else fresh
        norms = plan.run(a, b, out, value)
        return None if norms is None else plan.result(out, norms)
    except cupy.cuda.memory.OutOfMemoryError:
        # The call that is made anew says what lacks.
        return None


def _made(key: Any, a: Any, b: Any, out: Any, request: Request) -> tuple[CallPlan | DensePlan, Any]:
    """Make the plan of a key; return it, and the array for C that it was made with where none was given."""
    import cupy

    shape = a.shape[0], b.shape[1]
    output = np.dtype(request.arithmetic.output)
    with memory.allocating(f"the product of shape {shape}", math.prod(shape) * output.itemsize):
        fresh = cupy.empty(shape, output) if out is None else None
        sizes = *a.shape, b.shape[1]
        near = max(x.strides[0] for x in (a, b)) < 2**31  # else cuBLAS takes copies
        at_once = request.valid_ratio is None and near and dense.decide_here(sizes, request)[0] == "dense"
        plan = (DensePlan if at_once else CallPlan)(a, b, fresh if out is None else out, request)
    with _lock:
        _plans[key] = plan
        while len(_plans) > LIMIT:
            del _plans[next(iter(_plans))]
    return plan, fresh
