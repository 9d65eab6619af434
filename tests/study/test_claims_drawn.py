"""Claims and drawings say the same: what a claim is made of is marked in the element that it names."""

import math
import re

import pandas
import pytest

from spectile_study.bench import claims, provenance
from spectile_study.bench.rows import Rows

from .recorded import CLAIMS, frame, marks, of


def drawn(paper, names):
    """Return what elements mark, by record and method: the values that are drawn of each column."""
    found = {}
    for note in (note for name in names.split(",") for note in marks(of(paper)[name])):
        columns = found.setdefault((note["record"], note["method"]), {})
        columns.setdefault(note["y_column"], []).append(note["y"])
        if "x_column" in note:
            columns.setdefault(note["x_column"], []).append(note["x"])
    return found


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_what_a_claim_is_made_of_is_drawn(paper):
    rows, wrong = Rows(frame(paper)), []
    kept = rows.frame[rows.frame["status"] == "beside"]
    beside = {*zip(kept["record"], kept["method"], strict=True)}
    of_all = (pair for element in of(paper).values() for pair in element.claims(rows).items())
    computed = {name: ours for name, ours in of_all if ours.is_known}
    for names, asked in CLAIMS[CLAIMS["claim"].isin(computed)].groupby("drawn"):
        there = drawn(paper, names)
        for claim, part in ((name, part) for name in asked["claim"] for part in computed[name].parts):
            used = rows.frame.iloc[part.places]
            under = [None] * len(used) if part.under is None else rows.frame["method"].iloc[part.under]
            for record, method, value, base in zip(used["record"], used["method"], part.numbers, under, strict=True):
                key = (record, method)
                if key in beside:
                    continue  # of the run of a rival that is gone: its ratio is told, newer marks are drawn
                if key not in there:
                    wrong.append(f"{claim}: {names} does not draw {method} of {record}")
                    break
                if (record, base) in there:
                    continue  # the ratio of two marks of one record
                values = [each for each in there[key].get(part.name, ()) if each != ""]
                if values and not any(math.isclose(float(each), value, rel_tol=1e-9) for each in values):
                    wrong.append(f"{claim}: {value:.6g} is drawn as {values}")
                    break
    assert not wrong, "\n".join(wrong)


#: How statements call what the methods' names stand for.
CALLED = {
    "cuBLAS": {"cublas"}, "cublasHgemm": {"cublas_half_sums"}, "cuSPARSE": {"cusparse", "cusparse_float32"},
    "CUSP": {"cusp"}, "RMerge2": {"rmerge2"}, "Nsparse": {"nsparse"}, "AC-SpGEMM": {"ac_spgemm"}, "spECK": {"speck"},
    "nonTCU": {"tasks_nontcu"}, "MAGMA": {"magma"}, "cuSOLVER": {"cusolver_one_stage"},
}  # fmt: skip
OVER = re.compile(r"\b(over|than|against) ")


def test_ratios_are_over_what_their_statements_say():
    checked, said = 0, CLAIMS.set_index("claim")["statement"]
    for paper in provenance.PAPERS:
        rows = Rows(frame(paper))
        for claim, ours in ((claim, ours) for each in of(paper).values() for claim, ours in each.claims(rows).items()):
            over = OVER.split(said[claim], maxsplit=1)[-1] if OVER.search(said[claim]) else ""
            named = [CALLED[name] for name in re.findall("|".join(CALLED), over)]
            if named and ours.level is not None:
                _, *baselines = ours.parts[0].methods
                assert set(baselines) <= set().union(*named), f"{claim} divides by {baselines}"
                checked += 1
    assert checked > 200


#: The paper concludes nothing from these that could be judged: a picture, and its processors.
WITHOUT = {("kpm", "fig2"), ("kpm", "t2")}


def test_every_element_of_a_paper_has_a_claim_and_claims_name_elements():
    for paper in provenance.PAPERS:
        of_paper = CLAIMS[CLAIMS["paper"] == paper]
        named = {name for names in of_paper["drawn"] for name in names.split(",")}
        judged = of_paper.loc[of_paper["kind"].isin(claims.JUDGED), "drawn"].str.split(",").sum()
        assert named <= set(of(paper))
        assert {name for name, each in of(paper).items() if each.is_papers and (paper, name) not in WITHOUT} <= set(
            judged
        )


def test_a_claim_of_other_rows_than_the_drawn_ones_is_noticed():
    rows = pandas.DataFrame({"record": ["a"], "method": ["m"]})
    assert (rows["record"][0], rows["method"][0]) not in drawn("spamm", "fig4")
