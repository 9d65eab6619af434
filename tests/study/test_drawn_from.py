"""What tables and figures show follows the frame: a cited number that changes changes what is drawn, and no other does.

And a speed-up is over the method that the reader is told of.
"""

import re
from functools import cache

import numpy as np
import pandas
import pytest
from matplotlib import pyplot
from matplotlib.text import Text

from spectile_study.bench import provenance, stats
from spectile_study.figures.palette import look

from ..workflow.truth import by_record, recompute, same
from .recorded import ROOT, drawing, frame, of

DRAWINGS = [element for paper in provenance.PAPERS for element in of(paper).values()]
TABLES = [element for element in DRAWINGS if not element.is_figure]
MEASURED = ("time_s", "speedup", "rate", "gflops", "gbytes_s")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)
    yield
    pyplot.close("all")


def name(element):
    return f"{element.paper}_{element.name}"


def slowed(table, row, factor):
    """Return the frame with the samples of one row times `factor`, and what is derived from them."""
    changed = table.copy()
    place = changed.index[(changed["record"] == row["record"]) & (changed["method"] == row["method"])][0]
    samples = [factor * sample for sample in changed.at[place, "samples_s"]]
    changed.at[place, "samples_s"] = samples
    for column, value in zip(("time_s", "time_s_lo", "time_s_hi"), stats.median_interval(samples), strict=True):
        changed.at[place, column] = value
    return changed


def shown(element, table):
    return element.draw(table).values().astype(str)


@pytest.mark.parametrize("element", TABLES, ids=name)
def test_cells_follow_what_they_cite_and_nothing_else(element):
    table = frame(element.paper)
    drawn = drawing(element)
    cells = drawn.values().astype(str)
    cited = pandas.DataFrame(drawn.sources)
    timed = cited[cited["y_column"].isin(MEASURED)] if len(cited) else cited
    rng = np.random.default_rng(1)
    for place in rng.permutation(len(timed))[:1]:
        # Much faster or much slower: a best of several, or a count of those that gain, takes note of one of the two.
        others = (shown(element, slowed(table, timed.iloc[place], factor)) for factor in (0.05, 20.0))
        assert any(not other.equals(cells) for other in others), f"no cell follows {timed.iloc[place].to_dict()}"
    keys = set(zip(cited["record"], cited["method"], strict=True)) if len(cited) else set()
    cases = set(cited["case"]) if len(cited) else set()
    free = table[(table["status"] == "ok") & table["time_s"].notna() & ~table["case"].isin(cases)]
    for place in rng.permutation(len(free))[:1]:
        row = free.iloc[place]
        assert (row["record"], row["method"]) not in keys
        assert shown(element, slowed(table, row, 2.0)).equals(cells), f"{row['case']} is drawn and not cited"


@cache
def samples(paper):
    """Return the samples of every method of each record that passed."""
    table = frame(paper)
    passed = table[table["status"].isin(stats.PASSED)]
    return {
        record: dict(zip(rows["method"], rows["samples_s"], strict=True)) for record, rows in by_record(passed).items()
    }


def baselines(timed, method, value):
    """Return the methods of a record over which the speed-up of one of them is `value`."""
    return {
        other
        for other, base in timed.items()
        if other != method and len(base) and same(value, stats.paired_ratio(base, timed[method]).median)
    }


def told(element, drawn):
    """Return everything that a reader of a table or figure reads."""
    caption = (ROOT / f"workflow/report/{element.paper}/{element.name}.rst").read_text()
    if element.is_figure:
        return " ".join([caption, *(text.get_text() for text in drawn.figure.findobj(Text))])
    return caption + re.sub("<[^>]*>", " ", drawn.to_html())


@pytest.mark.parametrize("element", DRAWINGS, ids=name)
def test_the_baseline_of_a_speedup_is_named(element):
    drawn = drawing(element)
    notes = drawn.notes if element.is_figure else drawn.sources
    marks = [note for note in notes if note["y_column"] == "speedup"]
    text = told(element, drawn).lower()
    for mark in marks:
        over = baselines(samples(element.paper)[mark["record"]], mark["method"], mark["y"])
        assert over, f"{mark} is a speed-up over no method of its case"
        labels = {look(method).label for method in over}
        # A vendor's library, or a method of ours: its name, without the type of the numbers or how it is called.
        vendors = {re.split(r"[ ,(]", label)[0].lower() for label in labels}
        assert any(vendor in text for vendor in vendors), f"nothing says that this is over {labels}"


def test_what_the_marks_recompute_to_is_not_themselves():
    table = frame("spamm")
    row = table[(table["method"] == "spectile_30") & (table["status"] == "ok")].iloc[0]
    slow = slowed(table, row, 3.0)
    found = slow[(slow["record"] == row["record"]) & (slow["method"] == row["method"])].iloc[0]
    assert recompute("time_s", found, slow) == pytest.approx(3 * row["time_s"])
    assert not any(same(recompute("time_s", row, table), value) for value in [recompute("time_s", found, slow)])
