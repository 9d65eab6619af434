"""One process measures the cases of a Snakemake run: it is found, it keeps cases apart, and it ends with its run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spectile_study.bench import record

from .test_measure import FAULTY, MEASURE, SHEET


def job(folder, case, owner, **environment):
    """Start a measuring job as the rule does, for the process `owner` in place of Snakemake."""
    return subprocess.Popen(
        [*MEASURE, *SHEET, "--case", case, "--out", folder / f"results/test/records/kpm/{case}.json",
         "--share-with", str(owner.pid), "--log", folder / f"{case}.log"],
        env=os.environ | {"PYTHONPATH": f"{FAULTY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        | {"TMPDIR": str(folder)} | environment,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def stored(folder, case):
    return record.read(folder / f"results/test/records/kpm/{case}.json")


def servers(folder):
    """Return the ids of the shared processes that were started from `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
            if "serve" in words and os.readlink(path / "cwd") == str(folder):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def soon(true, seconds=1200):
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


@pytest.fixture
def owner():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_cases_share_a_process_and_keep_their_own_logs(tmp_path, owner):
    assert job(tmp_path, "faults", owner).wait() == 0
    both = [job(tmp_path, case, owner) for case in ("all_well", "empty")]
    assert [each.wait() for each in both] == [0, 0]
    # The process that measured `faults` crashed in one of its methods; the one after it measured both others.
    before = sorted(stored(tmp_path, case)["provenance"]["cases_before"] for case in ("all_well", "empty"))
    assert before[1] == before[0] + 1
    assert stored(tmp_path, "all_well")["status"] == "ok" and stored(tmp_path, "empty")["status"] == "failed"
    logs = {case: (tmp_path / f"{case}.log").read_text() for case in ("faults", "all_well", "empty")}
    assert "[1/1] kpm/all_well: ok" in logs["all_well"] and "give n >= 1" in logs["empty"]
    assert "SIGSEGV" in logs["faults"] and "ZeroDivisionError" in logs["faults"]
    assert "empty" not in logs["all_well"] and "all_well" not in logs["empty"]
    assert len(servers(tmp_path)) == 1
    owner.kill()
    owner.wait()
    assert soon(lambda: not servers(tmp_path)) and not list((tmp_path / f"spectile-run-{os.getuid()}").glob("[0-9]*"))


def test_a_wrong_job_says_why_and_harms_no_other(tmp_path, owner):
    assert job(tmp_path, "nothing", owner).wait() == 2
    assert "has no case 'nothing'" in (tmp_path / "nothing.log").read_text()
    assert job(tmp_path, "all_well", owner).wait() == 0


def test_killed_job_ends_its_measurement_and_the_next_goes_on(tmp_path, owner):
    note = tmp_path / "note"
    waiting = job(tmp_path, "waiting", owner, FAULTY_NOTE=str(note))
    assert soon(lambda: note.exists() and note.read_text())
    worker = Path(f"/proc/{note.read_text()}")
    waiting.kill()
    waiting.wait()
    assert soon(lambda: not servers(tmp_path) and not worker.exists())
    assert job(tmp_path, "all_well", owner).wait() == 0


def test_a_folder_of_somebody_else_is_not_used(tmp_path, owner):
    (tmp_path / f"spectile-run-{os.getuid()}").mkdir(mode=0o777)
    os.chmod(tmp_path / f"spectile-run-{os.getuid()}", 0o777)
    refused = job(tmp_path, "all_well", owner)
    assert refused.wait() == 2 and "set TMPDIR to a folder of yours" in refused.stderr.read()
