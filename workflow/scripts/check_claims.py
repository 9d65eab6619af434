"""Hold the papers' printed numbers against the frames; write the table and the page that the report opens on."""

import contextlib
import html
from pathlib import Path

from spectile.bench import claims, record
from spectile.figures.style import Table

NAMES = {"spamm": "SpAMM", "tsparse": "tSparse", "evd": "EVD", "kpm": "KPM"}
NOTE = "A tolerance makes a verdict; numbers of other hardware stand beside ours without one."
SHOWN = ["paper", "element", "statement", "printed", "measured", "unit", "verdict", "device", "note"]


def page(evaluated):
    """Return the table of all claims; an empty cell carries its reason."""
    data = evaluated.copy()
    data["paper"] = data["paper"].map(NAMES)
    missing = data["verdict"] == "not measured"
    data["note"] = data["reason"].where(missing & (data["reason"] != ""), data["note"])
    return Table("Claims: what the papers print, and what was measured here", data[SHOWN])


def fragment(evaluated):
    """Return what the report's first page shows: verdicts by paper, the measured claims, the others folded away."""
    counts = evaluated.groupby(["paper", "verdict"], sort=False).size().unstack(fill_value=0)
    order = [name for name in ("reproduced", "differs", "shown beside", "not measured") if name in counts]
    counts = counts[order].rename(index=NAMES).rename_axis(index=None, columns=None)
    missing = evaluated["verdict"] == "not measured"
    parts = ['<div class="spectile-claims">', counts.to_html(border=0), f"<p>{html.escape(NOTE)}</p>"]
    parts += [body(evaluated[~missing]), f"<details><summary>{missing.sum()} claims were not measured here</summary>"]
    return "".join([*parts, body(evaluated[missing]), "</details></div>\n"])


def body(evaluated):
    """Return the inside of the page of `evaluated`."""
    return page(evaluated).to_html().partition("<body>")[2].partition("</body>")[0]


with open(snakemake.log[0], "w") as log, contextlib.redirect_stderr(log):  # noqa: F821
    frames = [record.read_frame(path) for path in snakemake.input.frames]  # noqa: F821
    table = claims.evaluate(claims.read_claims(snakemake.input.claims), frames)  # noqa: F821
    table.to_csv(snakemake.output.table, sep="\t", index=False)  # noqa: F821
    Path(snakemake.output.page).write_text(page(table).to_html())  # noqa: F821
    Path(snakemake.output.fragment).write_text(fragment(table))  # noqa: F821
