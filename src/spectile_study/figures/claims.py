"""Hold what the papers say against the frames; write the table, and the page that the report opens on."""

from __future__ import annotations

import base64
import html
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas

from spectile_study.bench.claims import JUDGED, VERDICTS, causes, read_claims
from spectile_study.figures import overview
from spectile_study.figures.agreement import summary, word
from spectile_study.figures.elements import SCRIPTS
from spectile_study.figures.judged import evaluate, why
from spectile_study.figures.marks import write_text
from spectile_study.figures.tables import like
from spectile_study.papers import PAPERS

#: What a filter of the page chooses from, and how it calls each column.
FILTERS = {
    "paper": "paper",
    "place": "table, figure or section",
    "about": "method and vendor",
    "kind": "kind",
    "verdict": "verdict",
    "cause": "cause of none",
}
#: Shows the rows that every filter agrees with.  It stands in the elements themselves: the report runs no other script.
_FILTER = (
    "const box=this.closest('.spectile-claims');let n=0;"
    "for(const row of box.querySelectorAll('tbody.claims tr')){"
    "row.hidden=![...box.querySelectorAll('select')].every(each=>!each.value||row.dataset[each.name]===each.value);"
    "n+=!row.hidden}"
    "box.querySelector('output').textContent=n+' claims'"
)
#: Shows the claims of a card's paper; and goes back from a claim to its card.
_SHOW = (
    "const box=this.closest('.spectile-claims');"
    "const all=box.querySelector('details');all.open=true;"
    "for(const each of all.querySelectorAll('select'))each.value=each.name==='paper'?this.dataset.of:'';"
    "all.querySelector('select').dispatchEvent(new Event('change'));all.scrollIntoView();return false"
)
_BACK = (
    "const to=event.target.closest('a[data-of]');"
    "if(to)this.closest('.spectile-claims').querySelector(`figure[data-of=${to.dataset.of}]`).scrollIntoView();"
    "return !to"
)
_STYLE = "body { font: 14px/1.45 system-ui, sans-serif; margin: 1em; color: #222; }"


def page(evaluated: pandas.DataFrame, pictures: Mapping[str, str]) -> str:
    """Return the page of all claims, on its own."""
    title = "Claims: what the papers print and conclude, and what was measured here"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{fragment(evaluated, pictures)}</body></html>\n'


def fragment(evaluated: pandas.DataFrame, pictures: Mapping[str, str]) -> str:
    """Return what the report opens on: a picture, a sentence and the verdicts of each paper, then all claims.

    A card leads to the claims of its paper and each claim back to the card.  A claim goes by its name in
    ``config/claims.tsv``, which is the row's id.

    Parameters
    ----------
    evaluated : DataFrame
        What :func:`~spectile_study.figures.judged.evaluate` returned.
    pictures : mapping
        An address of a small picture by paper.
    """
    rows = evaluated.assign(place=evaluated["paper"].map(_names()) + ", " + evaluated["element"])
    cards = "".join(card(rows[rows["paper"] == paper], paper, pictures[paper]) for paper in pictures)
    chosen = "".join(_select(rows, column, called) for column, called in FILTERS.items())
    lines = "".join(_line(row) for row in rows.to_dict("records"))
    heads = ("where", "kind", "claim", "printed", "ours", "unit", "verdict", "time", "why, or what to know")
    head = "".join(f"<th>{each}</th>" for each in heads)
    style = (Path(__file__).parent / "claims.css").read_text()
    return (
        f'<div class="spectile-claims"><style>{style}</style><div class="cards">{cards}</div>'
        f"<details><summary>All {len(rows)} claims</summary>"
        f'<div class="filters">{chosen}<output>{len(rows)} claims</output></div>'
        f'<div class="all"><table><thead><tr>{head}</tr></thead>'
        f'<tbody class="claims" onclick="{_BACK}">{lines}</tbody></table></div></details></div>\n'
    )


def card(claims: pandas.DataFrame, paper: str, picture: str) -> str:
    """Return a paper's picture, a sentence of what agrees and what does not, its verdicts, and why others have none."""
    judged = claims[claims["kind"].isin(JUDGED)]
    found = judged[judged["verdict"].isin(VERDICTS)]
    kinds = ", ".join(
        f"{(found['kind'] == kind).sum()} of {(judged['kind'] == kind).sum()} {kind}"
        for kind in JUDGED
        if (judged["kind"] == kind).any()
    )
    verdicts = ", ".join(
        f'<span class="{_class(verdict)}">{(found["verdict"] == verdict).sum()} {verdict}</span>'
        for verdict in VERDICTS
        if (found["verdict"] == verdict).any()
    )
    lacking = ", ".join(f"{cause} {count}" for cause, count in causes(claims).items())
    without = f" Without: {lacking}." if lacking else ""
    alone = f" Of the paper's machine alone: {len(claims) - len(judged)}." if len(claims) > len(judged) else ""
    name, agrees = PAPERS[paper].name, word(found.loc[found["about"] == "own", "verdict"]) or "without a verdict"
    head = f"<b>{name}: {agrees}.</b> {html.escape(summary(claims))}"
    return (
        f'<figure data-of="{paper}"><img src="{picture}" alt="{name}"><figcaption>{head}<br>{verdicts}<br>'
        f"<small>With a verdict: {kinds}.{without}{alone}</small> "
        f'<a href="#" data-of="{paper}" onclick="{_SHOW}">Its {len(claims)} claims</a>'
        "</figcaption></figure>"
    )


def _class(verdict: str) -> str:
    """Return the class of style sheets that colours a verdict."""
    return verdict.replace(" ", "-") if verdict in VERDICTS else "none"


def _names() -> dict[str, str]:
    return {paper: known.name for paper, known in PAPERS.items()}


def _select(rows: pandas.DataFrame, column: str, called: str) -> str:
    names = _names() if column == "paper" else {}
    values = "".join(
        f'<option value="{html.escape(value)}">{html.escape(names.get(value, value))}</option>'
        for value in rows[column].drop_duplicates()
        if value
    )
    return f'<select name="{column}" onchange="{_FILTER}"><option value="">every {called}</option>{values}</select>'


def _line(row: Mapping[Hashable, Any]) -> str:
    data = "".join(f' data-{column}="{html.escape(str(row[column]))}"' for column in FILTERS)
    theirs = float(row["printed"])
    numbers = "" if theirs != theirs else f"{theirs:,.10g}", like(row["measured"], theirs)
    cells = [html.escape(str(cell)) for cell in (row["place"], row["kind"], row["statement"], *numbers, row["unit"])]
    cells[0] = f'<a href="#" data-of="{row["paper"]}">{cells[0]}</a>'
    cells[2] += f" <small>{row['claim']}</small>"
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    colour = _class(str(row["verdict"]))
    body += f'<td class="{colour}">{html.escape(str(row["verdict"]))}</td>'
    return f'<tr{data} id="{row["claim"]}">{body}<td>{row["time"]}</td><td>{html.escape(why(row))}</td></tr>'


def write(frames: Iterable[pandas.DataFrame], table: Path, out: Path) -> None:
    """Write the page `out` (.html), its table (.tsv) and what the report opens on (.fragment.html) beside it.

    Parameters
    ----------
    frames : iterable of DataFrame
        One for each paper of the run; the picture of each is written as ``<paper>_overview.svg``.
    table : Path
        What the papers print and conclude, config/claims.tsv of the study.
    out : Path
        The page.

    Raises
    ------
    ClaimError
        If a claim cannot be evaluated, or names a column, method or value that no frame holds.
    """
    frames, study = [frame for frame in frames if len(frame)], table.parent.parent
    by_paper = {frame["paper"].iloc[0]: frame for frame in frames}
    evaluated = evaluate(read_claims(table), frames, study / SCRIPTS, study / "results/recorded")
    pictures = {}
    for paper in PAPERS:
        if paper in by_paper:
            path = out.parent / f"{paper}_overview.svg"
            overview.picture(paper, by_paper[paper]).save(path)
            pictures[paper] = f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
    write_text(out.with_suffix(".tsv"), evaluated.to_csv(sep="\t", index=False))
    write_text(out, page(evaluated, pictures))
    write_text(out.with_suffix(".fragment.html"), fragment(evaluated, pictures))
