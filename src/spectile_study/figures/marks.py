"""The notes that tie what is drawn to records: ``<stem>.marks.tsv`` beside each figure and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from spectile.core.atomic_file import atomic_write


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, which readers see whole or not at all."""
    with atomic_write(path) as partial:
        partial.write_text(text)


def write_marks(path: Path, notes: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write the notes of the drawing `path` beside it."""
    table = pandas.DataFrame(notes, columns=list(columns))
    write_text(path.with_suffix(".marks.tsv"), table.to_csv(sep="\t", index=False))
