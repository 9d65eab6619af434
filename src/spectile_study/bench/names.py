"""Names that claims and filters may use: the columns of a paper's frame, and what occurs in them.

A name that nothing holds would find no row, and look like a number that is not recorded yet.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spectile_study.bench import record
from spectile_study.bench.quantities import PEAKS, SHAPES, ClaimError, meets

if TYPE_CHECKING:
    import pandas

#: ``<column><sign><value>``, the column perhaps a quotient.
CONDITION = re.compile(r"^([\w/]+)[=<>](.+)$")


class Names:
    """What claims on one paper may name.

    Parameters
    ----------
    paper : str
    frames : iterable of DataFrame
        Frames of the paper; without rows in any, columns are judged and their values are not.
    """

    def __init__(self, paper: str, frames: Iterable[pandas.DataFrame] = ()) -> None:
        self.columns = {*record.LEADING_COLUMNS, *record.LEADING_NUMBERS, *record.columns(paper)}
        self._frames = [frame for frame in frames if len(frame)]
        self._sound: set[str] = set()

    @cached_property
    def methods(self) -> set[str]:
        """Return every method of the frames."""
        return {name for frame in self._frames for name in frame["method"].unique()}

    @cached_property
    def phases(self) -> set[str]:
        """Return every phase of a time."""
        lists = [each for frame in self._frames for each in frame.get("v_phases", ()) if not np.isscalar(each)]
        return {str(name) for each in lists if each is not None for name in each}

    def check_claim(self, claim: Mapping[str, str]) -> None:
        """Raise :class:`ClaimError` if a claim's filter, column or aggregate names what does not exist."""
        conditions = [part.strip() for part in claim["filter"].split(",") if part.strip()]
        kind, _, names = claim["column"].partition(":")
        if kind in ("speedup", "gain", "over"):
            *columns, method, baselines = names.split(":")
            self._check_columns(columns)
            self._check_methods([method, *baselines.split("|")])
        elif kind == "phase":
            self._among(names, self.phases, "phase")
        elif kind in ("rate", "share"):
            self._among(names.partition(":")[0], set(PEAKS) | {""}, "unit")
        else:
            self._check_columns(filter(None, kind.split("/")))
        how, _, words = claim["aggregate"].partition(":")
        if how in SHAPES:
            self._check_columns(words.split(":"))
        elif how in ("precision", "recall", "times"):
            conditions += [each for words in words.split(":") for each in words.split("&")]
        for condition in conditions:
            self.check_condition(condition)

    def check_condition(self, condition: str) -> None:
        """Raise :class:`ClaimError` if a condition names a column that frames lack, or a value that none holds."""
        if condition in self._sound:
            return
        match = CONDITION.match(condition)
        if match is None:
            raise ClaimError(f"has the condition {condition!r}: write column=value, column>value or column<value")
        names, values = match[1].split("/"), match[2].split("|")
        self._check_columns(names)
        for value in values if "=" in condition and self._frames else ():
            if not any(meets(frame, f"{match[1]}={value}").any() for frame in self._frames):
                raise ClaimError(f"asks for {match[1]}={value}, which no record holds: write a value that occurs")
        self._sound.add(condition)

    def _check_columns(self, names: Iterable[str]) -> None:
        for name in names:
            self._among(name, self.columns, "column")

    def _check_methods(self, patterns: Iterable[str]) -> None:
        for pattern in patterns:
            if not fnmatch.filter(self.methods, pattern):
                self._among(pattern, self.methods, "method")

    def _among(self, name: str, known: set[str], what: str) -> None:
        if name in known or (what != "column" and not self._frames):
            return
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"take one of {', '.join(sorted(known)[:8])}, ..."
        raise ClaimError(f"names the {what} {name!r}, which no frame has: {hint}")


def check(claims: pandas.DataFrame, frames: Iterable[pandas.DataFrame], recorded: Path) -> None:
    """Raise :class:`ClaimError` if a claim names what neither `frames` nor the frames below `recorded` hold.

    Parameters
    ----------
    claims : DataFrame
        What :func:`~spectile_study.bench.claims.read_claims` returned.
    frames : iterable of DataFrame
        Those of a run.
    recorded : Path
        Folder of reviewed frames, ``<machine>/<paper>.parquet``; it may be absent.
    """
    frames = list(frames)
    for paper, rows in claims.groupby("paper"):
        own = [frame[frame["paper"] == paper] for frame in frames]
        names = Names(
            str(paper),
            [*own, *(record.read_frame(path, whole=True) for path in sorted(recorded.glob(f"*/{paper}.parquet")))],
        )
        for _, claim in rows.iterrows():
            try:
                names.check_claim({str(key): str(value) for key, value in claim.items()})
            except ClaimError as error:
                raise ClaimError(f"claim {claim['claim']!r} {error}") from None
