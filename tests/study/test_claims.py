"""Verdicts of claims, the table of what is printed, and the pages that show both."""

import math
import re
import shutil
import subprocess

import numpy as np
import pandas
import pytest

from spectile_study.bench import claims, provenance
from spectile_study.bench.names import ClaimError
from spectile_study.bench.rows import Rows
from spectile_study.figures import agreement, judged
from spectile_study.figures import claims as pages
from spectile_study.figures.elements import SCRIPTS

from .recorded import CLAIMS, ROOT, frame, of

RECORDED = ROOT / "results/recorded"


def judge(ours, **cells):
    """Return what is said of one claim for which 2 is printed."""
    claim = dict.fromkeys(claims.COLUMNS, "") | {"kind": "ratio", "about": "own", "printed": 2.0, "tolerance": "0.1"}
    return dict(zip(claims.RESULTS, claims.judge(claim | cells, ours), strict=True))


def rows(**columns):
    """Return one case of two methods of SpAMM, the one twice as fast as the other."""
    samples = {"fast": [0.5, 1.0, 1.5], "slow": [1.0, 2.0, 3.0]}
    found = {"method": list(samples), "samples_s": list(samples.values()), "time_s": [1.0, 2.0], "status": "ok"}
    found |= {"paper": "spamm", "case": "c", "record": ["r", "r"], "device": "d", "machine": "m", "reason": None}
    return Rows(pandas.DataFrame(found | columns))


def twice():
    return rows().speedup("fast", "slow").only()


@pytest.mark.parametrize(
    ("kind", "about", "printed", "verdict", "turns"),
    [
        ("ratio", "own", 1.9, "reproduced", ""),
        ("ratio", "own", 2.19, "reproduced", ""),  # a factor to both sides: 2 / 1.1 to 2 x 1.1
        ("ratio", "own", 1.82, "reproduced", ""),
        ("ratio", "own", 1.81, "ahead", ""),
        ("ratio", "own", 2.21, "behind", ""),
        ("ratio", "own", 0.58, "ahead", "the paper loses here and ours wins"),
        ("ratio", "vendor", 1.5, "vendor differs", "")  ,
        ("ratio", "vendor", 2.1, "reproduced", ""),
        ("share", "own", 1.5, "above", ""),
        ("share", "own", 2.5, "below", ""),
        ("share", "own", 2.1, "reproduced", ""),
        ("share", "vendor", 2.5, "vendor differs", ""),
        ("exact", "own", 1.5, "differs", ""),
        ("exact", "own", 2.2, "reproduced", ""),
        ("exact", "vendor", 1.5, "vendor differs", ""),
        ("seconds", "own", 1.5, "shown beside", ""),
    ],
)  # fmt: skip
def test_verdicts_have_two_sides_and_a_vendor_is_not_ours_to_beat(kind, about, printed, verdict, turns):
    found = judge(twice(), kind=kind, about=about, printed=printed)
    assert (found["measured"], found["verdict"], found["turns"]) == (2.0, verdict, turns)
    assert found["ratio"] == 2.0 / printed and found["time"] == "device" and found["basis"] == "c"


def test_what_the_paper_wins_and_ours_loses_is_told():
    slow = judge(rows().speedup("slow", "fast").only(), printed=3.0)
    assert (slow["verdict"], slow["turns"]) == ("behind", "the paper wins here and ours loses")
    gain = judge(rows().gain("slow", "fast").only(), printed=8.0, tolerance="0.02")
    assert (gain["measured"], gain["turns"]) == (-50.0, "the paper wins here and ours loses")


@pytest.mark.parametrize(("printed", "verdict"), [(100.0, "reproduced"), (85.0, "reproduced"), (60.0, "ahead")])
def test_a_gain_is_a_ratio(printed, verdict):
    assert judge(rows().gain("fast", "slow").only(), printed=printed)["verdict"] == verdict


def test_tolerances_are_relative_or_absolute():
    assert judge(twice(), kind="exact", printed=2.3, tolerance="0.2")["verdict"] == "reproduced"
    assert judge(twice(), kind="exact", printed=2.3, tolerance="abs:0.2")["verdict"] == "differs"


def test_conclusions_hold_or_differ():
    conclusion = {"kind": "conclusion", "tolerance": "", "printed": math.nan}
    assert judge(twice().at_least(2), **conclusion)["verdict"] == "reproduced"
    assert judge(twice().at_least(3), **conclusion)["verdict"] == "differs"
    assert judge(twice().at_least(3), **conclusion, about="vendor")["verdict"] == "vendor differs"


def test_a_conclusion_and_a_number_are_not_mixed_up():
    for ours, cells in ((twice(), {"kind": "conclusion"}), (twice().at_least(1), {})):
        with pytest.raises(ClaimError, match="is a conclusion exactly if"):
            judge(ours, **cells)
    with pytest.raises(ClaimError, match="has no tolerance"):
        judge(twice(), tolerance="")


def test_fewer_cases_than_a_verdict_takes_are_shown_and_not_judged():
    found = judge(twice(), least="2", printed=0.5)
    assert (found["measured"], found["verdict"], found["cause"]) == (2.0, "not judged", "too few cases")
    assert found["missing"] == "made of 1 of the 2 cases that a verdict takes" and found["turns"] == ""
    assert judge(twice(), least="1")["verdict"] == "reproduced"


@pytest.mark.parametrize("where", [["h2o.xyz sha256 1; F by A", "h2o.xyz sha256 1"], ["generated, seed 1"] * 2])
def test_molecules_in_two_places_are_shown_and_not_judged(where):
    cells = {"case": ["c", "d"], "record": ["r", "s"], "samples_s": [[1.0], [2.0]], "v_cluster": where}
    ours = rows(**cells).column("time_s").geomean()
    assert judge(ours, printed=1.4)["verdict"] == "reproduced"
    mixed = rows(**cells | {"v_cluster": [where[0], "generated, seed 2"]}).column("time_s").geomean()
    found = judge(mixed, printed=1.4)
    assert (found["verdict"], found["cause"]) == ("not judged", "several inputs")
    assert "generated, seed 2" in found["missing"] and where[0].partition(";")[0] in found["missing"]


@pytest.mark.parametrize(("printed", "said"), [(1.0, "ours is good"), (4.0, "ours is bad"), (2.0, "")])
def test_a_reason_stands_beside_the_numbers_that_it_explains(printed, said):
    claim = {"reason": "lower: ours is bad; higher: ours is good", "printed": printed}
    assert judged.why(claim | {"note": ""} | judge(twice(), **claim)) == "; ".join(
        each for each in (said, "made of c") if each
    )
    one_sided = {"reason": "lower: ours is bad", "printed": 1.0, "note": "as printed"}
    assert judged.why(one_sided | judge(twice(), **one_sided)) == "as printed; made of c"


def test_what_decides_a_conclusion_and_which_algorithm_was_beaten_are_told():
    ours = rows(v_algorithm=[None, "alg3"]).speedup("fast", "slow").only().at_least(1.99)
    found = judge(ours, kind="conclusion", tolerance="", printed=math.nan)
    assert found["basis"] == "c; slow by its alg3; holds from 1.99 on; ours is level with that"
    least = rows().speedup("fast", "slow").min().at_least(1)
    told = judge(least, kind="conclusion", tolerance="", printed=math.nan)["basis"]
    assert told == "c; ours is the smallest speedup; holds from 1 on"
    cells = {"v_tau": [1.0, 2.0], "time_s": [4.0, 1.0], "method": "fast", "v_norm_c": 1.0}
    falls = rows(**cells).column("time_s").fall("v_tau").at_least(1)
    told = judge(falls, kind="conclusion", tolerance="", printed=math.nan)["basis"]
    assert told == "c; ours is the smallest value over the one after it by tau of the time; holds from 1 on"


def test_the_other_time_is_told_with_its_own_verdict():
    slower, unknown = (rows(**cells).speedup("slow", "fast").only() for cells in ({}, {"status": "failed"}))
    assert judge(twice().beside(slower))["basis"] == "c; device 0.5, behind"
    assert judge(twice().beside(unknown)) == judge(twice()) == judge(unknown.beside(twice()))


def test_a_number_of_another_device_is_not_judged_on_this_one():
    found = judge(rows().on("Other").speedup("fast", "slow").only())
    assert (found["verdict"], found["cause"]) == ("not measured", "needs another device")
    assert found["missing"] == "it needs the device Other, and this run is of d"
    assert judge(rows().on("d").speedup("fast", "slow").only())["verdict"] == "reproduced"
    other_case = judge(rows().at(case="none").on("d").speedup("fast", "slow").only())
    assert other_case["cause"] == "not recorded yet"


def test_a_single_sample_is_told():
    found = judge(rows(samples_s=[[1.0, 1.0], [2.0]]).speedup("fast", "slow").only())
    assert (found["verdict"], found["basis"]) == ("reproduced", "c; a single sample of slow")


CAUSES = {
    "rival not installed": "Rival is not installed: name its library in SPECTILE_RIVAL",
    "input absent": "matrix A/b has not been fetched into /c; get it with: python -m spectile fetch",
    "needs a GPU": "rival needs a CUDA device",
    "needs more GPUs": "the case x needs 8 GPUs and 1 are visible: run it where they are",
    "a method fails": "CuSparseError: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES: insufficient resources",
    "not recorded yet": "left out of this row: it takes about 20 s a call",
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_claim_without_a_verdict_has_a_cause(cause):
    found = judge(rows(status="skipped", reason=CAUSES[cause]).speedup("fast", "slow").only())
    assert (found["verdict"], found["missing"], found["cause"]) == ("not measured", CAUSES[cause], cause)


def test_of_several_reasons_the_one_that_would_settle_it_first_counts():
    reasons = [CAUSES["a method fails"], CAUSES["input absent"]]
    found = judge(rows(status="skipped", reason=reasons).speedup("fast", "slow").only())
    assert found["cause"] == "input absent"


def test_what_nothing_computes_is_the_papers_alone():
    found = judge(None, kind="exact", note="the paper does not say which it is")
    assert (found["verdict"], found["missing"]) == ("the paper's alone", "the paper does not say which it is")
    assert found["cause"] == "not said by the paper"
    assert judge(None, kind="seconds", note="the paper's machine")["cause"] == ""


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"printed": "two"}, "no number"),
        ({"claim": "c_*", "printed": "1=two"}, "no number"),
        ({"claim": "c_*", "printed": "1 2=3"}, "write a key for each"),
        ({"claim": "c_*", "printed": "1=2;"}, "write a key for each"),
        ({"claim": "c_*", "printed": "1=2", "statement": "{1}"}, "'c_1' has the statement"),
        ({"kind": "guess"}, "choose one of exact, ratio"),
        ({"about": "us"}, "choose one of own, vendor"),
        ({"least": "some"}, "which is no number"),
        ({"tolerance": "tight"}, "write a number or abs:number"),
        ({"kind": "seconds", "tolerance": "1"}, "only for a kind that gets a verdict"),
        ({"reason": "the device is another"}, "has a reason for any number: begin it with lower or higher and"),
    ],
)
def test_bad_tables_are_worded(tmp_path, cells, message):
    row = dict.fromkeys(claims.COLUMNS, "") | {"claim": "c", "about": "own", "kind": "ratio", "printed": "2"} | cells
    path = tmp_path / "claims.tsv"
    path.write_text("\t".join(claims.COLUMNS) + "\n" + "\t".join(row.values()) + "\n")
    with pytest.raises(ClaimError, match=message):
        claims.read_claims(path)
    path.write_text("\t".join(claims.COLUMNS) + "\n" + 2 * ("\t".join(["c"] * len(claims.COLUMNS)) + "\n"))
    with pytest.raises(ClaimError, match="'c' stands twice"):
        claims.read_claims(path)


def test_a_line_of_a_printed_table_is_a_row_and_each_of_its_numbers_a_claim(tmp_path):
    row = dict.fromkeys(claims.COLUMNS, "") | {"about": "own", "kind": "ratio", "tolerance": "0.1"}
    row |= {"claim": "t_*_x_*", "statement": "N = {0}, {2} of {1}", "printed": "1024 05:half=5.7; 64 k:all=2"}
    (tmp_path / "claims.tsv").write_text("\t".join(claims.COLUMNS) + "\n" + "\t".join(row.values()) + "\n")
    found = claims.read_claims(tmp_path / "claims.tsv").set_index("claim")
    assert found["printed"].to_dict() == {"t_1024_x_05": 5.7, "t_64_x_k": 2.0}
    assert found["statement"].tolist() == ["N = 1,024, half of 5", "N = 64, all of k"]
    assert set(found["tolerance"]) == {"0.1"}


def test_the_table_of_the_repository_is_sound():
    assert set(CLAIMS["paper"]) <= set(provenance.PAPERS)
    assert not CLAIMS[["statement", "element", "drawn"]].eq("").any(axis=None)
    of_sixteen = CLAIMS["statement"].str.contains("sixteen matrices") & (CLAIMS["unit"] != "%")
    least = CLAIMS["least"].replace("", "1").astype(int)
    assert of_sixteen.any() and (least[of_sixteen] >= 12).all()
    of_every = CLAIMS["statement"].str.contains("at every (?:order|size|k|width)")
    assert of_every.any() and (least[of_every] >= 4).all()


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_each_claim_is_computed_where_it_is_drawn_first_or_says_why_not(paper):
    listed = CLAIMS[CLAIMS["paper"] == paper]
    for name, element in of(paper).items():
        mine = listed[listed["drawn"].str.partition(",")[0] == name]
        computed = set(element.claims(Rows(frame(paper))))
        assert computed <= set(mine["claim"]), f"{paper} {name} computes what the table does not list"
        alone = mine[~mine["claim"].isin(computed)]
        assert not alone.loc[alone["note"] == "", "claim"].tolist(), f"{paper} {name} does not compute them"


def test_frames_of_two_machines_are_refused():
    with pytest.raises(ClaimError, match="two frames are of kpm"):
        judged.evaluate(CLAIMS, [frame("kpm"), frame("kpm")], ROOT / SCRIPTS)


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_an_element_says_the_same_without_the_others_cases(paper):
    """A run that measures judges an element by its own cases, and the page of claims by all: both must agree."""
    rows = frame(paper)
    for element in of(paper).values():
        names = {element.name, *element.needs}
        own = rows[[bool(names & set(str(cell).split(","))) for cell in rows["p_element"]]]
        whole, alone = (agreement.of_element(each, element) for each in (rows, own))
        same = ["claim", "measured", "verdict", "records"]
        assert whole[same].astype(str).equals(alone[same].astype(str)), (
            f"{paper} {element.name} judges cases of others: name them in NEEDS"
        )


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
    assert bool(agreement.partly(asked)) == (word != "agrees")
    beside = pandas.concat([asked, asked[:1].assign(kind="setting", verdict="shown beside")])
    assert (
        agreement.partly(beside) and agreement.sentence(beside).startswith(said) and agreement.sentence(beside) != said
    )


def test_a_vendor_that_changed_is_no_disagreement_of_ours():
    rows = pandas.DataFrame({"verdict": ["reproduced", "vendor differs", "vendor differs"], "kind": "share"})
    rows = rows.assign(statement="s", about=["own", "vendor", "vendor"], turns="")
    assert "**Ours agrees**" in (said := agreement.sentence(rows)) and "on a vendor alone none of 2 holds" in said
    assert "Ours" not in agreement.sentence(rows[1:])


def test_an_element_lists_its_claims_with_what_is_printed_and_ours(tmp_path):
    from docutils.core import publish_doctree

    judged = agreement.of_element(frame("kpm"), of("kpm")["fig11"])
    agreement.write(judged, tmp_path / "kpm_fig11.svg")
    tree = publish_doctree((tmp_path / "kpm_fig11.agreement.rst").read_text(), settings_overrides={"report_level": 5})
    lines = [[cell.astext() for cell in line.findall(lambda node: node.tagname == "entry")]
             for line in tree.findall(lambda node: node.tagname == "row")]  # fmt: skip
    found = agreement.of_element(frame("kpm"), of("kpm")["fig11"])
    assert lines[0] == ["claim", "printed", "ours", "time", "verdict", "what to know"] and len(lines) == len(found) + 1
    assert [line[3:5] for line in lines[1:]] == found[["time", "verdict"]].values.tolist()
    (gain,) = [line for line in lines if line[0] == "heterogeneous execution gains over the GPU alone"]
    assert gain[1] == "36" and gain[2].startswith("-") and "exchanging halos" in gain[5]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the folder in which the page of the recorded claims was written."""
    folder = tmp_path_factory.mktemp("page")
    pages.write(map(frame, provenance.PAPERS), ROOT / "config/claims.tsv", folder / "claims.html")
    return folder


def test_every_claim_of_a_kind_with_verdicts_has_one_or_a_cause(written):
    found = pandas.read_csv(written / "claims.tsv", sep="\t", keep_default_na=False)
    judged, decided = found["kind"].isin(claims.JUDGED), found["verdict"].isin(claims.VERDICTS)
    assert ((found["cause"] != "") == judged & ~decided).all()
    assert set(found["cause"]) <= {"", *claims.CAUSES}


def test_page_counts_kinds_and_verdicts_of_each_paper(written):
    shown = (written / "claims.fragment.html").read_text()
    evaluated = pandas.read_csv(written / "claims.tsv", sep="\t", keep_default_na=False)
    for paper, name in (("spamm", "SpAMM"), ("tsparse", "tSparse"), ("evd", "EVD"), ("kpm", "KPM")):
        (card,) = re.findall(f'<figure data-of="{paper}">.*?alt="{name}".*?</figure>', shown)
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


def shown_after(written, name, script):
    """Return the page as Chromium has it after a script ran in it, and the attributes of the rows that are shown."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed: the page was not tried (Debian: apt-get install chromium)")
    page = written / name
    page.write_text((written / "claims.html").read_text().replace("</body>", f"<script>{script}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [f"--user-data-dir={written / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run([browser, *options], capture_output=True, text=True, timeout=300, check=True)
    rows = re.findall(r"<tr (data-[^>]*)>", done.stdout)
    return done.stdout, [row for row in rows if "hidden" not in row], len(rows)


def test_filters_of_the_page_show_what_they_say(written):
    choose = "for(const [name,value] of [['paper','evd'],['verdict','ahead']]){"
    choose += "const each=document.querySelector(`select[name=${name}]`);each.value=value;"
    choose += "each.dispatchEvent(new Event('change'))}"
    shown, left, every = shown_after(written, "chosen.html", choose)
    evaluated = pandas.read_csv(written / "claims.tsv", sep="\t")
    wanted = evaluated[(evaluated["paper"] == "evd") & (evaluated["verdict"] == "ahead")]
    assert len(left) == len(wanted) and f"<output>{len(wanted)} claims</output>" in shown
    assert every == len(evaluated)


def test_a_card_leads_to_its_claims_and_a_claim_back_to_its_card(written):
    choose = "document.querySelector('select[name=kind]').value='exact';"
    choose += "document.querySelector('figure[data-of=kpm] a').click();"
    choose += "const seen=[];Element.prototype.scrollIntoView=function(){seen.push(this.dataset.of)};"
    choose += "document.querySelector('#kpm_reduction_gain a').click();document.title='back to '+seen"
    shown, left, _ = shown_after(written, "linked.html", choose)
    assert "<details open" in shown and "<title>back to kpm</title>" in shown
    listed = CLAIMS.loc[CLAIMS["paper"] == "kpm", "claim"]
    assert [re.search('id="([^"]*)"', row)[1] for row in left] == listed.tolist()


def test_a_sentence_says_where_a_paper_agrees_and_what_is_not_so():
    rows = [
        ("Table 1", "exact", "reproduced", "own"),
        ("Table 2", "ratio", "behind", "own"), ("Table 2", "ratio", "reproduced", "own"),
        ("Figure 3", "conclusion", "differs", "own"), ("Figure 4", "share", "vendor differs", "vendor"),
        ("Figure 5", "exact", "not measured", "own"),
    ]  # fmt: skip
    found = pandas.DataFrame(rows, columns=["element", "kind", "verdict", "about"]).assign(statement="it grows")
    assert agreement.summary(found) == "Agrees in Table 1; in part in Table 2; not in Figure 3. Not so: it grows."
    assert agreement.summary(found[1:3]) == "In part in Table 2."
    assert agreement.summary(found[4:]) == "Nothing of it has a verdict here."
    speeds = found.iloc[:2].assign(kind="ratio", verdict="not judged")
    without = agreement.summary(pandas.concat([found[:1].assign(kind="exact"), speeds]))
    assert without == "Agrees in Table 1; none of its 2 speed-ups has a verdict."
    # What is not so is not read as a part of what was said last.
    both = agreement.summary(pandas.concat([found.iloc[[0, 3]].assign(kind=["exact", "conclusion"]), speeds]))
    assert both.endswith("none of its 2 speed-ups has a verdict. Not so: it grows.")


def test_a_row_of_the_sheet_may_be_asked_for_before_it_is_recorded(tmp_path):
    """The sheet has the orthogonal Fock matrix, and no record yet; a misspelt operator is refused all the same."""
    for name in ("config", "workflow"):
        (tmp_path / name).symlink_to(ROOT / name)
    of_table, whole = CLAIMS[CLAIMS["drawn"].isin(["t4", "fig6"])], frame("spamm")
    before = whole[whole["p_operator"] != "fock_orthogonal"]
    (tmp_path / "results/recorded/h200").mkdir(parents=True)
    before.to_parquet(tmp_path / "results/recorded/h200/spamm.parquet")
    found = judged.evaluate(of_table, [before], ROOT / SCRIPTS, tmp_path / "results/recorded")
    assert set(found.loc[found["claim"].str.startswith("spamm_t4_2"), "verdict"]) == {"not measured"}
    (tmp_path / "config").unlink()
    shutil.copytree(ROOT / "config", tmp_path / "config")
    sheet = tmp_path / "config/spamm.tsv"
    sheet.write_text(sheet.read_text().replace("fock_orthogonal", "fock_other"))
    with pytest.raises(
        ClaimError, match="p_operator = 'fock_orthogonal', which no record holds and no row of the sheet"
    ):
        judged.evaluate(of_table, [before], ROOT / SCRIPTS, tmp_path / "results/recorded")


def squares(norms):
    """Return rows of squares of the water cluster's matrices with these norms, twice as fast as the dense product."""
    rows = [
        {"p_study": "water", "p_molecules": 569, "p_operator": operator, "p_precision": precision, "p_gpus": 1,
         "method": method, "case": f"{operator}_{precision}", "v_norm_c": norm, "v_error_fro": norm * error,
         "v_tau": tau, "time_s": time, "samples_s": [time] * 3}
        for operator, norm in norms.items() for precision in ("fp64", "fp32")
        for method, tau, error, time in (
            *((f"spectile_1e-{k:02}", 10.0**-k, 10.0 ** (-7 - k), 1.0) for k in (2, 4, 6, 8, 10)),
            ("cublas", None, 0.0, 2.0 * norm),
        )
    ]  # fmt: skip
    same = {"paper": "spamm", "machine": "m", "device": "d", "record": "r", "status": "ok", "reason": None}
    return pandas.DataFrame(rows).assign(**same)


def test_table_4_is_held_against_the_operator_that_fits_and_figure_6_against_norms_like_the_papers():
    operators = {"overlap": 400.0, "core_hamiltonian": 2e7, "fock_scf": 13_000.0, "density_scf": 100.0}
    operators |= {"fock_orthogonal": 10_300.0, "density_orthogonal": 200.0}
    rows = Rows(squares(operators))
    fourth = of("spamm")["t4"].claims(rows)
    assert fourth["spamm_t4_2_norm"].number == 10_300 and fourth["spamm_t4_2_1em02"].number == pytest.approx(1.03e-5)
    sixth = of("spamm")["fig6"].claims(rows)
    norms = {"1em10": list(operators.values()), "1em02": [2e7]}
    norms["1em04"] = [norm for norm in operators.values() if norm < 1e6]
    for tau, of_norm in norms.items():
        mean = np.exp(np.mean(np.log(2 * np.array(of_norm))))
        assert sixth[f"spamm_fig6_{tau}_gpus1"].number == pytest.approx(mean)


def test_the_page_is_not_written_with_a_value_that_nothing_holds(tmp_path, capsys):
    from spectile_study.__main__ import main

    for part in ("config", "workflow/scripts/evd"):
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/recorded").symlink_to(RECORDED)
    script = tmp_path / "workflow/scripts/evd/fig10.py"
    script.write_text(script.read_text().replace('rows.at(p_study="tridiagonal")', 'rows.at(p_study="tridiagnal")'))
    out, frames = tmp_path / "claims.html", ["--frames", str(RECORDED / "h200/evd.parquet")]
    assert main(["claims", *frames, "--claims", str(tmp_path / "config/claims.tsv"), "--out", str(out)]) == 2
    assert "evd fig10" in (said := capsys.readouterr().err) and "p_study = 'tridiagnal'" in said
    assert not out.exists()
