"""The measuring loop under faults: methods that crash, hang, lie or forget are results, and the others go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spectile_study.bench import record
from spectile_study.bench.compare import compare

FAULTY = Path(__file__).parent / "faulty"
MEASURE = [sys.executable, "-m", "spectile_study", "measure", "--paper", "kpm", "--machine", "test", "--device", "cpu"]
SHEET = ["--sheet", FAULTY / "kpm.tsv", "--schema", FAULTY / "kpm.schema.yaml", "--rounds", "4", "--threads", "1"]


def measure(folder, *options, check=True, **environment):
    return subprocess.run(
        [*MEASURE, *SHEET, "--out-dir", folder / "records/kpm", *options],
        env=os.environ | {"PYTHONPATH": str(FAULTY)} | environment,
        cwd=folder,
        check=check,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    measure(folder, "--run", "quick")
    return folder


def rows(folder, case):
    table = record.frame([record.read(folder / f"records/kpm/{case}.json")])
    return table.set_index("method")


def test_good_methods_have_samples_and_provenance(quick):
    frame = rows(quick, "all_well")
    assert list(frame["status"]) == ["ok", "ok", "skipped"]
    assert len(frame.loc["good", "samples_s"]) == 4
    assert frame.loc["good", "time_s_lo"] <= frame.loc["good", "time_s"] <= frame.loc["good", "time_s_hi"]
    assert frame.loc["good", "v_list"] == [1.0, 2.0]
    assert frame.loc["absent", "reason"] == "no device is found"
    stored = record.read(quick / "records/kpm/all_well.json")
    assert stored["provenance"]["threads"] == 1
    assert {library["num_threads"] for library in stored["provenance"]["blas"]} == {1}
    assert len(stored["provenance"]["digest"]) == 64
    assert stored["inputs"] == {"data": "0" * 64}


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("crash", "SIGSEGV"),
        ("hang", "limit of 1 s"),
        ("nan", "not a number"),
        ("wrong", "wrong result: error_fro_rel = 1 (allowed 1e-12)"),
        ("raises", "ZeroDivisionError"),
        ("lost", "a device was lost"),
    ],
)
def test_faulty_method_is_failed_and_the_others_go_on(quick, method, reason):
    frame = rows(quick, "faults")
    assert frame.loc[method, "status"] == "failed"
    assert reason in frame.loc[method, "reason"]
    assert frame["time_s"].isna()[method]
    for name in ("good", "vendor"):
        assert frame.loc[name, "status"] == "ok"
        assert len(frame.loc[name, "samples_s"]) == 4


def test_unbuildable_cases_say_why(quick):
    assert rows(quick, "empty").loc["-", "status"] == "failed"
    assert "give n >= 1" in rows(quick, "empty").loc["-", "reason"]
    assert rows(quick, "nowhere").loc["-", "status"] == "skipped"


def test_measuring_again_keeps_records(quick):
    before = {path: path.stat().st_mtime_ns for path in (quick / "records/kpm").glob("*.json")}
    done = measure(quick, "--run", "quick")
    assert done.stdout.count("has a record") == len(before)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_truncated_record_is_measured_again(quick):
    path = quick / "records/kpm/all_well.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(record.RecordError, match="remove it and measure the case again"):
        record.read(path)
    measure(quick, "--case", "all_well")
    assert record.read(path)["case"] == "all_well"


def test_killed_measuring_leaves_finished_records_and_no_orphan(tmp_path):
    note = tmp_path / "note"
    command = [*MEASURE, *SHEET, "--out-dir", tmp_path / "records/kpm", "--case", "waiting", "--case", "all_well"]
    environment = os.environ | {"PYTHONPATH": str(FAULTY), "FAULTY_NOTE": str(note)}
    supervisor = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (note.exists() and note.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    worker = int(note.read_text())
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists()
    assert [path.name for path in (tmp_path / "records/kpm").glob("*.json")] == ["all_well.json"]
    assert not list((tmp_path / "records/kpm").glob(".*"))
    measure(tmp_path, "--case", "waiting", "--case", "all_well")
    assert record.read(tmp_path / "records/kpm/waiting.json")["status"] == "ok"


def test_results_of_another_device_are_refused(quick):
    path = quick / "machine.json"
    known = path.read_text()
    path.write_text(json.dumps({"cpu": "another processor"}))
    done = measure(quick, "--case", "all_well", "--again", check=False)
    path.write_text(known)
    assert done.returncode == 2
    assert "choose another name" in done.stderr


def test_gather_and_compare(quick, tmp_path):
    frame = tmp_path / "kpm.parquet"
    command = [sys.executable, "-m", "spectile_study", "gather", "--records", quick / "records/kpm", "--out", frame]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "failed: kpm/faults crash" in done.stderr
    verdicts = compare(frame, quick / "records/kpm").set_index(["case", "method"])["verdict"]
    assert verdicts["all_well", "good"] in {"same", "unclear"}
    assert verdicts["faults", "nan"] == "failed in A"
    assert list(record.read_frame(frame)["v_list"].dropna().iloc[0]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--case", "nothing"], "has no case 'nothing'"), (["--run", "quick", "--out", "a.json"], "give one --case")],
)
def test_wrong_choices_are_worded(tmp_path, options, message):
    done = measure(tmp_path, *options, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_only_cases_of_the_element_are_measured(tmp_path):
    done = measure(tmp_path, "--run", "quick", "--element", "fig2", check=False)
    assert done.returncode == 2 and "no case for this choice" in done.stderr and done.stdout == ""
    assert not (tmp_path / "records").exists()
