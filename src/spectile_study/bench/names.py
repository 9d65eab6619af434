"""Names that claims may use: the columns of a paper's frame, and what occurs in them.

A name that nothing holds would find no row, and look like a number that is not recorded yet.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from spectile_study.bench import record

if TYPE_CHECKING:
    import pandas


class ClaimError(ValueError):
    """A claim that cannot be evaluated; the message names what is wrong and what to do."""


class Names:
    """What claims on one paper may name.

    Parameters
    ----------
    paper : str
    frames : iterable of DataFrame
        Frames of the paper, which may lack columns; without rows in any, columns are judged and their values are not.
    """

    def __init__(self, paper: str | None, frames: Iterable[pandas.DataFrame] = ()) -> None:
        self.columns = {*record.LEADING_COLUMNS, *record.columns(paper)}
        self._frames = [frame for frame in frames if len(frame)]
        self._values: dict[str, set[object]] = {}

    @cached_property
    def phases(self) -> set[object]:
        """Return every phase of a time."""
        lists = [each for frame in self._frames for each in frame.get("v_phases", ()) if not np.isscalar(each)]
        return {str(name) for each in lists if each is not None for name in each}

    def check(self, column: str, value: object) -> None:
        """Raise :class:`ClaimError` if no record has `column`, or no frame holds `value` (or one of several) in it."""
        self.check_columns(column)
        for each in value if isinstance(value, list | tuple) else [value]:
            if self._frames and not callable(each) and _key(each) not in self._of(column):
                raise ClaimError(
                    f"asks for {column} = {each!r}, which no record holds and no row of the sheet names: "
                    "write a value that occurs"
                )

    def check_columns(self, *names: str | None) -> None:
        """Raise :class:`ClaimError` if no frame has a column; None is none."""
        for name in names:
            if name is not None:
                self._among(name, self.columns, "column")

    def check_methods(self, *patterns: str) -> None:
        """Raise :class:`ClaimError` if no frame has a method of a name, which may hold ``*`` and ``?``."""
        methods = self._of("method")
        for pattern in patterns:
            if self._frames and not fnmatch.filter(map(str, methods), pattern):
                self._among(pattern, methods, "method")

    def check_phase(self, name: str) -> None:
        """Raise :class:`ClaimError` if no time of a frame is divided into such a phase."""
        if self._frames:
            self._among(name, self.phases, "phase")

    def _of(self, column: str) -> set[object]:
        """Return what the frames hold in a column."""
        if column not in self._values:
            holders = [frame for frame in self._frames if column in frame]
            self._values[column] = {_key(value) for frame in holders for value in frame[column].unique()}
        return self._values[column]

    def _among(self, name: str, known: set[object] | set[str], what: str) -> None:
        if name in known:
            return
        near = difflib.get_close_matches(name, map(str, known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"take one of {', '.join(sorted(map(str, known))[:8])}, ..."
        raise ClaimError(f"names the {what} {name!r}, which no frame has: {hint}")


def _key(value: object) -> object:
    """Return a value as it is looked up: a number by nine digits, anything else as text."""
    try:
        return f"{float(value):.8e}" if not isinstance(value, str | bool | np.bool_) else str(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)
