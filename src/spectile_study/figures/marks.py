"""The notes that tie what is drawn to records: ``<stem>.marks.tsv`` beside each figure and table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from spectile.core.atomic_file import atomic_write
from spectile_study.figures.palette import name

#: What is said of rows that stay from an earlier record.
EARLIER = "From an earlier run, the latest that had both what is drawn and what it is compared with"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, which readers see whole or not at all."""
    with atomic_write(path) as partial:
        partial.write_text(text)


def write_marks(path: Path, notes: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write the notes of the drawing `path` beside it."""
    table = pandas.DataFrame(notes, columns=list(columns))
    write_text(path.with_suffix(".marks.tsv"), table.to_csv(sep="\t", index=False))


def single(rows: pandas.DataFrame, column: str) -> np.ndarray:
    """Return which of the frame rows have a `column` of a single sample: its interval is a point."""
    if f"{column}_lo" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return (rows[f"{column}_lo"] == rows[f"{column}_hi"]).to_numpy(dtype=bool)


def earlier(methods: Mapping[str, Iterable[str]]) -> list[str]:
    """Return what is said of methods that stay from earlier records, by the date of each; nothing for none."""
    named = [f"{', '.join(sorted({name(each) for each in of}))} ({date})" for date, of in sorted(methods.items())]
    return [f"{EARLIER}: {'; '.join(named)}."] if named else []
