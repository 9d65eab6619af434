"""The workflow under faults: what is killed, full, locked, damaged or lost costs its own work and no other."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from spectile_study.bench import record

from ..study.inputs.test_suitesparse import TINY, Mirror, Server, tar_gz
from .faulty import workflow as faulty

ALL = ("--cores", "2", "--set-threads", "measure_case=1")
# Minutes of killing and waiting: they run with `make test-cluster`.
pytestmark = pytest.mark.cluster


def running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def descendant(process, *words):
    """Return the Python process below `process` whose command line holds `words`."""
    children = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children.setdefault(parent(path.name), []).append(int(path.name))
    found, todo = [], [process]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        for one in below:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{one}/cmdline").read_bytes().decode().split("\0")
                found += [one] if "python" in Path(line[0]).name and all(word in line for word in words) else []
    assert len(found) == 1, found
    return found[0]


def unlock(folder):
    faulty.run(folder, "--unlock", "--cores", "1")


def test_failed_methods_are_never_drawn_and_the_others_go_on(tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path,
        {"case": "faults", "methods": "good,crash,vendor,hang,nan,wrong,raises,lost"},
        {"case": "well", "n": 50},
    )
    faulty.run(folder, *ALL)
    seen = faulty.statuses(folder, "faults")
    assert {name for name, status in seen.items() if status == "ok"} == {"good", "vendor"}
    reasons = {method["method"]: method["reason"] for method in faulty.records(folder)["faults"][0]["methods"]}
    assert "ran longer than its limit of 1 s" in reasons["hang"] and "SIGSEGV" in reasons["crash"]
    marks = (folder / "results/this/figures/kpm_fig1.marks.tsv").read_text().splitlines()
    column = marks[0].split("\t").index("method")
    assert {line.split("\t")[column] for line in marks[1:]} == {"good", "vendor"}
    frame = record.read_frame(folder / "results/this/kpm.parquet").set_index(["case", "method"])
    assert frame.loc["faults", "time_s"].drop(["good", "vendor"]).isna().all()
    assert "failed: kpm/faults crash" in (folder / "logs/this/gather_kpm.log").read_text()


def test_gpu_lost_in_the_middle(tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path, {"case": "gpu", "methods": "gpu_good,gpu_lost,vendor,good", "gpus": 1}, {"case": "after", "gpus": 1}
    )
    options = ("smoke", "results/this/records/kpm/after.json", *ALL, "--config", "device=cuda")
    faulty.run(folder, *options, FAULTY_GPUS="1")
    methods = {method["method"]: method for method in faulty.records(folder)["gpu"][0]["methods"]}
    assert methods["gpu_lost"]["reason"] == "lost the device: RuntimeError: cudaErrorIllegalAddress"
    assert {name for name, method in methods.items() if method["status"] == "ok"} == {"gpu_good", "vendor", "good"}
    assert faulty.statuses(folder, "after") == {"good": "ok", "vendor": "ok"}


def test_case_for_eight_gpus_is_not_measured_on_one(tmp_path):
    folder = faulty.faulty_workflow(tmp_path, {"case": "eight", "gpus": 8})
    options = ("smoke", *ALL, "--config", "device=cuda")
    faulty.run(folder, *options, FAULTY_GPUS="1")
    stored = faulty.records(folder)["eight"][0]
    assert (stored["status"], stored["methods"]) == ("skipped", [])
    assert "the case eight needs 8 GPUs and 1 is visible" in stored["reason"]
    faulty.run(folder, *options, "--forcerun", "measure_case", FAULTY_GPUS="8")
    stored = faulty.records(folder)["eight"][0]
    assert stored["status"] == "ok" and stored["provenance"]["gpu"]["count"] == 8


def test_killed_measuring_job(tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path, {"case": "first"}, {"case": "second", "methods": "good,waits"}, {"case": "third"}
    )
    note = tmp_path / "note"
    with faulty.started(folder, *ALL, FAULTY_NOTE=str(note)) as process:
        faulty.wait_for("the waiting method", note.exists)
        faulty.wait_for("its worker", lambda: note.read_text())
        worker = int(note.read_text())
        os.kill(parent(worker), signal.SIGKILL)
        assert process.wait(timeout=1200) != 0
    faulty.wait_for("the end of the worker", lambda: not running(worker), seconds=1200)
    assert set(faulty.records(folder)) == {"first", "third"}
    assert "1 of 1 figures and tables are missing" in (folder / "snakemake.out").read_text()
    before = faulty.records(folder)
    _, printed = faulty.run(folder, *ALL, "--config", "source=present")
    assert "Measuring" not in printed and set(faulty.records(folder)) == {"first", "third"}
    assert (folder / "results/this/report.zip").exists()
    faulty.run(folder, *ALL)
    after = faulty.records(folder)
    assert set(after) == {"first", "second", "third"}
    assert all(after[case] == before[case] for case in before)


def test_killed_snakemake_and_two_at_once(tmp_path):
    folder = faulty.faulty_workflow(tmp_path, {"case": "first"}, {"case": "second", "methods": "good,waits"})
    note = tmp_path / "note"
    with faulty.started(folder, *ALL, FAULTY_NOTE=str(note)) as process:
        faulty.wait_for("the waiting method", lambda: note.exists() and note.read_text())
        # A second Snakemake in the same folder is refused; the first one does not notice.
        code, printed = faulty.run(folder, *ALL, check=False)
        assert code != 0 and "locked" in printed
        assert process.poll() is None
        worker = int(note.read_text())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # Nothing goes on measuring beside the next run.
        faulty.wait_for("the end of the worker", lambda: not running(worker), seconds=1200)
    before = faulty.records(folder)
    assert "second" not in before
    unlock(folder)
    faulty.run(folder, *ALL)
    after = faulty.records(folder)
    assert set(after) == {"first", "second"}
    assert all(after[case] == before[case] for case in before)
    assert (folder / "results/this/report.zip").exists()


def test_truncated_record(finished_copy):
    folder = finished_copy
    before = faulty.records(folder)
    path = folder / "results/this/records/kpm/two.json"
    path.write_bytes(path.read_bytes()[:500])
    code, printed = faulty.run(folder, *ALL, check=False)
    assert code != 0
    assert "two.json is not a whole record" in printed and "remove it and measure the case again" in printed
    path.unlink()
    faulty.run(folder, *ALL)
    after = faulty.records(folder)
    assert after["one"] == before["one"] and after["two"] != before["two"]


@pytest.fixture
def small_disk(tmp_path):
    """Mount 96 KiB of memory as this machine's results; yield the copy's folder and a function that remounts it."""
    folder = tmp_path / "copy/results/this"
    folder.mkdir(parents=True)

    def mount(*options):
        return subprocess.run(["mount", *options, str(folder)], capture_output=True).returncode == 0

    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=96k", "tmpfs"):
        pytest.skip("only root can mount a small disk: run this test as root, in a container for example")
    yield tmp_path / "copy", lambda options: mount("-o", f"remount,{options}")
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_and_read_only_results(small_disk):
    folder, remount = small_disk
    faulty.faulty_workflow(folder, *({"case": f"case_{n}"} for n in range(3)))
    filler = folder / "results/this/filler"
    filler.write_bytes(bytes(80 * 1024))
    code, printed = faulty.run(folder, *ALL, check=False)
    assert code != 0 and "No space left on device" in printed
    assert not [path for path in folder.glob("results/this/**/.*") if path.is_file()]
    for path in folder.glob("results/this/records/kpm/*.json"):
        record.read(path)  # whole, or not there

    filler.unlink()
    assert remount("size=8m")
    assert remount("ro")
    code, printed = faulty.run(folder, *ALL, check=False)
    assert code != 0 and "Read-only file system" in printed

    assert remount("rw")
    faulty.run(folder, *ALL)
    assert len(faulty.records(folder)) == 3


@pytest.fixture
def mirror(tmp_path):
    (tmp_path / "mirror").mkdir()
    mirror = Mirror(tmp_path / "mirror")
    mirror.archive = mirror.add("Test", "tiny", tar_gz([("tiny/tiny.mtx", TINY.encode())]))
    return mirror


def test_damaged_matrix_is_found_and_fetched_again(mirror, tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "copy", {"case": "with_matrix", "matrix": "tiny"})
    options = ("smoke", *ALL, "--config", f"suitesparse_url={mirror.url}")
    faulty.run(folder, *options)
    kept = folder / "resources/suitesparse/Test/tiny.npz"
    whole, archive = kept.read_bytes(), kept.with_name("tiny.tar.gz")
    for damaged in (kept, archive):
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 0xFF
        damaged.write_bytes(content)
    faulty.run(folder, *options, "--forcerun", "measure_case")
    assert kept.read_bytes() == whole
    assert faulty.records(folder)["with_matrix"][0]["status"] == "ok"
    log = (folder / "logs/this/kpm/with_matrix.log").read_text()
    assert "is damaged" in log and "fetching it again" in log


def test_absent_matrix_costs_its_case_alone(mirror, tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "copy", {"case": "absent", "matrix": "nowhere"}, {"case": "there"})
    faulty.run(folder, "results/this/kpm.parquet", *ALL, "--config", f"suitesparse_url={mirror.url}")
    assert faulty.records(folder)["absent"][0]["status"] == "skipped"
    assert faulty.statuses(folder, "there") == {"good": "ok", "vendor": "ok"}


def test_killed_download_is_continued(mirror, tmp_path):
    archive = tar_gz([("tiny/tiny.mtx", TINY.encode()), ("tiny/other.mtx", os.urandom(4_000_000))])
    mirror.archive.write_bytes(archive)
    folder = faulty.faulty_workflow(tmp_path / "copy", {"case": "with_matrix", "matrix": "tiny"})
    server = Server(mirror.folder)
    server.chunk_pause = 0.001
    part = folder / "resources/suitesparse/Test/tiny.tar.gz.part"
    options = ("results/this/kpm.parquet", *ALL, "--config", f"suitesparse_url={server.url}")
    try:
        with faulty.started(folder, *options) as process:
            faulty.wait_for("a part of the archive", lambda: part.exists() and part.stat().st_size)
            os.kill(descendant(process.pid, "spectile_study", "fetch"), signal.SIGKILL)
            have = part.stat().st_size
            server.chunk_pause = 0.0
            assert process.wait(timeout=1200) == 0  # the rule's own retry goes on where the killed one was
    finally:
        server.close()
    assert server.ranges() == [None, f"bytes={have}-"]
    assert faulty.records(folder)["with_matrix"][0]["status"] == "ok"
