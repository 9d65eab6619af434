"""Which backend computes a call."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from spectile.core import device
from spectile.evd.arguments import any_on_device


def backend_module(name: str, operands: tuple[Any, ...], backend: str) -> ModuleType:
    """Return module `name` of the backend, imported here so that a process on the CPU needs no CuPy."""
    return importlib.import_module(f"spectile.evd.{device.choose_backend(backend, any_on_device(operands))}.{name}")
