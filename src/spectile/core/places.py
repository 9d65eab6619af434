"""Which devices solve a problem together, on which of them its operands lie, and whether they reach one another."""

from __future__ import annotations

import itertools
import operator
import reprlib
from collections.abc import Sequence
from typing import Any


def device_ids(devices: Any, visible: int) -> list[int]:
    """Return the ids of the devices asked for, of so many visible ones: the first so many, or those named.

    Raises TypeError if they are no integers, and ValueError if one is not there or named twice, or there is none.
    """
    try:
        if isinstance(devices, str | dict | bool):
            raise TypeError
        single = not hasattr(devices, "__len__")
        ids = [operator.index(one) for one in ([devices] if single else devices)]
    except TypeError:
        raise TypeError(f"devices = {reprlib.repr(devices)} are no GPUs: give their number, or a list of ids") from None
    if single:
        ids = list(range(ids[0])) if 0 < ids[0] <= visible else []
    if not ids or min(ids) < 0 or max(ids) >= visible:
        raise ValueError(
            f"devices = {reprlib.repr(devices)}, and {visible} are visible: name some of 0 to {visible - 1}, or their "
            "number"
        )
    twice = [one for number, one in enumerate(ids) if one in ids[:number]]
    if twice:
        raise ValueError(f"devices = {reprlib.repr(devices)} names device {twice[0]} twice: name each once")
    return ids


def home_of(places: dict[str, int | None], ids: Sequence[int]) -> int:
    """Return the device that has the results: that of the operands, or of those on the host the first listed.

    `places` has the device of each operand by its name, None for the host.  Raises ValueError if an operand is on a
    device that is not listed, or two are on different ones.
    """
    found: dict[int, str] = {}
    for name, place in places.items():
        if place is not None and place not in ids:
            raise ValueError(f"{name} is on device {place}, and devices are {list(ids)}: list that one, or copy {name}")
        if place is not None:
            found.setdefault(place, name)
    if len(found) > 1:
        one, other = list(found)[:2]
        raise ValueError(
            f"{found[one]} is on device {one} and {found[other]} on device {other}: copy both to one of {list(ids)}"
        )
    return next(iter(found), ids[0])


def connect(devices: Sequence[int]) -> bool:
    """Let the devices read and write one another's memory; return whether all can.  Copies go by the host elsewhere."""
    import cupy

    runtime, connected = cupy.cuda.runtime, True
    for index, peer in itertools.permutations(dict.fromkeys(devices), 2):
        if runtime.deviceCanAccessPeer(index, peer):
            with cupy.cuda.Device(index):
                runtime._deviceEnsurePeerAccess(peer)
        else:
            connected = False
    return connected
