"""What is drawn of the papers' elements is listed once, and told from the marks."""

from pathlib import Path

import pandas
import pytest

from spectile_study.bench import provenance
from spectile_study.figures import coverage, elements

ROOT = Path(__file__).parents[2]
LIST = ROOT / "config/elements.tsv"


class Drawn:
    """A drawing by its notes alone."""

    def __init__(self, notes, **more):
        self.notes = self.sources = notes
        self.__dict__ |= more


def test_every_element_of_the_papers_is_listed():
    table = coverage.read(LIST)
    known = {
        (paper, each.name)
        for paper in provenance.PAPERS
        for each in elements.elements(paper, ROOT / elements.SCRIPTS)
        if each.is_papers
    }
    assert set(zip(table["paper"], table["element"], strict=True)) == known
    assert (table["part"] == "shows").sum() == len(known)


@pytest.mark.parametrize(
    ("filters", "state", "why"),
    [("p_n=1", "there", ""), ("p_n=1;p_n=2", "in part", "no room"), ("p_n=3", "not there", "no room")],
)
def test_what_is_there_is_read_from_the_marks(filters, state, why):
    frame = pandas.DataFrame({"record": ["a", "b"], "method": "ours", "status": "ok", "p_n": [1, 2]})
    table = pandas.DataFrame([["kpm", "fig1", "sizes", "small", filters, why]], columns=coverage.COLUMNS)
    element = elements.Element("kpm", "fig1", Path())
    drawn = Drawn([{"record": "a", "method": "ours", "y_column": "time_s"}])
    (item,) = coverage.items(table, element, frame, drawn)
    assert item == ("sizes", "small", state, why)
    if state == "there":
        with pytest.raises(ValueError, match="'small' is drawn; empty the reason why it is not: 'no room'"):
            coverage.items(table.assign(why="no room"), element, frame, drawn)


def test_a_baseline_is_there_where_a_ratio_to_it_is_drawn():
    frame = pandas.DataFrame({"record": "a", "method": ["ours", "theirs"], "status": "ok"})
    table = pandas.DataFrame([["kpm", "fig1", "baselines", "t", "method=theirs", ""]], columns=coverage.COLUMNS)
    element = elements.Element("kpm", "fig1", Path())
    for column, state in (("time_s", "not there"), ("speedup", "there")):
        drawn = Drawn([{"record": "a", "method": "ours", "y_column": column}])
        assert coverage.items(table, element, frame, drawn)[0].found == state
