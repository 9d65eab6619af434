"""Progress of long calls: a bar on a terminal where tqdm is installed, elsewhere lines of `logging`."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

#: Seconds before anything is shown, and between two lines of the log.
DELAY_S = 10.0
_LOGGER = logging.getLogger("spectile.progress")
#: The call that is shown in this thread: the outermost.
_CALL: ContextVar[Progress | None] = ContextVar("call", default=None)
#: Units that shared mechanisms count: what threads share out, rows of blocks, and products of tile matrices.
PARTS, ROWS, MATRICES, OPERATIONS = "parts", "rows", "products of matrices", "operations"


class Progress(contextlib.ContextDecorator):
    """What is shown of a call that takes longer than ten seconds.

    On a terminal a bar of tqdm's, if that is installed, on standard error; elsewhere a line every ten seconds of the
    logger ``spectile.progress``, at INFO.  A logger whose level is above INFO silences both.  Of calls within a call
    only the outermost is shown.  It is a context or decorates a function.

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
        self._begun = time.monotonic()
        self._next = self._begun + DELAY_S
        self._token: Token[Progress | None] | None = None

    def _recreate_cm(self) -> Progress:
        return Progress(self.what, shown=self.shown, unit=self.unit, total=self.total)

    def __enter__(self) -> Progress:
        if _CALL.get() is None:
            self._token = _CALL.set(self)
        else:
            self.shown = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
        if self._token is not None:
            _CALL.reset(self._token)

    def add(self, count: int) -> None:
        """Count what has been done since the last call."""
        self.done += count
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.update(count)
        elif self.shown and time.monotonic() >= self._next and _LOGGER.level <= logging.INFO:
            self._show()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self) -> None:
        now = time.monotonic()
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
        _LOGGER.info("%s: %s %s in %.0f s", self.what, part, self.unit, now - self._begun)


def count(unit: str, number: int = 1) -> None:
    """Count so many in the call that this thread is in, if that counts in this unit."""
    if (call := counted_in(unit)) is not None:
        call.add(number)


def counted_in(unit: str) -> Progress | None:
    """Return what counts in this unit in the call that this thread is in, if it does."""
    call = _CALL.get()
    return call if call is not None and call.unit == unit else None
