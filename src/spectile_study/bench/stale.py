"""Records that other software made than is here now: the sources, the driver, the libraries, the row of the sheet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from spectile_study.bench import provenance

#: Columns of a sheet that say where a case is drawn and what a scheduler is asked for, and change no number.
UNMEASURED = ("case", "run", "element", "minutes", "memory_gb")


def changes(
    stored: Mapping[str, Any], row: Mapping[str, Any], edited: Iterable[str], software: Mapping[str, str]
) -> dict[str, str]:
    """Return what is not any more as it was when a record was measured.

    Parameters
    ----------
    stored : mapping
        The record.
    row : mapping
        The case's row of the sheet.
    edited : iterable of str
        What of its sources is another, as :func:`spectile_study.bench.provenance.edited` says.
    software : mapping
        Versions by name, as :func:`spectile_study.bench.provenance.software` gives them for the record's backend; what
        either side does not know is not compared.

    Returns
    -------
    dict of str
        ``"580.1 -> 590.2"`` by name; nothing for a record that stands.
    """
    found = dict.fromkeys(edited, "edited")
    params = stored["params"]
    for name in sorted((set(row) | set(params)) - set(UNMEASURED)):
        if row.get(name) != params.get(name):
            found[f"column {name}"] = f"{params.get(name)} -> {row.get(name)}"
    was = provenance.software_of(stored)
    for name in software:
        if name in was and was[name] != software[name]:
            found[name] = f"{was[name]} -> {software[name]}"
    return found


def installed(backend: str) -> dict[str, str]:
    """Return the versions of the software here, asked in another process: CUDA would stay in this one."""
    if backend == "cpu":
        return provenance.software("cpu")
    done = subprocess.run(
        [sys.executable, "-m", "spectile_study", "software", "--device", backend], capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else {}


def told(found: Iterable[Mapping[str, str]]) -> str:
    """Return one sentence about stale records: how many there are and what changed for how many."""
    stale = [each for each in found if each]
    counts = Counter(f"{name} {change}" for each in stale for name, change in each.items())
    what = "; ".join(f"{change} ({count})" for change, count in counts.most_common(4))
    more = f"; and {len(counts) - 4} changes more" if len(counts) > 4 else ""
    return f"{len(stale)} records were measured with other software or rows: {what}{more}"
