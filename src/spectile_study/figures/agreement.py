"""Whether ours agrees with what a paper says of one of its tables or figures, in words, from the claims' verdicts.

A caption says what the paper concluded; ``<stem>.agreement.rst``, written beside each drawing and included by its
caption, says whether ours agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spectile_study.bench.claims import FAILS, HOLDS, JUDGED, evaluate, listed
from spectile_study.figures.marks import write_text

if TYPE_CHECKING:
    import pandas

#: So many claims that do not hold are named; more are counted.
_NAMED = 3


def word(verdicts: Iterable[str]) -> str:
    """Return ``agrees``, ``agrees in part``, ``does not agree``, or nothing where no claim has a verdict."""
    held = [verdict in HOLDS for verdict in verdicts if verdict in (*HOLDS, *FAILS)]
    if not held:
        return ""
    return "agrees" if all(held) else "agrees in part" if any(held) else "does not agree"


def sentence(claims: pandas.DataFrame) -> str:
    """Return one sentence about the evaluated `claims` of one element; nothing where there are none."""
    if not len(claims):
        return ""
    claims = claims[claims["kind"].isin(JUDGED)]
    if not len(claims):
        return "Its numbers are those of the paper's machine: no verdict is due."
    judged = claims[claims["verdict"].isin((*HOLDS, *FAILS))]
    found = word(judged["verdict"])
    if not found:
        return "**Nothing can be said of ours**: no claim of it has a verdict in this run."
    failed = judged[judged["verdict"].isin(FAILS)]
    left = len(claims) - len(judged)
    more = f"; {left} {'have' if left > 1 else 'has'} no verdict" if left else ""
    if not len(failed):
        return f"**Ours {found}**: {_all_of(len(judged))}{more}."
    named = "; ".join(failed["statement"].head(_NAMED).map(_escaped))
    others = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    held = f"{len(judged) - len(failed)} of {len(judged)} claims hold"
    return f"**Ours {found}**: {held}{more}. Not so: {named}{others}."


def _all_of(count: int) -> str:
    return {1: "its one claim holds", 2: "both claims hold"}.get(count, f"all {count} claims hold")


def _escaped(text: str) -> str:
    """Return `text` as reStructuredText shows it."""
    return "".join("\\" + letter if letter in r"\*`_|" else letter for letter in text)


def of_element(frame: pandas.DataFrame, paper: str, element: str) -> pandas.DataFrame:
    """Return the claims that an element of a paper draws, evaluated on `frame`."""
    table = listed().reset_index()
    table = table[(table["paper"] == paper) & table["drawn"].str.split(",").map(lambda names: element in names)]
    return evaluate(table, [frame])


def write(frame: pandas.DataFrame, paper: str, element: str, drawing: Path) -> None:
    """Write what `frame` says of the claims of an element beside its `drawing`."""
    write_text(drawing.with_suffix(".agreement.rst"), sentence(of_element(frame, paper, element)) + "\n")
