"""Claims: what the papers print or conclude, each beside what the records say.

``config/claims.tsv`` holds one printed number or one conclusion a row: of which kind it is, and how to find ours (a
filter on the frame's rows, a quantity and an aggregate, :mod:`spectile_study.bench.quantities`).  ``config/README.md``
explains its columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spectile_study.bench.quantities import SHAPES, ClaimError, aggregate, meets, of_rows, time_of

if TYPE_CHECKING:
    import pandas

__all__ = [
    "CAUSES", "COLUMNS", "JUDGED", "KINDS", "VERDICTS", "ClaimError", "causes", "evaluate", "listed", "printed",
    "read_claims", "select", "used",
]  # fmt: skip

COLUMNS = (
    "claim", "paper", "element", "drawn", "about", "kind", "statement", "printed", "unit", "filter", "column",
    "aggregate", "tolerance", "least", "reason", "note",
)  # fmt: skip
#: Whom a claim speaks of: the paper's own method, or a vendor's or another library alone.
ABOUT = ("own", "vendor")
#: Kinds that hold on other hardware and get a verdict, and those of the paper's own machine and run, which get none.
JUDGED = ("exact", "ratio", "share", "conclusion")
KINDS = (*JUDGED, "seconds", "setting")
#: The verdict that says the same as the paper, and those that say something else.
HOLDS = ("reproduced",)
FAILS = ("ahead", "behind", "above", "below", "differs", "vendor changed")
VERDICTS = (*HOLDS, *FAILS)
#: Why a claim has no verdict, and the reasons, as records and :func:`evaluate` put them, that are of this cause.  What
#: comes first counts where rows give several reasons; what no pattern fits is not recorded yet.
CAUSES = {
    "not said by the paper": r"the paper does not say",
    "too few cases": r"that a verdict takes",
    "rival not installed": r"is not (built|installed|rebuilt)\b",
    "input absent": r"has not been (fetched|made)\b",
    "needs a GPU": r"CUDA device",
    "needs more GPUs": r"needs \d+ GPUs",
    "a method fails": r"Error\b|wrong result|INSUFFICIENT_RESOURCES",
    "score says nothing": r"says nothing",
    "not recorded yet": r"",
}
#: Shapes whose number is an abscissa, which the paper's may differ from by a factor.
_PLACES = ("crosses", "highest", "lowest")
#: Shapes whose number must not be larger than the printed one, or 1.
_CAPPED = ("saturates", "spread", "max")


def read_claims(path: str | Path) -> pandas.DataFrame:
    """Read and check the claims table.

    Raises
    ------
    ClaimError
        If there is no such table, a column is missing, a claim stands twice, a number is none, a kind is unknown, or
        one that gets a verdict has no tolerance.
    """
    import pandas

    try:
        table = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False, comment="#", quoting=3)
    except FileNotFoundError:
        raise ClaimError(
            f"there is no table of claims {path}: work in a checkout, or name the table or study"
        ) from None
    except ValueError as error:
        raise ClaimError(f"{path} cannot be read as a table: {error}") from None
    if tuple(table.columns) != COLUMNS:
        raise ClaimError(f"{path}: the columns must be {', '.join(COLUMNS)}; they are {', '.join(table.columns)}")
    twice = table["claim"][table["claim"].duplicated()]
    if len(twice):
        raise ClaimError(f"{path}: the claim {twice.iloc[0]!r} stands twice: give each row its own name")
    for claim, about, kind, column, tolerance, least in zip(
        *(table[name] for name in ("claim", "about", "kind", "column", "tolerance", "least")), strict=True
    ):
        if about not in ABOUT:
            raise ClaimError(f"{path}: claim {claim!r} is about {about!r}: choose one of {', '.join(ABOUT)}")
        if not (least == "" or least.isdecimal()):
            raise ClaimError(f"{path}: claim {claim!r} takes at least {least!r} cases, which is no number")
        if kind not in KINDS:
            raise ClaimError(f"{path}: claim {claim!r} has the kind {kind!r}: choose one of {', '.join(KINDS)}")
        if (kind in JUDGED and column != "") != (tolerance != ""):
            raise ClaimError(
                f"{path}: claim {claim!r} needs a tolerance exactly if its kind gets a verdict and it has a column"
            )
    try:
        table["printed"] = table["printed"].mask((table["kind"] == "conclusion") & (table["printed"] == ""), "nan")
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


_RESULTS = (
    "measured", "ratio", "verdict", "turns", "basis", "missing", "cause", "time", "device", "machine", "records",
)  # fmt: skip


def evaluate(claims: pandas.DataFrame, frames: Iterable[pandas.DataFrame]) -> pandas.DataFrame:
    """Return `claims` with the columns of what the frames say.

    They are ``measured, ratio, verdict, turns, basis, missing, cause, time, device, machine, records``.

    Verdicts: ``reproduced``, and where ours is another number: ``ahead`` or ``behind`` of a ratio, ``above`` or
    ``below`` of a share, which has no good side, ``differs`` of exact numbers and conclusions, and of all these
    ``vendor changed`` where the paper speaks of a vendor alone; ``shown beside`` of the paper's seconds and settings;
    ``not judged`` where fewer cases were measured than a verdict takes; ``not measured``, with the reason as
    ``missing``, where no record holds the number; ``the paper's alone`` where none could (the row has no column, and
    its note says why).  ``turns`` says in words that one wins where the other loses.  ``basis`` names the cases that
    our number is made of.  ``cause`` is the one of :data:`CAUSES` for which a claim that should have a verdict has
    none.  ``time`` says whether times are those of calls or of the device.
    """
    import pandas

    # Copied, as wide frames that were joined are slow to add columns to.
    by_paper = {frame["paper"].iloc[0]: frame.copy() for frame in frames if len(frame)}
    results = []
    for _, row in claims.iterrows():
        try:
            results.append(_evaluate_row(row, by_paper.get(row["paper"])))
        except ClaimError as error:
            raise ClaimError(f"claim {row['claim']!r} {error}") from None
    return pandas.concat([claims.reset_index(drop=True), pandas.DataFrame(results, columns=_RESULTS)], axis=1)


def used(claim: pandas.Series, frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of `frame` that `claim` is made of, with its quantity as ``value``."""
    return of_rows(select(frame, claim["filter"]), claim["column"])


def _evaluate_row(row: pandas.Series, frame: pandas.DataFrame | None) -> tuple[object, ...]:
    if not row["column"]:
        return _without(row, row["note"], "the paper's alone")
    if frame is None:
        return _without(row, "this run holds no record of the paper")
    rows = used(row, frame)
    how = row["aggregate"] or "only"
    if not len(rows) or (how.partition(":")[0] in SHAPES and len(rows) < 2):
        return _without(row, _why_missing(row, frame))
    measured = aggregate(rows, how)
    if np.isnan(measured):
        return _without(row, _NOT_A_NUMBER.get(how.partition(":")[0], "this run lacks rows on one side of it"))
    ratio = measured / row["printed"] if row["printed"] else None
    where = (", ".join(sorted(set(rows[name]))) for name in ("device", "machine", "record"))
    cases, least = rows["case"].nunique(), int(row["least"] or 0)
    judged, turns, why = verdict(row, measured), _turns(row, measured), ""
    if cases < least:
        judged, turns, why = "not judged", "", f"made of {cases} of the {least} cases that a verdict takes"
    cause = _cause(why) if why and row["kind"] in JUDGED else ""
    return (measured, ratio, judged, turns, _basis(rows), why, cause, time_of(rows, row["column"]), *where)


#: So many cases are named; more are counted.
_NAMED = 6


def _basis(rows: pandas.DataFrame) -> str:
    """Return in words which cases a number is made of."""
    known = rows["case"]
    if "p_matrix" in rows and rows["p_matrix"].notna().all():
        known = rows["p_matrix"].str.rpartition("/")[2]
    names = sorted(set(known))
    if len(names) <= _NAMED:
        return ", ".join(names)
    sizes = rows["p_n"].dropna() if "p_n" in rows else rows["case"].iloc[:0]
    span = f", n = {sizes.min():,.0f} to {sizes.max():,.0f}" if len(sizes) and sizes.min() < sizes.max() else ""
    return f"{len(names)} cases{span}"


def _turns(row: pandas.Series, measured: float) -> str:
    """Return in words that ours wins where the paper's loses, or the other way round; nothing where both do the same.

    What is won or lost is a speed-up over 1, or a gain over 0; within the tolerance nothing turns.
    """
    level = {"speedup": 1.0, "gain": 0.0}.get(row["column"].partition(":")[0])
    if row["kind"] != "ratio" or level is None or verdict(row, measured) in HOLDS:
        return ""
    theirs, ours = float(row["printed"]) - level, measured - level
    if theirs * ours >= 0:
        return ""
    return "the paper loses here and ours wins" if ours > 0 else "the paper wins here and ours loses"


_NOT_A_NUMBER = {
    "precision": "this run is faster everywhere, or the criterion holds nowhere: its precision says nothing",
    "recall": "this run is faster nowhere, or the criterion holds everywhere: its recall says nothing",
}


def _without(row: pandas.Series, why: str, verdict: str = "not measured") -> tuple[object, ...]:
    return (None, None, verdict, "", "", why, _cause(why) if row["kind"] in JUDGED else "", "", "", "", "")


def _cause(why: str) -> str:
    return next(cause for cause, pattern in CAUSES.items() if re.search(pattern, why))


def causes(evaluated: pandas.DataFrame) -> dict[str, int]:
    """Return how many claims of a kind with verdicts have none, by cause, the most frequent first."""
    lacking = evaluated.loc[evaluated["cause"] != "", "cause"]
    return {str(cause): int(count) for cause, count in lacking.value_counts().items()}


def verdict(claim: pandas.Series, measured: float) -> str:
    """Return what `measured` says of a claim.

    The tolerance of a ratio t allows the factor 1 + t to both sides (a gain in per cent is such a ratio, too).  That of
    exact numbers and shares is relative to the printed number, or ``abs:`` absolute.  That of a conclusion is relative
    to its bound, the printed number or 1; of a place along a curve, it is a factor beyond 1; of ``follows``, it is the
    least correlation.

    Raises
    ------
    ClaimError
        If the tolerance is neither a number nor ``abs:number``.
    """
    kind, target = claim["kind"], float(claim["printed"])
    if kind not in JUDGED:
        return "shown beside"
    text = claim["tolerance"]
    try:
        size = float(text.removeprefix("abs:"))
    except ValueError:
        raise ClaimError(f"has the tolerance {text!r}, which is neither a number nor abs:number") from None
    if kind == "conclusion":
        same = _has_shape(claim["aggregate"].partition(":")[0], measured, target, size)
    elif text.startswith("abs:"):
        same = abs(measured - target) <= size
    elif kind == "ratio":
        of, to = (100 + measured, 100 + target) if claim["column"].startswith("gain:") else (measured, target)
        same = to <= of * (1 + size) and of <= to * (1 + size)
    else:
        same = abs(measured - target) <= size * abs(target)
    if same:
        return "reproduced"
    if claim["about"] == "vendor":
        return "vendor changed"
    words = {"ratio": ("behind", "ahead"), "share": ("below", "above")}
    return words[kind][measured > target] if kind in words else "differs"


def _has_shape(shape: str, measured: float, target: float, size: float) -> bool:
    if shape in _PLACES:
        return target / (1 + size) <= measured <= target * (1 + size)
    if shape == "follows":
        return measured >= size
    bound = 1.0 if np.isnan(target) else target
    return measured <= bound * (1 + size) if shape in _CAPPED else measured >= bound * (1 - size)


def select(frame: pandas.DataFrame, conditions: str) -> pandas.DataFrame:
    """Return the rows of `frame` that meet every condition of ``"column=value,column>value"``.

    Raises
    ------
    ClaimError
        If a condition has none of ``=``, ``>`` and ``<``.
    """
    met = np.ones(len(frame), dtype=bool)
    for condition in filter(None, (part.strip() for part in conditions.split(","))):
        met &= meets(frame, condition)
    return frame[met]


def _why_missing(row: pandas.Series, frame: pandas.DataFrame) -> str:
    """Return why no row has the quantity of a claim.

    A reason is that of a method that the claim's column names, or of a case that was skipped as a whole; of several,
    the one whose cause comes first.
    """
    conditions = [part.strip() for part in row["filter"].split(",")]
    of_cases = select(frame, ",".join(part for part in conditions if part.startswith("p_")))
    rows = select(frame, row["filter"])
    named = rows[rows["method"].isin(row["column"].split(":"))]
    told = [*(named if len(named) else rows).get("reason", []), *of_cases[of_cases["method"] == "-"].get("reason", [])]
    reasons: Sequence[str] = [reason for reason in told if isinstance(reason, str) and reason]
    if reasons:
        return min(reasons, key=lambda reason: list(CAUSES).index(_cause(reason)))
    gpus = re.search(r"p_gpus=([2-9]\d*)", row["filter"])
    if gpus and not len(of_cases):
        return f"it needs {gpus[1]} GPUs, and this run holds no such case on so many"
    device = frame["device"].iloc[0] if len(frame) else "this machine"
    return f"no finished case of this run on {device} holds it"
