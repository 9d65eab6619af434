"""Quantities, shapes and verdicts of claims, and what captions make of them."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas
import pytest

from spectile_study.bench import claims, provenance, quantities, record
from spectile_study.figures import agreement
from spectile_study.figures import claims as pages

ROOT = Path(__file__).parents[2]


def curve(values, **columns):
    rows = {"status": "ok", "paper": "kpm", "p_n": range(1, len(values) + 1), "v_y": values, "record": "r"}
    return pandas.DataFrame(
        rows | {"device": "d", "machine": "m", "method": "spectile", "reason": None, "case": "c"} | columns
    )


def table(tmp_path, **columns):
    """Return a table of one claim."""
    row = dict.fromkeys(claims.COLUMNS, "") | {
        "claim": "c",
        "paper": "kpm",
        "about": "own",
        "kind": "ratio",
        "printed": "2",
    }
    row |= {"tolerance": "0.1" if columns.get("column") else ""} | columns
    (tmp_path / "claims.tsv").write_text("\t".join(claims.COLUMNS) + "\n" + "\t".join(row.values()) + "\n")
    return claims.read_claims(tmp_path / "claims.tsv")


@pytest.mark.parametrize(
    ("how", "values", "number"),
    [
        ("grows:p_n", [1.0, 2.0, 3.0], 1.5),
        ("grows:p_n", [1.0, 2.0, 1.0], 0.5),
        ("falls:p_n", [4.0, 2.0, 1.6], 1.25),
        ("saturates:p_n", [1.0, 2.0, 2.2], 1.1),
        ("rise:p_n", [1.0, 9.0, 3.0], 3.0),
        ("spread:p_n", [1.0, 0.5, 2.0], 4.0),
        ("crosses:p_n", [0.5, 2.0, 0.9, 1.1], 4.0),
        ("crosses:p_n", [0.5, 0.9], float("inf")),
        ("crosses:p_n", [1.5, 1.9], 1.0),
        ("highest:p_n", [1.0, 3.0, 2.0], 2.0),
        ("lowest:p_n", [1.0, 3.0, 0.5], 3.0),
    ],
)
def test_shapes_are_numbers(how, values, number):
    assert quantities.aggregate(quantities.of_rows(curve(values), "v_y"), how) == pytest.approx(number)


def test_the_worst_curve_counts():
    rows = pandas.concat([curve([1.0, 2.0], p_k=1), curve([1.0, 3.0], p_k=2), curve([9.0], p_k=3)])
    assert quantities.aggregate(quantities.of_rows(rows, "v_y"), "grows:p_n:p_k") == 2.0
    assert np.isnan(quantities.aggregate(quantities.of_rows(curve([1.0]), "v_y"), "grows:p_n"))


@pytest.mark.parametrize(
    ("how", "printed", "tolerance", "values", "verdict"),
    [
        ("grows:p_n", "", "0.05", [1.0, 0.97, 2.0], "reproduced"),
        ("grows:p_n", "", "0.01", [1.0, 0.97, 2.0], "differs"),
        ("saturates:p_n", "", "0.1", [1.0, 2.0, 2.1], "reproduced"),
        ("saturates:p_n", "", "0.1", [1.0, 2.0, 2.5], "differs"),
        ("rise:p_n", "2", "0.1", [1.0, 1.9], "reproduced"),
        ("highest:p_n", "4", "1", [1.0, 3.0, 2.0], "reproduced"),
        ("highest:p_n", "5", "1", [1.0, 3.0, 2.0], "differs"),
        ("min", "", "0", [1.5, 1.1], "reproduced"),
        ("max", "2", "0", [1.5, 2.1], "differs"),
    ],
)
def test_conclusions_hold_or_differ(tmp_path, how, printed, tolerance, values, verdict):
    asked = table(tmp_path, kind="conclusion", column="v_y", aggregate=how, printed=printed, tolerance=tolerance)
    found = claims.evaluate(asked, [curve(values)])
    assert found["verdict"].tolist() == [verdict]


def test_shares_are_of_the_devices_peak():
    rows = curve([1.0], device="NVIDIA H200", flops=6.7e12, time_s=1.0)
    assert quantities.of_rows(rows, "share:fp64")["value"].tolist() == pytest.approx([10.0])
    assert quantities.of_rows(rows, "rate:fp64:20")["value"].tolist() == pytest.approx([2.0])
    assert not len(quantities.of_rows(rows.assign(device="another"), "share:fp64"))


def test_phases_are_shares_of_the_time():
    rows = curve([1.0, 1.0], v_phases=[["a", "b"], None], v_phases_s=[[1.0, 3.0], None])
    assert quantities.of_rows(rows, "phase:b")["value"].tolist() == [75.0]
    assert not len(quantities.of_rows(rows[1:], "phase:b")) and not len(quantities.of_rows(rows[:0], "phase:b"))


def test_criteria_are_scored():
    rows = curve([2.0, 0.5, 3.0, 0.9], v_nnz=[10, 10, 1, 1])
    rows = quantities.of_rows(rows, "v_y")
    assert quantities.aggregate(rows, "precision:v_nnz>5") == 0.5
    assert quantities.aggregate(rows, "recall:v_nnz/p_n<6") == 0.5
    assert quantities.aggregate(rows, "of:16") == 8
    assert quantities.aggregate(rows, "times:p_n=3:v_nnz=10&p_n<3") == pytest.approx(3 / 1.25)


@pytest.mark.parametrize(("values", "how"), [([2.0, 3.0], "precision:p_n=1"), ([2.0, 0.5], "recall:p_n<9")])
def test_a_score_that_no_prediction_could_miss_is_none(values, how):
    assert math.isnan(quantities.aggregate(quantities.of_rows(curve(values), "v_y"), how))


SKIPPED = {
    "rival not installed": ("rival", "Rival is not installed: name its library in SPECTILE_RIVAL"),
    "input absent": ("-", "matrix A/b has not been fetched into /c; get it with: python -m spectile fetch"),
    "needs a GPU": ("rival", "rival needs a CUDA device"),
    "needs more GPUs": ("-", "the case x needs 8 GPUs and 1 are visible: run it where they are"),
    "a method fails": ("rival", "CuSparseError: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES: insufficient resources"),
    "not recorded yet": ("rival", "left out of this row: it takes about 20 s a call"),
}


@pytest.mark.parametrize("cause", SKIPPED)
def test_a_claim_without_a_verdict_says_why(tmp_path, cause):
    method, reason = SKIPPED[cause]
    rows = pandas.concat([
        curve([1.0], method="spectile", v_bytes=1.0),
        curve([math.nan], method=method, status="skipped", reason=reason, record="s"),
        curve([math.nan], method="another", status="skipped", reason="Another is not built: build it", record="s"),
    ])  # fmt: skip
    asked = table(tmp_path, column="over:v_bytes:spectile:rival", filter="p_n=1")
    (found,) = claims.evaluate(asked, [rows]).to_dict("records")
    assert (found["verdict"], found["missing"], found["cause"]) == ("not measured", reason, cause)


def test_of_several_reasons_the_one_that_would_settle_it_first_counts(tmp_path):
    rows = [
        curve([math.nan], method=method, status="skipped", reason=SKIPPED[cause][1])
        for cause, method in (("input absent", "-"), ("a method fails", "rival"))
    ]
    asked = table(tmp_path, column="over:v_bytes:spectile:rival", filter="p_n=1,method=spectile|rival")
    assert claims.evaluate(asked, [pandas.concat(rows)])["cause"].tolist() == ["input absent"]


def test_more_gpus_than_any_case_of_the_run_used_are_asked_for(tmp_path):
    asked = table(tmp_path, column="v_y", filter="p_gpus=4,method=spectile")
    (found,) = claims.evaluate(asked, [curve([1.0], p_gpus=1)]).to_dict("records")
    assert found["cause"] == "needs more GPUs" and "4 GPUs" in found["missing"]
    (found,) = claims.evaluate(asked, [curve([math.nan], p_gpus=4)]).to_dict("records")
    assert found["cause"] == "not recorded yet"


def test_what_the_paper_does_not_say_is_its_own_cause(tmp_path):
    found = claims.evaluate(table(tmp_path, kind="exact", note="the paper does not say which it is"), [])
    assert claims.causes(found) == {"not said by the paper": 1}
    assert not claims.causes(claims.evaluate(table(tmp_path, kind="seconds", note="the paper's machine"), []))


def test_every_claim_of_a_kind_with_verdicts_has_one_or_a_cause(written):
    found = pandas.read_csv(written / "claims.tsv", sep="\t", keep_default_na=False)
    judged, decided = found["kind"].isin(claims.JUDGED), found["verdict"].isin(claims.VERDICTS)
    assert ((found["cause"] != "") == judged & ~decided).all()
    assert set(found["cause"]) <= {"", *claims.CAUSES}


def test_times_are_called_what_they_are():
    rows = pandas.DataFrame({"paper": ["tsparse", "tsparse"], "method": ["spectile_float16", "rows_float16"]})
    assert quantities.time_of(rows, "time_s") == "as called and device"
    assert quantities.time_of(rows[:1], "rate") == "as called" and quantities.time_of(rows, "v_nnz") == ""
    tridiagonal = pandas.DataFrame({"paper": ["evd"], "method": ["spectile"], "p_study": ["tridiagonal"]})
    assert quantities.time_of(tridiagonal, "speedup:a:b") == "as called"
    assert quantities.time_of(tridiagonal.assign(p_study="chasing"), "speedup:a:b") == "device"


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["reproduced", "reproduced"], "agrees"),
        (["reproduced", "ahead"], "agrees in part"),
        (["differs", "behind", "not measured"], "does not agree"),
        (["not measured", "not judged", "the paper's alone"], ""),
    ],
)
def test_agreement_is_of_verdicts(verdicts, word):
    assert agreement.word(verdicts) == word
    asked = pandas.DataFrame({"verdict": verdicts, "kind": "conclusion", "statement": "a_b is 2x faster"})
    asked = asked.assign(about="own", turns="")
    said = agreement.sentence(asked)
    assert (f"**Ours {word}**" if word else "**Nothing can be said of ours**") in said
    assert ("a\\_b is 2x faster" in said) == ("differs" in verdicts)


def test_a_vendor_that_changed_is_no_disagreement_of_ours():
    rows = pandas.DataFrame({"verdict": ["reproduced", "vendor changed", "vendor changed"], "kind": "share"})
    rows = rows.assign(statement="s", about=["own", "vendor", "vendor"], turns="")
    assert "**Ours agrees**" in (said := agreement.sentence(rows)) and "the vendor changed" in said
    assert "Ours" not in agreement.sentence(rows[1:])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the folder in which the page of the recorded claims was written."""
    folder = tmp_path_factory.mktemp("page")
    frames = [record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet") for paper in provenance.PAPERS]
    pages.write(frames, ROOT / "config/claims.tsv", folder / "claims.html")
    return folder


def test_page_counts_kinds_and_verdicts_of_each_paper(written):
    shown = (written / "claims.fragment.html").read_text()
    evaluated = pandas.read_csv(written / "claims.tsv", sep="\t", keep_default_na=False)
    for paper, name in (("spamm", "SpAMM"), ("tsparse", "tSparse"), ("evd", "EVD"), ("kpm", "KPM")):
        (card,) = re.findall(f'<figure>.*?alt="{name}".*?</figure>', shown)[:1]
        of_paper = evaluated[(evaluated["paper"] == paper) & evaluated["kind"].isin(claims.JUDGED)]
        for verdict, count in of_paper["verdict"].value_counts().items():
            assert (f">{count} {verdict}<" in card) == (verdict in claims.VERDICTS)
        exact = of_paper[of_paper["kind"] == "exact"]
        if len(exact):
            found = exact["verdict"].isin(claims.VERDICTS).sum()
            assert f"{found} of {len(exact)} exact" in card
        for cause, count in claims.causes(of_paper).items():
            assert f"{cause} {count}" in card
    assert shown.count("<tr data-") == len(evaluated)


def test_filters_of_the_page_show_what_they_say(written):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed: the filters were not tried (Debian: apt-get install chromium)")
    choose = "<script>for(const [name,value] of [['paper','evd'],['verdict','ahead']]){"
    choose += "const each=document.querySelector(`select[name=${name}]`);each.value=value;"
    choose += "each.dispatchEvent(new Event('change'))}</script></body>"
    page = written / "chosen.html"
    page.write_text((written / "claims.html").read_text().replace("</body>", choose))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [f"--user-data-dir={written / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run([browser, *options], capture_output=True, text=True, timeout=120, check=True)
    rows = re.findall(r"<tr (data-[^>]*)>", done.stdout)
    left = [row for row in rows if "hidden" not in row]
    evaluated = pandas.read_csv(written / "claims.tsv", sep="\t")
    wanted = evaluated[(evaluated["paper"] == "evd") & (evaluated["verdict"] == "ahead")]
    assert len(left) == len(wanted) and f"<output>{len(wanted)} claims</output>" in done.stdout
    assert len(rows) == len(evaluated)
