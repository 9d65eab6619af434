"""What is drawn follows the records: an edited sample draws anew, and recorded results are drawn without measuring."""

import json

import numpy as np
import pandas
import pytest

from spectile_study.__main__ import main
from spectile_study.bench import archive, record
from spectile_study.everyday import outputs
from spectile_study.figures.elements import elements
from spectile_study.papers import PAPERS

from .conftest import ROOT, snakemake
from .faulty import workflow as faulty
from .truth import check_marks

ALL = ("--cores", "2", "--set-threads", "measure_case=1")


def drawn(folder):
    return pandas.read_csv(folder / "results/this/figures/kpm_fig1.marks.tsv", sep="\t").set_index(["case", "method"])[
        "y"
    ]


def test_an_edited_median_is_drawn_again(finished_copy):
    folder = finished_copy
    wanted = ("results/this/figures/kpm_fig1.svg", "results/this/kpm.parquet", *ALL)
    before = drawn(folder)
    path = folder / "results/this/records/kpm/one.json"
    content = json.loads(path.read_text())
    (method,) = [each for each in content["methods"] if each["method"] == "good"]
    method["samples_s"] = [10 * sample for sample in method["samples_s"]]
    path.write_text(json.dumps(content))
    _, printed = faulty.run(folder, *wanted)
    assert "Measuring" not in printed and printed.count("Drawing the figure") == 1
    after = drawn(folder)
    assert after["one", "good"] == pytest.approx(10 * before["one", "good"])
    assert after["one", "good"] == pytest.approx(np.median(method["samples_s"]))
    assert len(before) == 2 and after["one", "vendor"] == before["one", "vendor"]
    frame = record.read_frame(folder / "results/this/kpm.parquet").set_index(["case", "method"])
    assert frame.loc[("one", "good"), "time_s"] == after["one", "good"]
    assert archive.load(folder / "results/this/kpm.zip")["one"] == content


RECORDED = {
    path.name: sorted(frame for frame in path.glob("*.parquet") if frame.stem in PAPERS)
    for path in sorted((ROOT / "results/recorded").glob("*"))
    if path.is_dir()
}
#: Of the machine with most records everything is made, by Snakemake; of the others what its jobs run, in this process.
FULLEST = max(RECORDED, key=lambda machine: sum(path.stat().st_size for path in RECORDED[machine]))


def check_drawings(results, machine):
    """Hold every mark of what was drawn of a recorded machine against its records."""
    for frame_path in RECORDED[machine]:
        frame = record.read_frame(frame_path)
        for path in results.rglob(f"{frame_path.stem}_*.marks.tsv"):
            check_marks(path, frame)


def test_recorded_results_redraw_and_measure_nothing(workflow_copy):
    done = []
    options = ("--cores", "2", "--config", "source=recorded", f"machine={FULLEST}")
    taken = faulty.quiet_seconds(lambda: done.append(snakemake(workflow_copy, *options)))
    assert taken < 2 * 60  # a minute on two cores
    printed = done[0].stdout + done[0].stderr
    assert "redraw_evd" in printed and "measure_case" not in printed and "fetch_matrix" not in printed
    check_drawings(workflow_copy / f"results/{FULLEST}", FULLEST)


@pytest.mark.parametrize("machine", sorted(set(RECORDED) - {FULLEST}))
def test_records_of_every_machine_are_drawn_and_judged(machine, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for path in RECORDED[machine]:
        words = ["draw", "--study", ".", "--paper", path.stem, "--results", tmp_path, "--from", path]
        assert main([str(word) for word in words]) == 0
        assert len(list(tmp_path.rglob(f"{path.stem}_*.marks.tsv"))) == len(elements(path.stem))
    if RECORDED[machine]:
        words = ["claims", "--claims", "config/claims.tsv", "--out", tmp_path / "claims.html", "--frames"]
        assert main([str(word) for word in (*words, *RECORDED[machine])]) == 0
        assert (tmp_path / "claims.html").stat().st_size > 1000
    check_drawings(tmp_path, machine)
    everyday = ROOT / f"results/recorded/{machine}/everyday.parquet"
    if everyday.exists():
        assert main(["draw-everyday", "--from", str(everyday), "--results", str(tmp_path)]) == 0
        assert len(list((tmp_path / "everyday").glob("*.svg"))) == len(outputs.FIGURES)


def test_everything_draws_from_nothing(workflow_copy):
    kept = workflow_copy / "results/recorded/nowhere/rules.svg"
    kept.parent.mkdir()
    kept.write_text("<svg/>")
    shown = "results/nowhere/rules.svg"
    wanted = ("figures", shown, "--config", "source=recorded", "machine=nowhere", "papers=[tsparse,evd,kpm]")
    snakemake(workflow_copy, "--cores", "2", *wanted)
    assert (workflow_copy / shown).read_text() == "<svg/>"
    for path in (workflow_copy / "results/nowhere").rglob("*.marks.tsv"):
        assert len(pandas.read_csv(path, sep="\t")) == 0, f"{path.name} has marks and there was no record"
