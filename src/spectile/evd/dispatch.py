"""Which backend computes a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

from spectile.core import device
from spectile.core.placement import Work
from spectile.evd.arguments import any_on_device


def chosen_backend(operands: tuple[Any, ...], backend: str, work: Callable[[], Work]) -> Literal["cpu", "cuda"]:
    """Return the backend that computes a call of these operands, which costs `work`."""
    return device.choose_backend(backend, any_on_device(operands), "evd", work)


@functools.cache
def backend_module(name: Literal["run", "narrow"], backend: Literal["cpu", "cuda"]) -> ModuleType:
    """Return module `name` of the backend, imported here so that a process on the CPU needs no CuPy."""
    if backend == "cuda":
        from spectile.evd.cuda import narrow as cuda_narrow
        from spectile.evd.cuda import run as cuda_run

        return cuda_run if name == "run" else cuda_narrow
    from spectile.evd.cpu import narrow as cpu_narrow
    from spectile.evd.cpu import run as cpu_run

    return cpu_run if name == "run" else cpu_narrow
