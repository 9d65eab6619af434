"""Progress of long calls: a bar on a terminal where tqdm is installed, elsewhere lines of `logging`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

#: Seconds before anything is shown, and between two lines of the log.
DELAY_S = 10.0
#: Seconds after which a call is told of that has counted nothing meanwhile, as one within LAPACK.
SILENCE_S = 10.0
_LOGGER = logging.getLogger("spectile.progress")
#: The call that is shown in this thread: the outermost.
_CALL: ContextVar[Progress | None] = ContextVar("call", default=None)
#: Units that shared mechanisms count: what threads share out, rows of blocks, and products of tile matrices.
PARTS, ROWS, MATRICES, OPERATIONS = "parts", "rows", "products of matrices", "operations"


class Progress(contextlib.ContextDecorator):
    """What is shown of a call that takes longer than ten seconds.

    On a terminal a bar of tqdm's, if that is installed, on standard error; elsewhere a line every ten seconds of the
    logger ``spectile.progress``, at INFO, by a thread where the call itself counts nothing for so long.  A logger whose
    level is above INFO silences both.  Of calls within a call only the outermost is shown.  It is a context or
    decorates a function.

    Parameters
    ----------
    what : str
        What is being done.
    shown : bool
        Whether anything is shown.
    unit : str
        What is counted.
    total : int or None
        How many of them there are, where that is known; it may be set later.

    Examples
    --------
    >>> with Progress("evolve", shown=False, total=3) as progress:
    ...     progress.add(2)
    >>> progress.done
    2
    """

    def __init__(self, what: str, *, shown: bool = True, unit: str = "steps", total: int | None = None) -> None:
        self.what, self.shown, self.unit, self.total, self.done = what, shown, unit, total, 0
        self._bar: Any = None
        self._begun = self._told = time.monotonic()
        self._next = self._begun + DELAY_S
        self._token: Token[Progress | None] | None = None
        self._lock = threading.Lock()

    def _recreate_cm(self) -> Progress:
        return Progress(self.what, shown=self.shown, unit=self.unit, total=self.total)

    def __enter__(self) -> Progress:
        if _CALL.get() is None:
            self._token = _CALL.set(self)
            if self.shown:
                _WATCH.begin(self)
        else:
            self.shown = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._token is not None:
            _CALL.reset(self._token)
            _WATCH.end(self)
        with self._lock:
            self.shown = False
        self.close()

    def add(self, count: int) -> None:
        """Count what has been done since the last call."""
        self.done += count
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.update(count)
        elif self.shown and time.monotonic() >= self._next:
            with self._lock:
                self._show()

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def told_again(self, now: float) -> float:
        """Tell of a call that has not been told of for long; return when to look again."""
        with self._lock:
            if self.shown and now >= self._told + SILENCE_S:
                self._show()
            return self._told + SILENCE_S

    def _show(self) -> None:
        self._told = now = time.monotonic()
        if self._bar is not None:
            self._bar.refresh()
            return
        if _LOGGER.level > logging.INFO:
            return
        self._next = now + DELAY_S
        if sys.stderr is not None and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                pass
            else:
                self._bar = tqdm(
                    desc=self.what, initial=self.done, total=self.total, unit=f" {self.unit}", unit_scale=True,
                    leave=False,
                )  # fmt: skip
                return
        part = f"{self.done:,}" if not self.total else f"{100 * self.done / self.total:.0f} % of {self.total:,}"
        counted = f"{part} {self.unit} in" if self.done or self.total else "at work for"
        _LOGGER.info("%s: %s %.0f s", self.what, counted, now - self._begun)


class _Watch:
    """A thread that tells of calls which count nothing for long; it ends where there are none."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Watch no call: a child of a process has no such thread, and the lock may be held there."""
        self._lock = threading.Lock()
        self._calls: set[Progress] = set()
        self._thread: threading.Thread | None = None

    def begin(self, call: Progress) -> None:
        """Watch a call."""
        with self._lock:
            self._calls.add(call)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="spectile progress", daemon=True)
                self._thread.start()

    def end(self, call: Progress) -> None:
        """Watch it no longer."""
        with self._lock:
            self._calls.discard(call)

    def _run(self) -> None:
        # A call that begins while this sleeps is not silent for long before it wakes.
        wake = time.monotonic() + SILENCE_S
        while True:
            time.sleep(max(0.001, wake - time.monotonic()))
            with self._lock:
                calls = list(self._calls)
                if not calls:
                    self._thread = None
                    return
            now = time.monotonic()
            wake = min(call.told_again(now) for call in calls)


_WATCH = _Watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WATCH.forget)


def count(unit: str, number: int = 1) -> None:
    """Count so many in the call that this thread is in, if that counts in this unit."""
    if (call := counted_in(unit)) is not None:
        call.add(number)


def counted_in(unit: str) -> Progress | None:
    """Return what counts in this unit in the call that this thread is in, if it does."""
    call = _CALL.get()
    return call if call is not None and call.unit == unit else None
