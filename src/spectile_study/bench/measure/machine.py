"""The machine that is measured: its name is one device's, and a case gets the GPUs that it needs or none."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectile.core.atomic_file import atomic_write


def claim_machine(folder: Path, machine: str, device: str) -> None:
    """Note in `folder` which device the results of `machine` belong to, and refuse another one.

    Raises
    ------
    ValueError
        If results of another device are kept under this name.
    """
    from spectile_study.bench.provenance import device_name

    name = device_name(device)
    path = folder / "machine.json"
    known: dict[str, str] = {}
    if path.exists():
        with contextlib.suppress(json.JSONDecodeError):
            known = json.loads(path.read_text())
    if device in known and known[device] != name:
        raise ValueError(
            f"results of machine {machine!r} were measured on {known[device]!r}, and this device is {name!r}: "
            "choose another name with --config machine=NAME"
        )
    if device not in known:
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(known | {device: name}, indent=1) + "\n")


class TooFewGpus(RuntimeError):
    """A case needs more GPUs than are visible: it is skipped with this sentence, and never measured on fewer."""


def require_gpus(row: Mapping[str, Any], device: str) -> None:
    """Refuse a case that needs more GPUs than are visible, instead of measuring fewer in silence.

    Raises
    ------
    TooFewGpus
        If fewer devices are visible than the row's column ``gpus`` asks for.
    """
    needed = int(row.get("gpus") or 0)
    if device != "cuda" or needed <= 1:
        return
    import cupy

    visible = cupy.cuda.runtime.getDeviceCount()
    if visible < needed:
        raise TooFewGpus(
            f"the case {row['case']} needs {needed} GPUs and {visible} {'is' if visible == 1 else 'are'} visible: "
            "run it where they are, or ask the scheduler for them (resources: gpu)"
        )


def has_driver() -> bool:
    """Return whether CUDA's driver is here; where it is not, CuPy would cost each job a quarter of a second."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
