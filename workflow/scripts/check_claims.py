"""Hold the papers' printed numbers against the frames; write the table and the page that the report opens on."""

import contextlib
import html
from pathlib import Path

from spectile_study.bench import claims, record
from spectile_study.figures.style import Table

NAMES = {"spamm": "SpAMM", "tsparse": "tSparse", "evd": "EVD", "kpm": "KPM"}
NOTE = "A tolerance makes a verdict; numbers of other hardware stand beside ours without one."
ORDER = ["reproduced", "differs", "shown beside", "not measured", "the paper's alone"]
FOLDED = {
    "not measured": "claims were not measured here",
    "the paper's alone": "numbers stand for the paper alone: what they are of is not at hand",
}
SHOWN = ["paper", "element", "statement", "printed", "measured", "unit", "verdict", "device", "note"]


def page(evaluated):
    """Return the table of all claims; an empty cell carries its reason."""
    data = evaluated.copy()
    data["paper"] = data["paper"].map(NAMES)
    data["note"] = data["reason"].where(data["reason"] != "", data["note"])
    data["measured"] = [like(ours, theirs) for ours, theirs in zip(data["measured"], data["printed"], strict=True)]
    data["printed"] = [f"{value:,.10g}" for value in data["printed"]]
    return Table("Claims: what the papers print, and what was measured here", data[SHOWN])


def like(ours, theirs):
    """Return our number with the digits that the paper prints, four at least."""
    if ours is None or ours != ours:
        return None
    digits = max(4, len(f"{theirs:.10g}".partition("e")[0].replace(".", "").replace("-", "").strip("0")))
    return f"{ours:,.0f}" if digits <= 4 and 1e3 <= abs(ours) < 1e7 else f"{ours:,.{digits}g}"


def fragment(evaluated):
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


def body(evaluated):
    """Return the inside of the page of `evaluated`."""
    return page(evaluated).to_html().partition("<body>")[2].partition("</body>")[0]


with open(snakemake.log[0], "w") as log, contextlib.redirect_stderr(log):  # noqa: F821
    frames = [record.read_frame(path) for path in snakemake.input.frames]  # noqa: F821
    table = claims.evaluate(claims.read_claims(snakemake.input.claims), frames)  # noqa: F821
    table.to_csv(snakemake.output.table, sep="\t", index=False)  # noqa: F821
    Path(snakemake.output.page).write_text(page(table).to_html())  # noqa: F821
    Path(snakemake.output.fragment).write_text(fragment(table))  # noqa: F821
