"""Hold the papers' printed numbers against the frames; write the table and the page that the report opens on."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

import pandas

from spectile_study.bench.claims import evaluate, read_claims
from spectile_study.figures.marks import write_text
from spectile_study.figures.tables import Cell, Table
from spectile_study.papers import PAPERS

NAMES = {paper: known.name for paper, known in PAPERS.items()}
NOTE = "Seconds and settings of the paper's machine stand beside ours without a verdict."
ORDER = ["reproduced", "differs", "reached", "exceeded", "missed", "shown beside", "not measured", "the paper's alone"]
FOLDED = {
    "not measured": "claims were not measured here",
    "the paper's alone": "numbers stand for the paper alone, because what they describe is not available",
}
SHOWN = ["paper", "element", "kind", "statement", "printed", "measured", "unit", "verdict", "time", "device", "note"]


def page(evaluated: pandas.DataFrame) -> Table:
    """Return the table of all claims; an empty cell carries its reason."""
    data = evaluated.copy()
    data["paper"] = data["paper"].map(NAMES)
    for more in ("reason", "missing"):
        data["note"] = data[more].where(data[more] != "", data["note"])
    numbers = zip(data["measured"], data["printed"], strict=True)
    data["measured"] = pandas.Series([like(ours, theirs) for ours, theirs in numbers], dtype=object, index=data.index)
    data["printed"] = data["printed"].map(lambda value: "" if value != value else Cell(value, "{:,.10g}"))
    return Table("Claims: what the papers print, and what was measured here", data[SHOWN])


def like(ours: float | None, theirs: float) -> Cell | None:
    """Return our number with the digits that the paper prints, four at least."""
    if ours is None or ours != ours:
        return None
    digits = max(4, len(f"{theirs:.10g}".partition("e")[0].replace(".", "").replace("-", "").strip("0")))
    return Cell(ours, "{:,.0f}" if digits <= 4 and 1e3 <= abs(ours) < 1e7 else f"{{:,.{digits}g}}")


def fragment(evaluated: pandas.DataFrame) -> str:
    """Return what the report's first page shows: verdicts by paper, the measured claims, the others folded away."""
    counts = evaluated.groupby(["paper", "verdict"], sort=False).size().unstack(fill_value=0)
    counts = counts[[verdict for verdict in ORDER if verdict in counts]]
    counts = counts.rename(index=NAMES).rename_axis(index=None, columns=None)
    shown = body(evaluated[~evaluated["verdict"].isin(FOLDED)])
    parts = ['<div class="spectile-claims">', counts.to_html(border=0), f"<p>{html.escape(NOTE)}</p>", shown]
    for verdict, words in FOLDED.items():
        rows = evaluated[evaluated["verdict"] == verdict]
        parts.append(f"<details><summary>{len(rows)} {words}</summary>{body(rows)}</details>")
    return "".join([*parts, "</div>\n"])


def body(evaluated: pandas.DataFrame) -> str:
    """Return the inside of the page of `evaluated`."""
    return page(evaluated).to_html().partition("<body>")[2].partition("</body>")[0]


def write(frames: Iterable[pandas.DataFrame], table: Path, out: Path) -> None:
    """Write the page `out` (.html), its table (.tsv) and what the report opens on (.fragment.html) beside it.

    Parameters
    ----------
    frames : iterable of DataFrame
        One for each paper of the run.
    table : Path
        The papers' printed numbers, config/claims.tsv.
    out : Path
        The page.
    """
    evaluated = evaluate(read_claims(table), frames)
    write_text(out.with_suffix(".tsv"), evaluated.to_csv(sep="\t", index=False))
    write_text(out, page(evaluated).to_html())
    write_text(out.with_suffix(".fragment.html"), fragment(evaluated))
