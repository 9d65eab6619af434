"""What of each table and figure of the papers is drawn: its series, its sizes and its baselines, or why not.

``config/elements.tsv`` lists what the papers show, with a filter by which it is found among the rows that an element
marks; what is drawn is read from the marks, so that the table cannot say more than the drawings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas

from spectile_study.bench.claims import select

if TYPE_CHECKING:
    from spectile_study.figures.drawing import Drawing
    from spectile_study.figures.elements import Element
    from spectile_study.figures.tables import Table

COLUMNS = ("paper", "element", "part", "what", "filter", "why")
PARTS = ("series", "sizes", "baselines")


class Item(NamedTuple):
    """One thing that an element of a paper shows.

    Attributes
    ----------
    part : str
        ``series``, ``sizes`` or ``baselines``.
    what : str
        In words.
    found : str
        ``there``, ``in part`` or ``not there``.
    why : str
        Why it is not there, or not all of it; empty where it is.
    """

    part: str
    what: str
    found: str
    why: str


def read(path: Path) -> pandas.DataFrame:
    """Read and check what the papers show.

    Raises
    ------
    ValueError
        If a column is missing or a row names no part.
    """
    table = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False, quoting=3)
    if tuple(table.columns) != COLUMNS:
        raise ValueError(f"{path}: the columns must be {', '.join(COLUMNS)}; they are {', '.join(table.columns)}")
    wrong = table[~table["part"].isin((*PARTS, "shows"))]
    if len(wrong):
        raise ValueError(
            f"{path}: {wrong['paper'].iloc[0]} {wrong['element'].iloc[0]} has the part {wrong['part'].iloc[0]!r}: "
            f"choose one of shows, {', '.join(PARTS)}"
        )
    return table


def items(table: pandas.DataFrame, element: Element, frame: pandas.DataFrame, drawn: Drawing | Table) -> list[Item]:
    """Return what `element` shows of what the paper's shows.

    Parameters
    ----------
    table : DataFrame
        What :func:`read` returned.
    element : Element
    frame : DataFrame
        The paper's.
    drawn : Drawing or Table
        What the element's script made of `frame`.

    Raises
    ------
    ValueError
        If the table has a reason why something is not there that is.
    """
    notes: list[dict[str, Any]] = getattr(drawn, "notes" if hasattr(drawn, "figure") else "sources")
    marks = {(note["record"], note["method"]) for note in notes}
    rows = frame[[key in marks for key in zip(frame["record"], frame["method"], strict=True)]]
    # A speed-up is one mark of two rows: the baseline is another row of its record.
    ratios = {note["record"] for note in notes if "speedup" in note["y_column"]}
    others = pandas.concat([rows, frame[frame["record"].isin(ratios) & (frame["status"] == "ok")]])
    found = []
    for part, what, filters, why in _listed(table, element):
        state = _state(rows if part != "baselines" else others, filters.split(";"))
        if state == "there" and why:
            raise ValueError(
                f"{element.paper} {element.name}: {what!r} is drawn; empty the reason why it is not: {why!r}"
            )
        found.append(Item(part, what, state, why))
    return found


def _listed(table: pandas.DataFrame, element: Element) -> Sequence[tuple[str, str, str, str]]:
    own = table[(table["paper"] == element.paper) & (table["element"] == element.name) & (table["part"] != "shows")]
    return list(own[["part", "what", "filter", "why"]].itertuples(index=False, name=None))


def _state(rows: pandas.DataFrame, filters: Sequence[str]) -> str:
    there = [len(select(rows, each)) > 0 for each in filters]
    return "there" if all(there) else "in part" if any(there) else "not there"


def line(shows: str, label: str, found: Sequence[Item]) -> str:
    """Return the line of the Markdown table about one element."""
    cells = [f"{label}: {shows}"]
    for part in PARTS:
        own = [item for item in found if item.part == part]
        words = [_joined([item.what for item in own if item.found == "there"])]
        for state in ("in part", "not there"):
            by_reason: dict[str, list[str]] = {}
            for item in own:
                if item.found == state:
                    by_reason.setdefault(item.why, []).append(item.what)
            words += [f"*{state}*: {', '.join(names)} ({why})" for why, names in by_reason.items()]
        cells.append("; ".join(word for word in words if word))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words)
