"""Files of a density's state, and interrupts that wait until a state is whole."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spectile.kpm.operators.protocol import on_host
from spectile.kpm.types import Array, Engine


@contextlib.contextmanager
def open_state(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a file written by :meth:`SpectralDensity.save`."""
    try:
        state = np.load(path)
        held = "fingerprint" in state
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} holds no saved density, or not all of it: remove it, and begin again") from error
    if not held:
        raise ValueError(f"{path} holds no saved density: give a file that SpectralDensity.save wrote")
    with state:
        yield state


def fingerprint(engine: Engine) -> Array:
    """Return a few numbers that another matrix would not give."""
    image = engine.apply(engine.vector(4))
    first = on_host(image[:16])
    return np.concatenate([[engine.num_rows], first.real, [float(engine.xp.abs(image).sum())]])


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag, which the yielded function returns, instead of raising; the second one raises.

    A state may be saved between two calls but not within one: a step that is broken off leaves half of a vector.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    interrupts = 0

    def count(number: int, frame: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, count)
    try:
        yield lambda: interrupts > 0
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
