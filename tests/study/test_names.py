"""A name in a claim's filter, column or aggregate that nothing holds is refused: it would find no row in silence."""

import functools
from pathlib import Path

import pytest

from spectile_study.__main__ import main
from spectile_study.bench import claims, provenance, record
from spectile_study.bench.names import Names
from spectile_study.figures import coverage

ROOT = Path(__file__).parents[2]
SOUND = {"filter": "p_study=tridiagonal,p_n>4096,method=spectile|magma", "column": "rate", "aggregate": "grows:p_n"}


@functools.cache
def known(paper):
    return Names(paper, [record.read_frame(path) for path in ROOT.glob(f"results/recorded/*/{paper}.parquet")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"filter": "p_stduy=tridiagonal"}, "'p_stduy', which no frame has: did you mean 'p_study'"),
        ({"filter": "p_study=tridiagnal"}, "p_study=tridiagnal, which no record holds"),
        ({"filter": "p_n=4097"}, "p_n=4097"),
        ({"filter": "method=spectile|mgma"}, "method=mgma"),
        ({"filter": "p_n/p_kk>2"}, "'p_kk'"),
        ({"filter": "method"}, "write column=value"),
        ({"column": "tme_s"}, "'tme_s', which no frame has: did you mean 'time_s'"),
        ({"column": "rate:fp65"}, "unit 'fp65'"),
        ({"column": "speedup:spectile:cusolvr"}, "method 'cusolvr', which no frame has: did you mean 'cusolver"),
        ({"column": "speedup:spectil?:magma*x"}, "method 'magma*x'"),
        ({"column": "over:memory_byte:spectile:magma"}, "'memory_byte'"),
        ({"column": "phase:chaising"}, "phase 'chaising'"),
        ({"aggregate": "grows:p_nn"}, "'p_nn'"),
        ({"aggregate": "times:method=spectile:method=mgma"}, "method=mgma"),
        ({"aggregate": "recall:p_n>4&p_m>5"}, "'p_m'"),
    ],
)
def test_names_that_nothing_holds_are_refused(changes, said):
    known("evd").check_claim(SOUND)
    with pytest.raises(claims.ClaimError) as error:
        known("evd").check_claim(SOUND | changes)
    assert said in str(error.value)


def test_without_a_record_columns_are_judged_alone():
    Names("evd").check_claim(SOUND | {"column": "speedup:a:b", "filter": "p_study=any"})
    with pytest.raises(claims.ClaimError, match="p_stduy"):
        Names("evd").check_claim(SOUND | {"filter": "p_stduy=any"})


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_claims_and_elements_name_what_occurs(paper):
    table = claims.read_claims(ROOT / "config/claims.tsv")
    for claim in table[table["paper"] == paper].to_dict("records"):
        known(paper).check_claim(claim)
    drawn = coverage.read(ROOT / "config/elements.tsv")
    own = drawn[(drawn["paper"] == paper) & (drawn["why"] == "") & (drawn["part"] != "shows")]
    for filters in own["filter"]:
        for condition in filter(None, (part.strip() for each in filters.split(";") for part in each.split(","))):
            known(paper).check_condition(condition)


def test_the_page_is_not_written_with_such_a_claim(tmp_path, capsys):
    (tmp_path / "config").mkdir()
    text = (ROOT / "config/claims.tsv").read_text().replace("p_study=tridiagonal", "p_study=tridiagnal", 1)
    (tmp_path / "config/claims.tsv").write_text(text)
    frames = ["--frames", str(ROOT / "results/recorded/h200/evd.parquet")]
    out = tmp_path / "claims.html"
    assert main(["claims", *frames, "--claims", str(tmp_path / "config/claims.tsv"), "--out", str(out)]) == 2
    assert "claim 'evd_" in (said := capsys.readouterr().err) and "p_study=tridiagnal" in said
    assert not out.exists()
