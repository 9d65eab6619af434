"""Claims and drawings say the same: what a claim is made of is marked in the element that it names."""

import functools
import math
import re
from pathlib import Path

import pandas
import pytest

from spectile_study.bench import claims, provenance, record
from spectile_study.figures import elements

ROOT = Path(__file__).parents[2]
CLAIMS = claims.read_claims(ROOT / "config/claims.tsv")
#: What a mark is called where a claim is made of the same quantity.
MARKED = {"speedup": "speedup", "rate": "rate", "time_s": "time_s"}


@functools.cache
def frame(paper):
    return record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet")


@functools.cache
def marks(paper, name):
    """Return the marks of an element by record and method: the values that are drawn of each column."""
    (element,) = [each for each in elements.elements(paper, ROOT / elements.SCRIPTS) if each.name == name]
    drawn = element.draw(frame(paper))
    if element.is_figure:
        from matplotlib import pyplot

        pyplot.close(drawn.figure)
    notes = drawn.notes if element.is_figure else drawn.sources
    found = {}
    for note in notes:
        columns = found.setdefault((note["record"], note["method"]), {})
        columns.setdefault(note["y_column"], []).append(note["y"])
        if "x_column" in note:
            columns.setdefault(note["x_column"], []).append(note["x"])
    return found


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_what_a_claim_is_made_of_is_drawn(paper, monkeypatch):
    monkeypatch.chdir(ROOT)
    wrong = []
    for _, claim in CLAIMS[(CLAIMS["paper"] == paper) & (CLAIMS["column"] != "")].iterrows():
        rows = claims.used(claim, frame(paper))
        drawn = {}
        for name in filter(None, claim["drawn"].split(",")):
            for key, columns in marks(paper, name).items():
                drawn[key] = {**drawn.get(key, {}), **columns}
        kind, *names = claim["column"].split(":")
        for key, value in zip(zip(rows["record"], rows["method"], strict=True), rows["value"], strict=True):
            if key not in drawn:
                wrong.append(f"{claim['claim']}: {claim['drawn'] or 'no element'} does not draw {key[1]} of {key[0]}")
                break
            same = drawn[key].get(MARKED.get(kind, kind)) if kind == "speedup" or not names else None
            values = [each for each in same or () if each != ""]
            if kind == "speedup" and any((key[0], each) in drawn for each in names[-1].split("|")):
                continue  # the ratio of two marks of one record
            if values and not any(math.isclose(float(each), value, rel_tol=1e-9) for each in values):
                wrong.append(f"{claim['claim']}: {value:.6g} is drawn as {values}")
                break
    assert not wrong, "\n".join(wrong)


#: How statements call what the methods' names stand for.
CALLED = {
    "cuBLAS": {"cublas"}, "cublasHgemm": {"cublas_half_sums"}, "cuSPARSE": {"cusparse", "cusparse_float32"},
    "CUSP": {"cusp"}, "RMerge2": {"rmerge2"}, "Nsparse": {"nsparse"}, "AC-SpGEMM": {"ac_spgemm"}, "spECK": {"speck"},
    "nonTCU": {"tasks_nontcu"}, "MAGMA": {"magma"}, "cuSOLVER": {"cusolver_one_stage"},
}  # fmt: skip


def test_ratios_are_over_what_their_statements_say():
    checked = 0
    for _, claim in CLAIMS[CLAIMS["column"].str.startswith(("speedup:", "gain:"))].iterrows():
        over = re.search(r"(?:over|than|against) (" + "|".join(CALLED) + r")\b", claim["statement"])
        if over is not None:
            baseline = claim["column"].split(":")[2]
            assert baseline in CALLED[over[1]], f"{claim['claim']} says {over[1]} and divides by {baseline}"
            checked += 1
    assert checked > 200


def test_every_element_of_a_paper_has_a_claim():
    for paper in provenance.PAPERS:
        of_paper = CLAIMS[(CLAIMS["paper"] == paper) & CLAIMS["kind"].isin(claims.JUDGED)]
        for element in elements.elements(paper, ROOT / elements.SCRIPTS):
            if element.is_papers and (paper, element.name) not in WITHOUT:
                assert element.name in set(of_paper["drawn"].str.split(",").sum()), (
                    f"{paper} {element.name}: no claim with a verdict"
                )


#: The paper concludes nothing from these that could be judged: a picture, and its processors.
WITHOUT = {("kpm", "fig2"), ("kpm", "t2")}


def test_claims_name_elements():
    for paper in provenance.PAPERS:
        known = {"", *(each.name for each in elements.elements(paper, ROOT / elements.SCRIPTS))}
        assert {name for drawn in CLAIMS.loc[CLAIMS["paper"] == paper, "drawn"] for name in drawn.split(",")} <= known
    judged = CLAIMS[CLAIMS["kind"].isin(claims.JUDGED)]
    assert not judged.loc[judged["drawn"] == "", "claim"].tolist()


def test_a_claim_of_other_rows_than_the_drawn_ones_is_noticed():
    rows = pandas.DataFrame({"record": ["a"], "method": ["m"]})
    assert (rows["record"][0], rows["method"][0]) not in marks("spamm", "fig4")
