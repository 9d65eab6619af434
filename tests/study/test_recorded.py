"""Reviewed measurements (results/recorded): every row of the sheets is there, or named here as not measured yet."""

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from spectile_study import make_inputs
from spectile_study.bench import archive, provenance, record, stats
from spectile_study.bench.sheets import read_sheet
from spectile_study.everyday import frame as everyday

ROOT = Path(__file__).parents[2]
ZIPS = sorted((ROOT / "results/recorded").rglob("*.zip"))
EVERYDAY = sorted((ROOT / "results/recorded").glob("*/everyday.parquet"))
FRAMES = sorted({*(ROOT / "results/recorded").rglob("*.parquet")} - {*EVERYDAY})
# Cases of the paper run that no H200 has measured yet, as patterns; docs/notes says why.  A case that
# is recorded must leave this list.
NOT_RECORDED = {
    "spamm": r"truncation_.*_gpus[48]|water_569_(density|fock)_\w+_gpus[48]|water_60_\w+_ergo_gpus1",
    "tsparse": r"-",
    "evd": r"devices_32768_(values|vectors)_complex128",
    "kpm": r"-",
}


def sheet(paper, run=None):
    return read_sheet(ROOT / f"config/{paper}.tsv", ROOT / f"workflow/schemas/{paper}.schema.yaml", run)


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_paper_run_is_recorded(paper):
    recorded = set(record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet", whole=True)["case"])
    lacking = {case for case in sheet(paper, "paper") if re.fullmatch(NOT_RECORDED[paper], case)}
    assert set(sheet(paper, "paper")) - recorded == lacking, f"NOT_RECORDED[{paper!r}] is not what is lacking"


@pytest.mark.parametrize("path", ZIPS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kept_records_are_those_of_the_frame_and_say_what_made_them(path):
    of_earlier = path.parent.name == "earlier"
    frame = record.read_frame((path.parents[of_earlier] / path.name).with_suffix(".parquet"), whole=True)
    records = archive.load(path)
    assert records
    found = frame.groupby("case")["record"].agg(list)
    for case, stored in records.items():
        first = found[case][0]  # of the latest record, which stands before what stays beside it
        assert record.record_id(stored) in found[case]
        assert (record.record_id(stored) != first) == of_earlier
    frame = frame[frame["record"].isin([record.record_id(stored) for stored in records.values()])]
    measured = [case for case, stored in records.items() if stored["backend"] == "cuda" and stored["status"] == "ok"]
    rows = frame[frame["case"].isin(measured)]
    for name in (*record.RUN_FACTS, *record.RUN_GPU_FACTS, "measured_at"):
        assert rows[f"run_{name}"].notna().all(), f"run_{name} is absent of {path}"
    with_inputs = [case for case in measured if records[case]["inputs"]]
    assert frame.loc[frame["case"].isin(with_inputs), "run_inputs"].str.contains("[0-9a-f]{64}").all()


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_may_be_drawn_is_of_the_sheet_and_says_what_made_it(path):
    frame = record.read_frame(path)
    assert set(frame["case"]) <= set(sheet(path.stem))
    timed = frame[frame["time_s"].notna()]
    assert timed["run_measured_at"].str.match(r"20\d\d-\d\d-\d\d").all()
    assert timed.loc[timed["device"].str.startswith("NVIDIA"), "run_driver"].notna().all()


@pytest.mark.parametrize("path", EVERYDAY, ids=lambda path: path.parent.name)
def test_recorded_everyday_draws_are_of_their_machine_and_say_what_made_them(path):
    frame = everyday.read(path)
    measured = frame[frame["status"] == "ok"]
    assert set(frame["machine"]) == {path.parent.name}
    assert measured["commit"].str.fullmatch("[0-9a-f]{40}").all() and not measured["dirty"].any()
    assert measured["run_measured_at"].str.match(r"20\d\d-\d\d-\d\d").all()
    assert measured.groupby("system")["device"].nunique().eq(1).all()


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_rows_say_their_sources(path):
    frame = record.read_frame(path, whole=True)
    assert set(frame["machine"]) == {path.parent.name} and set(frame["paper"]) == {path.stem}
    assert frame["commit"].str.contains("[0-9a-f]{40}$").all()
    assert frame["digest"].str.fullmatch("[0-9a-f]{64}").all()
    assert frame["device"].nunique() <= 2  # a GPU and its host
    assert set(frame["status"]) <= {"ok", "failed", "skipped", "beside"}
    assert frame.loc[frame["status"] != "ok", "reason"].str.len().gt(20).all()
    latest = frame[frame["status"] != "beside"]
    assert not latest.duplicated(["case", "method"]).any()
    timed = frame["status"].isin(stats.PASSED) & (frame["clock"] != "none")
    assert frame.loc[timed, "time_s"].gt(0).all() and frame.loc[~timed, "time_s"].isna().all()


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, timeout=300)


def test_sources_of_every_record_are_in_the_history(tmp_path):
    if b"true" in git("rev-parse", "--is-shallow-repository").stdout:
        pytest.skip("this clone is shallow")
    landed = {
        lost: line[2].strip()
        for line in (row.split("|") for row in (ROOT / "docs/records.md").read_text().splitlines())
        if len(line) == 4 and re.fullmatch("[0-9a-f]{7}", line[2].strip())
        for lost in line[1].strip().split(", ")
    }
    digests = {
        (commit, path.stem, digest)
        for path in FRAMES
        for commit, digest in record.read_frame(path, whole=True)[["commit", "digest"]]
        .drop_duplicates()
        .itertuples(index=False)
    }
    lost = {each for each in digests if git("merge-base", "--is-ancestor", each[0], "HEAD").returncode}
    if lost == digests:
        pytest.skip("this copy has no history")
    assert {commit[:7] for commit, _, _ in lost} <= set(landed), "docs/records.md does not name all that are lost"
    for commit in set(landed.values()):
        assert not git("merge-base", "--is-ancestor", commit, "HEAD").returncode, f"{commit} is not in the history"
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src").stdout)) as sources:
            sources.extractall(tmp_path / commit, filter="data")
    for commit, paper, digest in lost:
        # As it was computed then.
        say = f"from spectile_study.bench.provenance import source_digest; print(source_digest({paper!r}))"
        sources = {**os.environ, "PYTHONPATH": str(tmp_path / landed[commit[:7]] / "src")}
        done = subprocess.run([sys.executable, "-c", say], env=sources, capture_output=True, text=True, timeout=300)
        assert done.stdout.strip() == digest, f"{paper} at {commit}: {done.stderr}"


def test_a_second_machine_measures_cases_that_are_recorded_without_network_or_training():
    listed = [line.split("/") for line in (ROOT / "config/second_machine.txt").read_text().splitlines()]
    assert len(listed) == len({case for _, case in listed}) and {paper for paper, _ in listed} == set(provenance.PAPERS)
    for paper in provenance.PAPERS:
        frame = record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet", whole=True)
        done = set(frame.loc[frame["status"] == "ok", "case"])
        for case in (case for each, case in listed if each == paper):
            row = sheet(paper, "paper")[case]
            assert case in done and (row["gpus"] or 0) <= 1, f"{paper}/{case}"
            kinds = {kind for kind, _ in make_inputs.of_case(paper, row)}
            assert kinds <= {*make_inputs.DESCRIBED, "family"}
            assert kinds or paper != "tsparse" or not row["matrix"], f"{case} is downloaded"
