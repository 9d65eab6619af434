"""Claims: what the papers print or conclude, each beside what the records say.

``config/claims.tsv`` holds a line of a printed table, or one conclusion, a row, and of which kind it is;
``config/README.md`` explains its columns.  Our number is computed beside the drawing of the element, from
:class:`~spectile_study.bench.rows.Rows`; :func:`judge` holds the two against each other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectile_study.bench import record
from spectile_study.bench.names import ClaimError

if TYPE_CHECKING:
    import pandas

    from spectile_study.bench.rows import Ours

__all__ = [
    "CAUSES", "COLUMNS", "JUDGED", "KINDS", "RESULTS", "VERDICTS", "ClaimError", "causes", "explained", "judge",
    "listed", "printed", "read_claims",
]  # fmt: skip

COLUMNS = (
    "claim", "paper", "element", "drawn", "about", "kind", "statement", "printed", "unit", "tolerance", "least",
    "reason", "note",
)  # fmt: skip
#: Whom a claim speaks of: the paper's own method, or a vendor's or another library alone.
ABOUT = ("own", "vendor")
#: Kinds that hold on other hardware and get a verdict, and those of the paper's own machine and run, which get none.
JUDGED = ("exact", "ratio", "share", "conclusion")
KINDS = (*JUDGED, "seconds", "setting")
#: The verdict that says the same as the paper, and those that say something else.
HOLDS = ("reproduced",)
FAILS = ("ahead", "behind", "above", "below", "differs", "vendor differs")
VERDICTS = (*HOLDS, *FAILS)
#: Why a claim has no verdict, and the reasons, as records and :meth:`~spectile_study.bench.rows.Ours.reasons` put them,
#: that are of this cause.  What comes first counts where rows give several; what no pattern fits is not recorded yet.
CAUSES = {
    "not said by the paper": r"the paper does not say",
    "too few cases": r"that a verdict takes",
    "several inputs": r"rows of several clusters",
    "rival not installed": record.NOT_INSTALLED,
    "input absent": r"has not been (fetched|made)\b",
    "needs a GPU": r"CUDA device",
    "needs another device": r"needs the device",
    "needs more GPUs": r"needs \d+ GPUs",
    "a method fails": r"Error\b|wrong result|INSUFFICIENT_RESOURCES",
    "score says nothing": r"says nothing",
    "not recorded yet": r"",
}
#: A number, relative, or after ``abs:`` absolute.
TOLERANCE = re.compile(r"(abs:)?\d+(\.\d+)?(e-?\d+)?")
#: What a reason of a number begins with: which number of ours it explains.
SIDES = ("lower", "higher")
_SIDE = re.compile(rf"(?:^|; )({'|'.join(SIDES)}): ")


def read_claims(path: str | Path) -> pandas.DataFrame:
    """Read and check the claims table.

    Raises
    ------
    ClaimError
        If there is no such table, a column is missing, a claim stands twice, a number is none, or a kind is unknown.
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
    try:
        table = pandas.DataFrame([one for row in table.to_dict("records") for one in _numbers(row)], columns=COLUMNS)
    except ValueError as error:
        raise ClaimError(f"{path}: {error}") from None
    twice = table["claim"][table["claim"].duplicated()]
    if len(twice):
        raise ClaimError(f"{path}: the claim {twice.iloc[0]!r} stands twice: give each row its own name")
    for claim, about, kind, tolerance, least, reason in zip(
        *(table[name] for name in ("claim", "about", "kind", "tolerance", "least", "reason")), strict=True
    ):
        if about not in ABOUT:
            raise ClaimError(f"{path}: claim {claim!r} is about {about!r}: choose one of {', '.join(ABOUT)}")
        if not (least == "" or least.isdecimal()):
            raise ClaimError(f"{path}: claim {claim!r} takes at least {least!r} cases, which is no number")
        if kind not in KINDS:
            raise ClaimError(f"{path}: claim {claim!r} has the kind {kind!r}: choose one of {', '.join(KINDS)}")
        if reason and kind in ("exact", "ratio", "share") and not _SIDE.match(reason):
            raise ClaimError(
                f"{path}: claim {claim!r} has a reason for any number: begin it with {' or '.join(SIDES)} and a "
                "colon, so that it cannot stand beside the other"
            )
        if tolerance and (kind not in JUDGED or not TOLERANCE.fullmatch(tolerance)):
            raise ClaimError(
                f"{path}: claim {claim!r} has the tolerance {tolerance!r}: write a number or abs:number, and only for "
                "a kind that gets a verdict"
            )
    try:
        table["printed"] = table["printed"].mask((table["kind"] == "conclusion") & (table["printed"] == ""), "nan")
        table["printed"] = table["printed"].astype(float)
    except ValueError as error:
        raise ClaimError(f"{path}: column 'printed' holds something that is no number ({error})") from None
    return table


def _numbers(row: Mapping[Hashable, str]) -> Iterator[dict[Hashable, str]]:
    """Yield the claims of a row, one for each of its numbers: ``key key:word=number; ...``, keys for the ``*``."""
    name, parts = row["claim"], row["claim"].split("*")
    if len(parts) == 1:
        yield dict(row)
        return
    for cell in row["printed"].split(";"):
        head, equals, number = cell.partition("=")
        keys, words = (text.split() for text in head.partition(":")[::2])
        if not equals or len(keys) != len(parts) - 1:
            raise ValueError(f"claim {name!r} prints {cell!r}: write a key for each * and =number")
        shown = [f"{int(key):,}" if key.isdecimal() else key for key in keys]
        claim = parts[0] + "".join(map("".join, zip(keys, parts[1:], strict=True)))
        try:
            statement = row["statement"].format(*shown, *words)
        except (LookupError, ValueError) as error:
            raise ValueError(f"claim {claim!r} has the statement {row['statement']!r}: {error}") from None
        yield dict(row) | {"claim": claim, "statement": statement, "printed": number}


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


#: What :func:`judge` says of a claim.
RESULTS = (
    "measured", "ratio", "verdict", "turns", "basis", "missing", "cause", "time", "device", "machine", "records",
)  # fmt: skip


def judge(claim: Mapping[str, Any], ours: Ours | None) -> tuple[object, ...]:
    """Return what our number says of a claim, :data:`RESULTS`.

    Verdicts: ``reproduced``, and where ours is another number: ``ahead`` or ``behind`` of a ratio, ``above`` or
    ``below`` of a share, which has no good side, ``differs`` of exact numbers and conclusions, and of all these
    ``vendor differs`` where the paper speaks of a vendor alone; ``shown beside`` of the paper's seconds and settings;
    ``not judged`` where fewer cases were measured than a verdict takes, or molecules stand in several places;
    ``not measured``, with the reason as ``missing``, where no record holds the number; ``the paper's alone`` where
    nothing computes it (its note says why).  ``turns`` says in words that one wins where the other loses.  ``basis``
    names the cases that our number is made of, the methods of which there is a single sample, and what a conclusion's
    number is.  ``cause`` is the
    one of :data:`CAUSES` for which a claim that should have a verdict has none.  ``time`` says whether times are those
    of calls or of the device.
    """
    if ours is None:
        return _without(claim, claim["note"], "the paper's alone")
    if not ours.is_known:
        # Of several reasons, the one whose cause comes first.
        return _without(claim, min(ours.reasons(), key=lambda reason: list(CAUSES).index(_cause(reason))))
    rows, printed = ours.used, float(claim["printed"])
    cases, least = rows["case"].nunique(), int(claim["least"] or 0)
    judged, turns, why = verdict(claim, ours), "", ""
    if cases < least:
        judged, why = "not judged", f"made of {cases} of the {least} cases that a verdict takes"
    elif len(clusters := _clusters(rows)) > 1:
        judged, why = "not judged", f"made of rows of several clusters ({', '.join(clusters)}): record all of one"
    elif judged not in HOLDS:
        turns = _turns(claim, ours)
    where = (", ".join(sorted(set(rows[name]))) for name in ("device", "machine", "record"))
    cause = _cause(why) if why and claim["kind"] in JUDGED else ""
    basis = _basis(rows) + (f"; a single sample of {ours.single}" if ours.single else "")
    if ours.other is not None:
        basis += f"; {ours.other.time} {ours.other.number:,.4g}, {verdict(claim, ours.other)}"
    what = f"ours is the {ours.what}" if ours.what and claim["kind"] == "conclusion" else ""
    basis += "".join(f"; {each}" for each in (_algorithms(ours), what, ours.criterion) if each)
    earlier = record.dates(rows)
    basis += f"; recorded on {', '.join(earlier)}" if earlier else ""
    ratio = ours.number / printed if printed else None
    return (ours.number, ratio, judged, turns, basis, why, cause, ours.time, *where)


def _clusters(rows: pandas.DataFrame) -> list[str]:
    """Return where the molecules of these rows come from: the files, or the seeds of generated ones."""
    return sorted(set(rows["v_cluster"].dropna().str.split(";").str[0])) if "v_cluster" in rows else []


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


def _algorithms(ours: Ours) -> str:
    """Return which algorithm a baseline took, of those that have several."""
    frame = ours.parts[0].rows.frame
    places = [place for part in ours.parts if part.under is not None for place in part.under]
    if "v_algorithm" not in frame:
        return ""
    known = frame.iloc[places].dropna(subset="v_algorithm")
    return ", ".join(sorted(set(known["method"] + " by its " + known["v_algorithm"])))


def _without(row: Mapping[str, Any], why: str, verdict: str = "not measured") -> tuple[object, ...]:
    return (None, None, verdict, "", "", why, _cause(why) if row["kind"] in JUDGED else "", "", "", "", "")


def _cause(why: str) -> str:
    return next(cause for cause, pattern in CAUSES.items() if re.search(pattern, why))


def causes(evaluated: pandas.DataFrame) -> dict[str, int]:
    """Return how many claims of a kind with verdicts have none, by cause, the most frequent first."""
    lacking = evaluated.loc[evaluated["cause"] != "", "cause"]
    return {str(cause): int(count) for cause, count in lacking.value_counts().items()}


def _turns(claim: Mapping[str, Any], ours: Ours) -> str:
    """Return in words that one wins where the other loses; nothing where both do the same."""
    if claim["kind"] != "ratio" or claim["about"] != "own" or ours.level is None:
        return ""
    won = ours.number - ours.level
    if (float(claim["printed"]) - ours.level) * won >= 0:
        return ""
    return "the paper loses here and ours wins" if won > 0 else "the paper wins here and ours loses"


def explained(row: Mapping[Hashable, Any]) -> str:
    """Return what a claim's reason says of our number: of a reason by sides the part of the side where it lies."""
    head, *parts = _SIDE.split(str(row["reason"]))
    of_side = dict(zip(parts[::2], parts[1::2], strict=True))
    return of_side.get(SIDES[float(row["measured"]) > float(row["printed"])], "") if parts else head


def verdict(claim: Mapping[str, Any], ours: Ours) -> str:
    """Return what our number says of a claim.

    The tolerance of a ratio t allows the factor 1 + t to both sides (a gain in per cent is such a ratio, too).  That of
    exact numbers and shares is relative to the printed number, or ``abs:`` absolute.  A conclusion holds or does not.

    Raises
    ------
    ClaimError
        If a number has no tolerance, or of a conclusion nothing says whether it holds.
    """
    kind, target, text = claim["kind"], float(claim["printed"]), claim["tolerance"]
    if kind not in JUDGED:
        return "shown beside"
    if (ours.holds is None) == (kind == "conclusion"):
        raise ClaimError("is a conclusion exactly if at_least, at_most or near says whether it holds: change its kind")
    if kind != "conclusion" and not text:
        raise ClaimError("has no tolerance: write how far ours may be from the printed number")
    size = float(text.removeprefix("abs:") or "nan")
    if kind == "conclusion":
        same = bool(ours.holds)
    elif text.startswith("abs:"):
        same = abs(ours.number - target) <= size
    elif kind == "ratio":
        of, to = (100 + ours.number, 100 + target) if ours.level == 0 else (ours.number, target)
        same = to <= of * (1 + size) and of <= to * (1 + size)
    else:
        same = abs(ours.number - target) <= size * abs(target)
    if same:
        return "reproduced"
    if claim["about"] == "vendor":
        return "vendor differs"
    words = {"ratio": ("behind", "ahead"), "share": ("below", "above")}
    return words[kind][ours.number > target] if kind in words else "differs"
