"""What the papers print and conclude, judged: each claim by the function beside the drawing of its element."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectile_study.bench import record
from spectile_study.bench.claims import FAILS, RESULTS, explained, judge
from spectile_study.bench.names import Names
from spectile_study.bench.rows import ClaimError, Ours, Rows
from spectile_study.figures.elements import SCRIPTS, elements

if TYPE_CHECKING:
    import pandas


def evaluate(
    claims: pandas.DataFrame,
    frames: Iterable[pandas.DataFrame],
    scripts: Path = SCRIPTS,
    recorded: Path | None = None,
) -> pandas.DataFrame:
    """Return `claims` with the columns of what the frames say, :data:`~spectile_study.bench.claims.RESULTS`.

    Parameters
    ----------
    claims : DataFrame
        What :func:`~spectile_study.bench.claims.read_claims` returned, or some rows of it.
    frames : iterable of DataFrame
        One for each paper, all of one machine.
    scripts : Path
        Folder of the elements' scripts.
    recorded : Path, optional
        Folder of reviewed frames, ``<machine>/<paper>.parquet``, in a study: a value that neither these nor `frames`
        nor the study's run sheet hold is refused.  Default: columns are judged and their values are not.

    Raises
    ------
    ClaimError
        If two frames are of one paper, or a claim cannot be computed or names what does not exist.
    """
    import pandas

    by_paper: dict[str, pandas.DataFrame] = {}
    for frame in frames:
        if len(frame) and frame["paper"].iloc[0] in by_paper:
            raise ClaimError(f"two frames are of {frame['paper'].iloc[0]}: judge each machine on its own")
        if len(frame):
            by_paper[frame["paper"].iloc[0]] = frame
    results: dict[str, tuple[object, ...]] = {}
    for paper, of_paper in claims.groupby("paper", sort=False):
        known = [] if recorded is None else sorted(recorded.glob(f"*/{paper}.parquet"))
        own = by_paper.get(str(paper), pandas.DataFrame(columns=[*record.LEADING_COLUMNS, *record.columns(str(paper))]))
        held = [own, *(record.read_frame(path, whole=True) for path in known), *_asked(recorded, str(paper))]
        rows = Rows(own, Names(str(paper), held if known else []))
        for owner, asked in of_paper.groupby(of_paper["drawn"].str.partition(",")[0], sort=False):
            found = computed(str(paper), str(owner), rows, scripts)
            for _, claim in asked.iterrows():
                try:
                    results[claim["claim"]] = judge(dict(claim), found.get(claim["claim"]))
                except ClaimError as error:
                    raise ClaimError(f"claim {claim['claim']!r} {error}") from None
    table = pandas.DataFrame([results[name] for name in claims["claim"]], columns=RESULTS)
    return pandas.concat([claims.reset_index(drop=True), table], axis=1)


def _asked(recorded: Path | None, paper: str) -> list[pandas.DataFrame]:
    """Return the run sheet as a frame has it: what a row asks for is no misspelt value, only not recorded yet."""
    import pandas

    sheet = None if recorded is None else recorded.parents[1] / f"config/{paper}.tsv"
    if sheet is None or not sheet.exists():
        return []
    return [pandas.read_csv(sheet, sep="\t").rename(columns=lambda name: name if name == "case" else f"p_{name}")]


def computed(paper: str, element: str, rows: Rows, scripts: Path = SCRIPTS) -> dict[str, Ours]:
    """Return our numbers of the claims that are drawn by an element."""
    try:
        return next((each.claims(rows) for each in elements(paper, scripts) if each.name == element), {})
    except ClaimError as error:
        raise ClaimError(f"a claim of {paper} {element} {error}") from None


def why(row: Mapping[Hashable, Any]) -> str:
    """Return what to know of an evaluated claim: what turns, why it has no verdict or another number, and its cases."""
    reason = row["missing"] or (explained(row) if row["verdict"] in FAILS else "") or row["note"]
    return "; ".join(each for each in (row["turns"], reason, row["basis"] and f"made of {row['basis']}") if each)
