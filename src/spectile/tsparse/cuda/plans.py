"""Plans: the launches of a phase for one set of sizes, bound once and repeated with other addresses.

Choosing kernels and packing arguments costs more time on the host than the launches themselves.  A plan holds no device
memory; each host thread keeps its own, so that no two threads write the same addresses.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel

MOST_PLANS = 256  # of a host thread


class Addresses:
    """Addresses that bound launches read each time they are launched."""

    def __init__(self, count: int) -> None:
        self._values = np.zeros(count, np.uint64)
        self._memory = self._values.data
        self._format = struct.Struct(f"{count}Q")

    def __getitem__(self, number: int) -> np.ndarray:
        """Return the address as an argument of a bound launch."""
        return self._values[number : number + 1]

    def set(self, *addresses: int) -> None:
        """Set all addresses."""
        self._format.pack_into(self._memory, 0, *addresses)

    def replace(self, number: int, address: int) -> None:
        """Set one of them."""
        self._values[number] = address


class Repeated:
    """A launch with `count` addresses, which are set each time, between what stays the same."""

    def __init__(self, unit: Unit, name: str, shape: Shape, before: Iterable[Any], count: int, *after: Any) -> None:
        self._addresses = Addresses(count)
        addresses = (self._addresses[i] for i in range(count))
        self._launch = kernel(unit, name).bind(shape, *before, *addresses, *after)

    def __call__(self, stream: int | None, *addresses: int) -> None:
        """Launch on a stream, or on the current one."""
        self._addresses.set(*addresses)
        self._launch(stream)


class _Kept(threading.local):
    """Plans of one host thread, those used last at the end."""

    def __init__(self) -> None:
        self.plans: OrderedDict[Hashable, Any] = OrderedDict()


_kept = _Kept()


def plan(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return the plan of `key` of this host thread, made where there is none."""
    plans = _kept.plans
    kept = plans.get(key)
    if kept is not None:
        plans.move_to_end(key)
        return kept
    kept = plans[key] = make()
    if len(plans) > MOST_PLANS:
        plans.popitem(last=False)
    return kept
