"""Which backend computes a call."""

from __future__ import annotations

import functools
import importlib
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
    return importlib.import_module(f"{__package__}.{backend}.{name}")
