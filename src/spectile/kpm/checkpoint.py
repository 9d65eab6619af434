"""Files of a density's state, each array checked before it is used, and signals that wait until a state is whole."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core.pointers import operand
from spectile.kpm.operators.protocol import on_host
from spectile.kpm.types import Array, Engine, Recursion


class SavedState:
    """The arrays of a file written by :meth:`SpectralDensity.save`.

    Parameters
    ----------
    path : path-like
        The file, which is read at once and closed.

    Raises
    ------
    ValueError
        Here and in all methods, in one sentence that names the file, if it is no such file, not whole or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        try:
            with np.load(path) as archive:
                self._arrays = {name: np.asarray(archive[name]) for name in archive.files}
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, SyntaxError, NotImplementedError,
                MemoryError, zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
            raise ValueError(f"{path} holds no saved density, or not all of it: remove it, and begin again") from error
        if "fingerprint" not in self._arrays:
            raise ValueError(f"{path} holds no saved density: give a file that SpectralDensity.save wrote")

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def damaged(self, what: str) -> ValueError:
        """Return the error of a file in which something is not as it was written."""
        return ValueError(f"{self.path} is damaged: {what}; remove it, and begin again")

    def array(self, name: str, dtype: Any, shape: tuple[int | None, ...]) -> Array:
        """Return an array of this dtype in any byte order, of this shape and finite, as kernels read it."""
        array = self._arrays.get(name)
        if array is None:
            raise self.damaged(f"{name} is missing")
        if array.dtype.newbyteorder("=") != np.dtype(dtype):
            raise self.damaged(f"{name} is {array.dtype}, not {np.dtype(dtype)}")
        if shape == () != array.shape:
            raise self.damaged(f"{name} is no single number")
        try:
            values: Array = operand(name, array, shape=shape)
        except ValueError as error:
            raise self.damaged(str(error)) from None
        if values.dtype.kind in "fc" and not np.isfinite(values).all():
            raise self.damaged(f"{name} holds NaN or infinity")
        return values

    def number(self, name: str, least: int) -> int:
        """Return a whole number of at least `least`."""
        number = int(self.array(name, np.int64, ()))
        if number < least:
            raise self.damaged(f"{name} is {number}")
        return number

    def text(self, name: str) -> str:
        """Return a word."""
        array = self._arrays.get(name)
        if array is None or array.dtype.kind != "U" or array.shape != ():
            raise self.damaged(f"{name} is no text")
        return str(array)

    def etas(self, name: str, num_moments: int, num_rows: int) -> Array:
        """Return scalar products of at least M moments with random vectors of N rows, shape (2 * steps, R)."""
        etas = self.array(name, np.float64, (None, None))
        if len(etas) < num_moments or len(etas) % 2 or etas.shape[1] < 1:
            raise self.damaged(f"{name} has shape {etas.shape} for {num_moments} moments")
        # The vectors have N entries of size 1, and Chebyshev polynomials make no vector longer.
        if abs(etas[0] - num_rows).max() > 1e-3 * num_rows or abs(etas).max() > (1 + 3e-3) * num_rows:
            raise self.damaged(f"{name} are no scalar products of vectors with {num_rows} rows")
        return etas

    def recursion(self, block: Recursion, number: int, steps: int) -> dict[str, Array]:
        """Return what a recursion is to go on from after `steps` steps; `block` is one like it that has just begun."""
        state = {}
        for key, fresh in block.state().items():
            name = f"{key}_{number}"
            # A step that was done ahead waits, or none.
            shape = (None, *fresh.shape[1:]) if key == "pending" else fresh.shape
            state[key] = self.array(name, fresh.dtype, shape)
        ahead = state["pending"].size // (2 * block.num_vectors) if "pending" in state else 0
        if int(state["steps"]) != steps + ahead or ahead > 1:
            raise self.damaged(f"steps_{number} is {int(state['steps'])}, not {steps}")
        return state


def fingerprint(engine: Engine) -> Array:
    """Return a few numbers that another matrix would not give."""
    image = engine.apply(engine.vector(4))
    first = on_host(image[:16])
    return np.concatenate([[engine.num_rows], first.real, [float(engine.xp.abs(image).sum())]])


class Signals:
    """Ctrl-C and SIGTERM that wait: see :func:`signals_deferred`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Any]] = []
        self._before: dict[int, Any] = {}

    @property
    def waiting(self) -> bool:
        """Whether a signal has come."""
        return bool(self._waiting)

    def deliver(self) -> None:
        """Let the signals that wait do what they would have done.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            Where no handler of the caller's says otherwise; SystemExit with the status that shells expect.
        """
        while self._waiting:
            number, frame = self._waiting.pop(0)
            before = self._before[number]
            if callable(before):
                before(number, frame)
            elif number == signal.SIGINT:
                raise KeyboardInterrupt
            else:
                raise SystemExit(128 + number)

    def _note(self, number: int, frame: Any) -> None:
        impatient = self.waiting
        self._waiting.append((number, frame))
        if impatient:
            self.deliver()


@contextlib.contextmanager
def signals_deferred() -> Iterator[Signals]:
    """Let Ctrl-C and SIGTERM wait until the block asks for them or ends; a second one does not wait.

    A state may be saved between two calls but not within one: a step that is broken off leaves half of a vector.
    Outside the main thread, which alone hears signals, nothing waits.
    """
    signals = Signals()
    hears = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM) if hears else ():
        before = signal.getsignal(number)
        if before not in (None, signal.SIG_IGN):
            signals._before[number] = before
            signal.signal(number, signals._note)
    try:
        yield signals
    finally:
        for heard, before in signals._before.items():
            signal.signal(heard, before)
    signals.deliver()
