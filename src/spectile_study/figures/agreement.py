"""Whether ours agrees with what a paper says of one of its tables or figures, in words, from the claims' verdicts.

A caption says what the paper concluded; ``<stem>.agreement.rst``, written beside each drawing and included by its
caption, says whether ours agrees, and lists each claim with what is printed, ours, the verdict and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spectile_study.bench.claims import HOLDS, JUDGED, VERDICTS, listed
from spectile_study.figures.judged import evaluate, why
from spectile_study.figures.marks import write_text
from spectile_study.figures.tables import like

if TYPE_CHECKING:
    import pandas

    from spectile_study.figures.elements import Element

#: So many conclusions that do not hold are named; more are counted.
_NAMED = 3
#: So many tables, figures and sections are named; more are counted.
_SHOWN = 4


def word(verdicts: Iterable[str]) -> str:
    """Return ``agrees``, ``agrees in part``, ``does not agree``, or nothing where no claim has a verdict."""
    held = [verdict in HOLDS for verdict in verdicts if verdict in VERDICTS]
    if not held:
        return ""
    return "agrees" if all(held) else "agrees in part" if any(held) else "does not agree"


def sentence(claims: pandas.DataFrame) -> str:
    """Return one sentence about the evaluated `claims` of one element; nothing where there are none."""
    if not len(claims):
        return ""
    beside = int((~claims["kind"].isin(JUDGED)).sum())
    claims = claims[claims["kind"].isin(JUDGED)]
    if not len(claims):
        return "Its numbers are those of the paper's machine: no verdict is due."
    judged = claims[claims["verdict"].isin(VERDICTS)]
    left = len(claims) - len(judged)
    more = f" {left} {'have' if left > 1 else 'has'} no verdict." if left else ""
    more += f" The {beside} printed of the paper's own machine or matrices get none." if beside else ""
    own, vendors = judged[judged["about"] == "own"], judged[judged["about"] == "vendor"]
    told = ""
    if len(vendors):
        held = int(vendors["verdict"].isin(HOLDS).sum())
        told = f" Of the claims on a vendor alone {held or 'none'} of {len(vendors)} hold{'s' * (held < 2)}."
    found = word(own["verdict"])
    if not found:
        return (told or "**Nothing can be said of ours**: no claim of it has a verdict in this run.").strip() + more
    counts = ", ".join(
        f"{(own['verdict'] == each).sum()} {each}" for each in VERDICTS if (own["verdict"] == each).any()
    )
    turned = own.loc[own["turns"] != "", "turns"].value_counts()
    told += "".join(f" In {count} {turns}." for turns, count in turned.items())
    conclusions = own[(own["kind"] == "conclusion") & (own["verdict"] == "differs")]
    named = "; ".join(conclusions["statement"].head(_NAMED).map(_escaped))
    others = f"; and {len(conclusions) - _NAMED} more" if len(conclusions) > _NAMED else ""
    not_so = f" Not so: {named}{others}." if named else ""
    return f"**Ours {found}**: of {len(own)} claims {counts}.{not_so}{told}{more}"


def summary(claims: pandas.DataFrame) -> str:
    """Return a sentence of where the evaluated `claims` of a paper agree with it, and one of what is not so.

    What the paper says of its own method counts, by its tables, figures and sections.
    """
    own = claims[claims["verdict"].isin(VERDICTS) & (claims["about"] == "own")]
    words = own.groupby("element", sort=False)["verdict"].agg(word)
    parts = [
        f"{how} {_listed(list(words.index[words == each]))}"
        for how, each in (("agrees in", "agrees"), ("in part in", "agrees in part"), ("not in", "does not agree"))
        if (words == each).any()
    ]
    if not parts:
        return "Nothing of it has a verdict here."
    speeds = claims[(claims["kind"] == "ratio") & (claims["about"] == "own")]
    if len(speeds) and not speeds["verdict"].isin(VERDICTS).any():
        parts.append(f"none of its {len(speeds)} speed-ups has a verdict")
    said = "; ".join(parts)
    first, *others = [*own.loc[(own["kind"] == "conclusion") & (own["verdict"] == "differs"), "statement"], ""]
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{said[0].upper()}{said[1:]}.{f' Not so: {first}{more}.' if first else ''}"


def _listed(names: list[str]) -> str:
    """Return names in words; those beyond a few are counted."""
    shown, left = names[:_SHOWN], len(names) - _SHOWN
    return f"{', '.join(shown)}{f' and {left} more' if left > 0 else ''}"


def _escaped(text: str) -> str:
    """Return `text` as reStructuredText shows it."""
    return "".join("\\" + letter if letter in r"\*`_|" else letter for letter in text)


def of_element(frame: pandas.DataFrame, element: Element) -> pandas.DataFrame:
    """Return the claims that an element's script computes, judged on `frame`; each claim belongs to one element."""
    table = listed().reset_index()
    table = table[(table["paper"] == element.paper) & (table["drawn"].str.partition(",")[0] == element.name)]
    return evaluate(table, [frame], element.script.parent.parent)


def table(claims: pandas.DataFrame) -> str:
    """Return the evaluated `claims` as a table of what is printed, ours, the verdict and why; nothing for none."""
    if not len(claims):
        return ""
    lines = [("claim", "printed", "ours", "time", "verdict", "what to know")]
    for row in claims.to_dict("records"):
        numbers = (str(like(value, row["printed"])) for value in (row["printed"], row["measured"]))
        lines.append((row["statement"], *numbers, row["time"], row["verdict"], why(row)))
    cells = ["\n     - ".join(_escaped(cell) for cell in line) for line in lines]
    return ".. list-table::\n   :header-rows: 1\n\n" + "".join(f"   * - {cell}\n" for cell in cells)


def partly(claims: pandas.DataFrame) -> list[str]:
    """Return the sentence that a drawing itself carries; nothing where ours agrees in all that the paper prints."""
    own = claims[claims["kind"].isin(JUDGED) & (claims["about"] == "own")]
    if not len(own) or (word(own["verdict"]) == "agrees" and claims["kind"].isin(JUDGED).all()):
        return []
    return [sentence(claims).replace("**", "").replace("\\", "")]


def write(claims: pandas.DataFrame, drawing: Path) -> None:
    """Write what the evaluated `claims` of an element say beside its `drawing`."""
    write_text(drawing.with_suffix(".agreement.rst"), f"{sentence(claims)}\n\n{table(claims)}")
