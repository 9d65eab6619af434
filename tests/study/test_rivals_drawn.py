"""How tSparse's elements draw the paper's rivals, and what is told of those that fail and of absent matrices."""

from pathlib import Path

import pandas
import pytest

from spectile_study.bench import record
from spectile_study.figures import tsparse
from spectile_study.figures.elements import elements

FRAME = Path(__file__).parents[2] / "results/recorded/h200/tsparse.parquet"


@pytest.fixture(scope="module")
def frame():
    return record.read_frame(FRAME)


def without(frame, *methods):
    """Return the frame as of a run in which the methods failed."""
    failed = frame.copy()
    failed.loc[failed["method"].isin(methods), ["status", "reason"]] = ["failed", "wrong result: told"]
    return failed


def test_bars_are_over_the_vendor_where_it_ran_and_else_over_cusp(frame):
    assert tsparse.baseline(frame, tsparse.LITERATURE) == "cusparse_float32"
    vendor = [method for method in frame["method"].unique() if method.startswith("cusparse")]
    assert tsparse.baseline(without(frame, *vendor), tsparse.LITERATURE) == "cusp"
    assert tsparse.baseline(without(frame, *vendor, "cusp"), tsparse.LITERATURE) == "scipy_float32"


def test_the_axis_and_the_paper_s_line_name_what_the_bars_are_over(frame, monkeypatch):
    monkeypatch.chdir(FRAME.parents[3])
    failed = without(frame, "cusparse_float32")
    (figure,) = [element for element in elements("tsparse") if element.name == "fig7"]
    drawing = figure.draw(failed)
    assert drawing.ax.get_ylabel() == "speed-up over CUSP"
    assert "cusp" not in {note["method"] for note in drawing.notes}
    (line,) = [line for line in drawing.ax.get_lines() if line.get_label() == "paper's mean of its eight"]
    assert line.get_ydata()[0] == pytest.approx(3.78)
    assert "ran on none of what is at hand" in "".join(drawing._notes)


def test_failed_rivals_are_told_with_their_matrices(frame):
    (name,) = frame.loc[frame["case"] == "wiki_vote", "p_matrix"].unique()
    only = frame[frame["p_matrix"] == name]
    assert tsparse.failed_rivals(only) == ""
    words = tsparse.failed_rivals(without(only, "speck"))
    assert words == f"spECK gives a wrong product on {tsparse.short(name)}"


def test_matrices_without_a_rival_that_others_have_are_named(frame):
    part = frame[frame["case"].isin(["wiki_vote", "mc2depi"])].copy()
    names = ["wiki-Vote", "mc2depi"]
    assert tsparse.without_rivals(part, names) == []
    part.loc[(part["method"] == "speck") & (part["case"] == "mc2depi"), "status"] = "skipped"
    assert tsparse.without_rivals(part, names) == ["mc2depi"]
    part.loc[part["method"] == "speck", "status"] = "skipped"  # in no case: not built for the run
    assert tsparse.without_rivals(part, names) == []


def test_a_time_that_is_lacking_is_not_called_the_paper_s(frame, monkeypatch, tmp_path):
    monkeypatch.chdir(FRAME.parents[3])
    (table,) = [element for element in elements("tsparse") if element.name == "matrices"]
    table.draw(frame).save(tmp_path / "matrices.html")
    text = (tmp_path / "matrices.html").read_text()
    assert "not measured" in text
    assert "not printed" not in text


@pytest.mark.parametrize(("nnz", "words"), [(3105536, "as in the index"), (3105537, "other than in the index")])
def test_table_1_holds_what_the_index_says_of_absent_matrices(frame, monkeypatch, nnz, words):
    monkeypatch.chdir(FRAME.parents[3])
    rows = frame[frame["p_matrix"] == "webbase-1M"].copy()
    absent = rows[rows["method"] == "-"]
    told = absent.assign(method="index", status="ok", reason=None, v_n=1000005, v_nnz=nnz)
    (table,) = [element for element in elements("tsparse") if element.name == "t1"]
    drawn = table.draw(pandas.concat([absent, told]))
    line = drawn.data.set_index("matrix").loc["webbase-1M"]
    assert (line["rows"], line["NNZ(A)"], line["source"]) == (1000005, nnz, f"printed; rows and NNZ(A) {words}")
    assert drawn.data.set_index("matrix").loc["pli", "source"] == "printed"
    assert {(mark["method"], mark["y"]) for mark in drawn.sources} == {("index", 1000005), ("index", nnz)}
