"""From input to report: a short run of SpAMM, and what a reader sees."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas
import pytest

from spectile_study.bench import provenance, record
from spectile_study.bench.claims import read_claims

from .conftest import ROOT, copy_workflow, snakemake
from .faulty.workflow import quiet_seconds
from .truth import check_marks

SHORT = ["--cores", "2", "--config", "papers=[spamm]", "rounds=3", "budget_s=1"]


def keep_least(sheet):
    """Keep of a sheet's quick cases those of Table 1, and of each other study and element those of the least order.

    Larger ones take the same way in more time; each quick case is measured by a test of its own.  Other runs stay: what
    claims ask for is in their rows.
    """
    rows = pandas.read_csv(sheet, sep="\t", dtype=str, keep_default_na=False)
    quick = rows[rows["run"].str.split(",").map(lambda runs: "quick" in runs)]
    order = pandas.to_numeric(quick["n"]).fillna(0)
    least = order.groupby([quick["study"], quick["element"], quick["operator"]]).transform("min")
    larger = (order > least) & (quick["element"] != "t1")
    rows.drop(index=quick.index[larger]).to_csv(sheet, sep="\t", index=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with a finished short run."""
    folder = copy_workflow(tmp_path_factory.mktemp("run"))
    keep_least(folder / "config/spamm.tsv")
    snakemake(folder, *SHORT)
    return folder


def test_second_run_has_nothing_to_do(finished):
    done = []
    assert quiet_seconds(lambda: done.append(snakemake(finished, *SHORT))) < 10
    assert "Nothing to be done" in done[0].stdout + done[0].stderr


def test_every_mark_recomputes_from_the_samples(finished):
    frame = record.read_frame(finished / "results/this/spamm.parquet")
    drawn = sum(check_marks(path, frame) for path in (finished / "results/this").rglob("*.marks.tsv"))
    assert drawn > 24


def test_records_hold_no_failure(finished):
    frame = record.read_frame(finished / "results/this/spamm.parquet")
    failed = frame[frame["status"] == "failed"]
    assert failed.empty, failed[["case", "method", "reason"]].to_string()
    assert (frame.loc[frame["status"] == "skipped", "reason"].str.len() > 10).all()


def test_claims_of_table_1_and_3_reproduce(finished):
    claims = pandas.read_csv(finished / "results/this/claims.tsv", sep="\t")
    table_1 = claims[(claims["paper"] == "spamm") & (claims["element"] == "Table 1")]
    assert len(table_1) >= 36
    assert set(table_1["verdict"]) == {"reproduced"}
    page = (finished / "results/this/claims.html").read_text()
    assert "<td>1.434815</td><td>1.434815</td>" in page  # ours has the digits that the paper prints


def test_changed_row_measures_its_case_alone(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, symlinks=True)
    sheet = copy / "config/spamm.tsv"
    lines = sheet.read_text().splitlines()
    column = lines[0].split("\t").index("memory_gb")
    number, cells = next((i, line.split("\t")) for i, line in enumerate(lines[1:], 1) if "quick" in line.split("\t")[1])
    cells[column] = "3"
    lines[number] = "\t".join(cells)
    sheet.write_text("\n".join(lines) + "\n")
    plan = snakemake(copy, "-n", *SHORT).stdout
    assert re.search(r"measure_case\s+1\b", plan), plan[-2000:]


def test_report_opens_on_the_claims_in_a_browser(finished, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed: the report was not opened (Debian: apt-get install chromium)")
    with zipfile.ZipFile(finished / "results/this/report.zip") as archive:
        archive.extractall(tmp_path)
    page = next(tmp_path.rglob("report.html"))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--window-size=1500,1000",
    ]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--allow-file-access-from-files",
        "--virtual-time-budget=8000",
    ]
    shown = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=1200, check=True
    ).stdout
    seen = re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL)
    assert "reproduced" in seen[seen.index("spectile-claims") :]
    for category in ("0 Claims", "1 SpAMM"):
        assert category in seen


def test_report_calls_elements_as_the_paper_does(finished):
    with zipfile.ZipFile(finished / "results/this/report.zip") as archive:
        (page,) = [name for name in archive.namelist() if name.endswith("report.html")]
        assert page == "report/report.html"  # as README says
        report = archive.read(page).decode()
    labels = set(re.findall(r'"element": "([^"]*)"', report))
    assert {
        "Claims by machine",
        "Times by machine",
        "All claims",
        "Figure 5",
        "Table 1",
        "ablation (not in the paper)",
    } <= labels
    assert not [label for label in labels if re.match(r"(Table|Figure) \D", label)]
    shown = set(re.findall(r'"shows": "([^"]*)"', report))
    assert "speed-up over the dense product by valid ratio" in shown and len(shown) > 10


def test_report_shows_the_rules_that_made_the_inputs(finished):
    with zipfile.ZipFile(finished / "results/this/report.zip") as archive:
        report = archive.read("report/report.html").decode()
    graph = report[report.index("rulegraph") :]
    for rule in ("describe_input", "compute_water", "train_network", "measure_case", "draw_figure", "check_claims"):
        assert rule in graph, f"the graph of rules lacks {rule}"
        assert f">{rule}<" in (finished / "results/this/rules.svg").read_text()  # for whoever keeps the records


def test_the_run_stands_beside_the_recorded_machines(finished):
    told = pandas.read_csv(finished / "results/this/machines/claims.tsv", sep="\t")
    machines = list(dict.fromkeys(name.partition(" ")[0] for name in list(told)[4:]))
    frames = (ROOT / "results/recorded").glob("*/spamm.parquet")
    recorded = sorted(path.parent.name for path in frames if len(record.read_frame(path)))
    assert machines == ["this", *recorded] and {"h100", "h200"} <= set(recorded)
    (verdicts,) = [name for name in told if name.startswith("this ") and name.endswith(": verdict")]
    table_1 = told[told["where"] == "SpAMM, Table 1"]
    assert len(table_1) >= 36 and (table_1[verdicts] == "reproduced").all()
    assert (finished / "results/this/machines/times.html").stat().st_size > 500


OVERVIEW = ROOT / "docs/overview.marks.tsv"


@pytest.fixture(scope="module")
def recorded():
    """Return the frames that the README's picture is drawn from, as one."""
    papers = pandas.read_csv(OVERVIEW, sep="\t")["paper"].unique()
    paths = [path for paper in papers for path in (ROOT / "results/recorded").glob(f"h?00/{paper}.parquet")]
    frames = [record.read_frame(path) for path in paths]
    return pandas.concat(frames, ignore_index=True)


def test_picture_of_the_readme_is_drawn_from_records(recorded):
    assert check_marks(OVERVIEW, recorded) > 30


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("y", "1.23456", "is drawn as 1.23456"),
        ("record", "0" * 12, "in no record"),
        ("y_column", "beauty", "who derives"),
    ],
)
def test_a_wrong_mark_is_noticed(recorded, tmp_path, column, value, message):
    notes = pandas.read_csv(OVERVIEW, sep="\t", dtype=str, keep_default_na=False)
    notes.loc[3, column] = value
    notes.to_csv(tmp_path / "spoilt.marks.tsv", sep="\t", index=False)
    with pytest.raises(AssertionError, match=message):
        check_marks(tmp_path / "spoilt.marks.tsv", recorded)


def test_paper_numbers_are_printed_in_the_papers():
    papers = ROOT.parent / "shared/papers"
    if not papers.exists():
        pytest.skip("the papers' texts are not beside the repository: printed numbers were not looked up")
    files = {"spamm": "cuspamm.txt", "tsparse": "tsparse.txt", "evd": "evd.txt", "kpm": "kpm.txt"}
    claims = read_claims(ROOT / "config/claims.tsv")
    for paper in provenance.PAPERS:
        text = (papers / files[paper]).read_text().replace(",", "").replace("−", "-")
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)}
        powers = re.findall(r"(\d+(?:\.\d+)?)\s*(?:×|\\times|\\cdot)\s*10\^\{?(-?\d+)", text)
        numbers |= {float(f"{digits}e{exponent}") for digits, exponent in powers}
        scaled = {round(number / 100, 12) for number in numbers} | numbers | {number / 1000 for number in numbers}
        for _, row in claims[(claims["paper"] == paper) & claims["printed"].notna()].iterrows():
            value = abs(float(row["printed"]))
            assert any(abs(value - number) <= 1e-9 * max(value, 1e-300) for number in scaled), (
                f"{row['claim']}: {row['printed']} is not printed in {files[paper]}"
            )


def test_python_dash_m_spectile_compare(finished):
    path = finished / "results/this/spamm.parquet"
    done = subprocess.run(
        [sys.executable, "-m", "spectile_study", "compare", path, path], capture_output=True, text=True, check=True
    )
    assert "verdict" in done.stdout and "only in" not in done.stdout


def test_run_leaves_its_configuration(finished):
    text = (finished / "results/this/config.yaml").read_text()
    assert "papers:\n- spamm" in text
    known = json.loads((finished / "results/this/machine.json").read_text())
    assert Path(finished / "results/this/report.zip").exists() and known
