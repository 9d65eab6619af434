"""Claims: the papers' printed numbers, each beside what the records say.

``config/claims.tsv`` holds one printed number a row, and how to find ours: a filter on the frame's columns, a column
(or ``speedup:<method>:<baseline>``, or ``rate``, in TFLOP/s) and an aggregate.  A tolerance makes it a statement that
must reproduce; without one the two numbers stand side by side, because the hardware differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spectile_study.bench.stats import geometric_mean, rates, speedups

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "claim", "paper", "element", "statement", "printed", "unit", "filter", "column", "aggregate", "tolerance", "note",
)  # fmt: skip
_AGGREGATES: dict[str, Callable[..., float]] = {
    "median": np.median,
    "max": np.max,
    "min": np.min,
    "geomean": geometric_mean,
}


class ClaimError(ValueError):
    """A row of the claims table that cannot be evaluated; the message names the row and what to do."""


def read_claims(path: str | Path) -> pandas.DataFrame:
    """Read and check the claims table.

    Raises
    ------
    ClaimError
        If a column is missing, a claim stands twice or a printed value is not a number.
    """
    import pandas

    table = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False, comment="#", quoting=3)
    if tuple(table.columns) != COLUMNS:
        raise ClaimError(f"{path}: the columns must be {', '.join(COLUMNS)}; they are {', '.join(table.columns)}")
    twice = table["claim"][table["claim"].duplicated()]
    if len(twice):
        raise ClaimError(f"{path}: the claim {twice.iloc[0]!r} stands twice: give each row its own name")
    try:
        table["printed"] = table["printed"].astype(float)
    except ValueError as error:
        raise ClaimError(f"{path}: column 'printed' holds something that is no number ({error})") from None
    return table


@functools.cache
def _listed(path: Path) -> pandas.DataFrame:
    return read_claims(path).set_index("claim")


def listed(path: Path | None = None) -> pandas.DataFrame:
    """Return the claims table, indexed by claim; `path` is remembered for the calls that give none."""
    global _table
    _table = path or _table
    return _listed(_table)


_table = Path("config/claims.tsv")


def printed(claim: str) -> float:
    """Return the number that the paper prints for `claim`.

    Raises
    ------
    KeyError
        If the claims table does not list it: then it may not be drawn as the paper's.
    """
    table = listed()
    if claim not in table.index:
        raise KeyError(
            f"{claim!r} is not in {_table}: only printed numbers may be drawn as the paper's, so list it first"
        )
    return float(table["printed"].astype(float).loc[claim])


def evaluate(claims: pandas.DataFrame, frames: Iterable[pandas.DataFrame]) -> pandas.DataFrame:
    """Return `claims` with the columns ``measured, ratio, verdict, reason, device, machine, records``.

    Verdicts: ``reproduced`` or ``differs`` where a tolerance is given, ``shown beside`` where not, ``not measured``
    with the reason where no record holds the number, ``the paper's alone`` where none could (the row has no column, and
    its note says why).
    """
    by_paper = {frame["paper"].iloc[0]: frame for frame in frames if len(frame)}
    results = [_evaluate_row(row, by_paper.get(row["paper"])) for _, row in claims.iterrows()]
    import pandas

    return pandas.concat([claims.reset_index(drop=True), pandas.DataFrame(results, columns=_RESULTS)], axis=1)


_RESULTS = ("measured", "ratio", "verdict", "reason", "device", "machine", "records")


def _evaluate_row(row: pandas.Series, frame: pandas.DataFrame | None) -> tuple[object, ...]:
    nothing = (None, None, "not measured")
    if not row["column"]:
        return (None, None, "the paper's alone", row["note"], "", "", "")
    if frame is None:
        return (*nothing, "this run holds no record of the paper", "", "", "")
    rows = select(frame, row["filter"], row["claim"])
    column = row["column"]
    if column.startswith("speedup:"):
        _, method, baseline = column.split(":")
        values_of = speedups(rows, method, baseline) if len(rows) else rows
        column = "speedup"
    elif column == "rate":
        values_of = rows[(rows["status"] == "ok") & rows["time_s"].notna() & rows["flops"].notna()]
        values_of = values_of.assign(rate=rates(values_of))
    else:
        values_of = rows[(rows["status"] == "ok") & rows[column].notna()] if column in rows else rows.iloc[:0]
    if not len(values_of):
        return (*nothing, _why_missing(rows, frame), "", "", "")
    values = values_of[column].astype(float).to_numpy()
    aggregate = row["aggregate"] or "only"
    if aggregate == "only":
        if len(values) != 1:
            raise ClaimError(f"claim {row['claim']!r} finds {len(values)} rows: narrow its filter or give an aggregate")
        measured = float(values[0])
    elif aggregate in _AGGREGATES:
        measured = float(_AGGREGATES[aggregate](values))
    else:
        raise ClaimError(f"claim {row['claim']!r}: aggregate {aggregate!r} is none of only, {', '.join(_AGGREGATES)}")
    printed = float(row["printed"])
    ratio = measured / printed if printed else None
    verdict = _verdict(measured, printed, row["tolerance"], row["claim"])
    where = (", ".join(sorted(set(values_of[name]))) for name in ("device", "machine", "record"))
    return (measured, ratio, verdict, "", *where)


def select(frame: pandas.DataFrame, conditions: str, what: str = "filter") -> pandas.DataFrame:
    """Return the rows of `frame` that meet ``"column=value,column=value"``; numbers compare to nine digits.

    Raises
    ------
    ClaimError
        If a condition has no ``=``.
    """
    import pandas

    met = np.ones(len(frame), dtype=bool)
    for condition in filter(None, (part.strip() for part in conditions.split(","))):
        name, equals, wanted = condition.partition("=")
        if not equals:
            raise ClaimError(f"{what}: the condition {condition!r} lacks '=': write column=value")
        if name not in frame:
            return frame.iloc[:0]
        try:
            number = float(wanted)
        except ValueError:
            met &= (frame[name].astype(str) == wanted).to_numpy()
            continue
        numeric = pandas.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        met &= np.isclose(numeric, number, rtol=1e-9, atol=0)
    return frame[met]


def _why_missing(rows: pandas.DataFrame, frame: pandas.DataFrame) -> str:
    reasons: Sequence[str] = [reason for reason in rows.get("reason", []) if isinstance(reason, str) and reason]
    if reasons:
        return reasons[0]
    device = frame["device"].iloc[0] if len(frame) else "this machine"
    return f"no finished case of this run on {device} holds it"


def _verdict(measured: float, printed: float, tolerance: str, claim: str) -> str:
    if not tolerance:
        return "shown beside"
    try:
        if tolerance.startswith("abs:"):
            close = abs(measured - printed) <= float(tolerance[4:])
        else:
            close = abs(measured - printed) <= float(tolerance) * abs(printed)
    except ValueError:
        raise ClaimError(f"claim {claim!r}: tolerance {tolerance!r} is neither a number nor abs:number") from None
    return "reproduced" if close else "differs"
