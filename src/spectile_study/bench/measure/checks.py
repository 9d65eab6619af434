"""One method held against its reference, before it is timed."""

from __future__ import annotations

import time
import traceback
from typing import Any

from spectile_study.bench.case import Method
from spectile_study.bench.judge import wrong


class DeviceLost(Exception):
    """The device answers nothing after a method's error: this process can measure no other method."""


def raise_if_device_lost(device: str, error: Exception) -> None:
    """Raise :class:`DeviceLost` if nothing works on the device after `error`.

    After an illegal access or a lost GPU every CUDA call of the process fails, in methods without fault, too.
    """
    if device != "cuda":
        return
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        raise DeviceLost(f"lost the device: {type(error).__name__}: {error}") from error


def check_method(method: Method, device: str) -> tuple[dict[str, Any], float]:
    """Run `method` once and compare with its reference: a failed check is a failed method; and the seconds it ran."""
    seconds = 0.0
    row: dict[str, Any] = {"method": method.name, "clock": method.clock, "samples_s": []}
    try:
        if method.prepare is not None:
            method.prepare()
        start = time.perf_counter()
        result = method.run()
        seconds = time.perf_counter() - start
        if method.clock == "external":
            result = result[0]
        errors = {name: float(value) for name, value in method.check(result).items()}
        values = dict(method.values(result)) if method.values is not None else {}
    except Exception as error:  # any failure of a method is a result: it is recorded and the others go on
        traceback.print_exc()
        raise_if_device_lost(device, error)
        return {"method": method.name, "status": "failed", "reason": f"{type(error).__name__}: {error}"}, seconds
    row |= {
        "errors": errors,
        "limits": dict(method.limits),
        "flops": method.flops,
        "bytes": method.bytes,
        "memory_bytes": method.memory_bytes,
        "values": values,
    }
    why = wrong(errors, method.limits)
    if why:
        return row | {"status": "failed", "reason": f"wrong result: {why}"}, seconds
    return row | {"status": "ok", "reason": None}, seconds
