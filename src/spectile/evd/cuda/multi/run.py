"""The eigensolver on several GPUs of a host."""

from __future__ import annotations

from typing import Any

from spectile.core import arrays
from spectile.core.places import device_ids, home_of
from spectile.evd.cuda import run
from spectile.evd.types import Definite, Options


def eigh(a: Any, options: Options, definite: Definite | None, devices: Any) -> Any:
    """`api.eigh` on several devices; the results lie where the operands do.

    Parameters
    ----------
    a : array, shape (..., n, n)
    options : Options
    definite : Definite, optional
    devices : int or sequence of int
    """
    import cupy

    ids = device_ids(devices, cupy.cuda.runtime.getDeviceCount())
    operands = {"a": a} if definite is None else {"a": a, "b": definite.b}
    home = home_of({name: _place(name, one) for name, one in operands.items()}, ids)
    with cupy.cuda.Device(home):
        return run.eigh(a, options, definite)


def _place(name: str, array: Any) -> int | None:
    """Return the device that an operand lies on."""
    return int(arrays.to_device(array, name)[0].device.id) if arrays.on_device(array) else None
