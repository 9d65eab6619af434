"""The frame of everyday draws: one row a draw, measured, skipped or failed; read and written, checked both times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectile.core.atomic_file import atomic_write

if TYPE_CHECKING:
    import pandas

#: The columns of every frame, and what they hold.
COLUMNS = {
    "system": "spamm, tsparse, evd or kpm",
    "index": "number of the draw in its system's sequence",
    "seed": "seed of the recording",
    "machine": "name under which the machine's results are kept",
    "device": "name of the processor or GPU",
    "draw": "the draw in words",
    "call": "the public call",
    "status": "ok, skipped (beyond the limits) or failed (ours fails, or is wrong)",
    "reason": "why it was not measured",
    "method": "what the library says that it took",
    "check": "exact (everything compared), probes (a part, or random vectors) or residuals",
    "error_asked": "the error that was asked for, or is allowed",
    "error_found": "that of ours, in the same measure",
    "error_limit": "the largest that passes: more than was asked where it is estimated",
    "seconds": "median wall clock of a call of ours",
    "samples_s": "its samples, one a round",
    "rival": "the fastest alternative that passed the check",
    "rival_s": "its median",
    "rival_samples_s": "its samples",
    "ratio": "its time over ours, the median over the rounds; above 1 ours is faster",
    "ratio_lo": "lower end of the 95 % interval of the ratio",
    "ratio_hi": "upper end",
    "missing": "alternatives that are not installed or failed, with the reason",
    "allowed_share": "time that the draw's own work and bytes allow over ours (SpAMM; of KPM the recurrence alone)",
    "device_share": "time that the GPU works in a call over the call's wall clock",
    "commit": "commit of the sources",
    "dirty": "whether they differed from it",
    "digest": "digest of the sources that can change the system's numbers",
}
#: Beginnings of further columns: parameters of the draw, medians of all other methods, what was found, provenance.
PREFIXES = ("p_", "s_", "w_", "run_")
_TEXT = ("system", "machine", "device", "draw", "call", "status", "reason", "method", "check", "rival", "missing")
_LISTS = ("samples_s", "rival_samples_s")


class FrameError(ValueError):
    """A frame of draws that contradicts itself; the message names the row and what to do."""


def made(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return the frame of rows, with every column and in the order of systems and draws.

    Raises
    ------
    FrameError
        As :func:`check`.
    """
    import pandas

    table = pandas.DataFrame([dict(row) for row in rows])
    for name in COLUMNS:
        if name not in table:
            table[name] = None
    others = sorted(str(name) for name in table if name not in COLUMNS)
    table = table[[*COLUMNS, *others]].sort_values(["system", "index"], ignore_index=True)
    check(table, "the frame")
    return table


def check(table: pandas.DataFrame, what: str) -> None:
    """Raise :class:`FrameError` if a row is not what it says: its numbers are refused, and not drawn.

    Parameters
    ----------
    table : DataFrame
    what : str
        How the message calls it.
    """
    missing = [name for name in COLUMNS if name not in table]
    foreign = [name for name in table if name not in COLUMNS and not str(name).startswith(PREFIXES)]
    if missing or foreign:
        raise FrameError(
            f"{what} is no frame of everyday draws: {', '.join([*missing, *map(str, foreign)])} is wrong there"
        )
    if len(set(table["machine"])) > 1 or (table.groupby("system")["seed"].nunique() > 1).any():
        raise FrameError(f"{what} holds draws of several machines or seeds of a system: record each by itself")
    if table.duplicated(["system", "index"]).any():
        raise FrameError(f"{what} holds a draw twice: record it again")
    for _, row in table.iterrows():
        why = _wrong(row)
        if why:
            raise FrameError(f"{what}: draw {row['index']} of {row['system']} {why}: record it again")


def _wrong(row: Any) -> str:
    """Return what a row contradicts itself in; nothing where it stands."""
    if row["status"] != "ok":
        if row["status"] not in ("skipped", "failed") or not row["reason"]:
            return f"has the status {row['status']!r} and no reason"
        return "was not measured and has a time" if _is_number(row["seconds"]) else ""
    if not (_is_number(row["error_found"]) and row["error_found"] <= row["error_limit"]):
        return f"is ok and its error {row['error_found']} is above {row['error_limit']}"
    for time, samples in (("seconds", "samples_s"), ("rival_s", "rival_samples_s")):
        if row[samples] is None or (isinstance(row[samples], float) and math.isnan(row[samples])):
            if time == "seconds":
                return "is ok and has no samples"
            continue
        ordered = sorted(float(sample) for sample in row[samples])
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        if not (ordered[0] > 0 and math.isclose(middle, row[time], rel_tol=1e-9)):
            return f"has {time} = {row[time]}, which is not the median of its samples"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def write(table: pandas.DataFrame, path: str | Path) -> None:
    """Write a frame as parquet, atomically."""
    import pandas

    table = table.copy()
    for name in table:
        if name in _LISTS:
            continue
        if name in _TEXT or str(name) in ("commit", "digest") or any(isinstance(value, str) for value in table[name]):
            table[name] = table[name].map(lambda value: None if pandas.isna(value) else str(value)).astype(object)
        elif name == "dirty":
            table[name] = table[name].astype("boolean")
        elif name not in ("index", "seed"):
            table[name] = pandas.to_numeric(table[name], errors="raise").astype(float)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        table.to_parquet(partial, index=False)


def read(path: str | Path) -> pandas.DataFrame:
    """Read a frame.

    Raises
    ------
    FrameError
        If it lacks a column, or a row contradicts itself.
    """
    import pandas

    table = pandas.read_parquet(path)
    lacks = sorted(set(_LISTS) - set(table))
    if lacks:
        raise FrameError(f"{path} is no frame of everyday draws: it has no {lacks[0]}")
    for name in _LISTS:
        table[name] = table[name].map(lambda value: value.tolist() if hasattr(value, "tolist") else None)
    check(table, str(path))
    return table
