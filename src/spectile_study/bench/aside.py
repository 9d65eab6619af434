"""Finished records, set aside while a run may replace them: Snakemake removes the outputs of jobs that fail."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["bring_back", "set_aside"]


def set_aside(records: Path, aside: Path) -> None:
    """Give every record below the folder `records` a second name below `aside`, which a removal of the first leaves.

    Whoever writes a record replaces the file and does not write into it, so that the second name keeps the content.
    """
    for path in records.rglob("*.json"):
        second = aside / path.relative_to(records)
        second.parent.mkdir(parents=True, exist_ok=True)
        second.unlink(missing_ok=True)
        try:
            os.link(path, second)
        except OSError:  # a file system without second names
            shutil.copy2(path, second)


def bring_back(records: Path, aside: Path) -> list[str]:
    """Give records that were set aside and are gone their first name again, forget the others; return which came back.

    Returns
    -------
    list of str
        Paths below `records`; nothing where nothing was set aside.
    """
    back = []
    for second in sorted(aside.rglob("*.json")):
        path = records / second.relative_to(aside)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            second.replace(path)
            back.append(str(path.relative_to(records)))
    shutil.rmtree(aside, ignore_errors=True)
    return back
