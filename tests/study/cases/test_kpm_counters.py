"""Counters of Nsight Compute: its output as recorded on an H200 (version 2025.3.1) is read, its refusals are worded."""

from pathlib import Path

import pytest

from spectile_study.bench.case import Context, Skipped
from spectile_study.cases.kpm import build as cases
from spectile_study.cases.kpm import counters, shared

COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "dram__bytes_read.sum", "dram__bytes_write.sum", "l1tex__t_bytes.sum", "lts__t_bytes.sum",
)  # fmt: skip
ROWS = (
    ("", "", "", "", "", "", "", "", "", "", "", "byte", "byte", "byte", "byte"),
    ("0", "1765", "python3.12", "127.0.0.1", "counted_aug_spmmv", "1", "7", "(128, 1, 1)", "(1, 1, 1)", "0", "9.0",
     "1,024", "0", "32", "96"),
    ("1", "1765", "python3.12", "127.0.0.1", "aug_spmmv", "1", "7", "(512, 1, 1)", "(264, 1, 1)", "0", "9.0",
     "834,543,360", "197,245,696", "3,593,425,024", "3,403,210,464"),
    ("2", "1765", "python3.12", "127.0.0.1", "sum_partials", "1", "7", "(64, 1, 1)", "(1, 1, 1)", "0", "9.0",
     "21,760", "0", "33,792", "206,176"),
    ("3", "1765", "python3.12", "127.0.0.1", "counted_stencil", "1", "7", "(128, 1, 1)", "(1, 1, 1)", "0", "9.0",
     "1,024", "0", "32", "96"),
    ("4", "1765", "python3.12", "127.0.0.1", "sweep", "1", "7", "(480, 1, 1)", "(126, 1, 1)", "0", "9.0",
     "432,758,784", "183,519,744", "232,486,528", "1,030,285,952"),
)  # fmt: skip
LOG = [
    "==PROF== Connected to process 1765 (/usr/bin/python3.12)",
    "==PROF== Disconnected from process 1765",
    *(",".join(f'"{cell}"' for cell in row) for row in (COLUMNS, *ROWS)),
]


def test_kernels_are_summed_by_method():
    volumes = counters.read(LOG)
    assert volumes == {
        "aug_spmmv": {"dram_bytes": 834543360 + 197245696 + 21760, "l2_bytes": 3403210464 + 206176,
                      "l1_bytes": 3593425024 + 33792},
        "stencil": {"dram_bytes": 432758784 + 183519744, "l2_bytes": 1030285952, "l1_bytes": 232486528},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (["==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"], "administrators"),
        (["==ERROR== Failed to profile kernel"], "Failed to profile kernel"),
        ([], "counted no kernel"),
    ],
)
def test_refusals_are_worded(log, message):
    with pytest.raises(counters.NoCounters, match=message):
        counters.read(log)


def test_ncu_is_called_once_and_its_answers_are_joined(tmp_path, monkeypatch):
    fake = tmp_path / "ncu"
    lines = "\n".join(LOG)
    fake.write_text(
        "#!/bin/sh\nfor word; do [ \"$before\" = --log-file ] && log=$word; before=$word; done\n"
        f"cat > $log <<'END'\n{lines}\nEND\n"
        "echo a library says something\n"
        'echo \'{"errors": {"aug_spmmv": 1e-16, "stencil": 2e-16}}\'\n'
    )  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = counters.count({"study": "step"}, 1, 1, ["aug_spmmv", "stencil"])
    assert found["stencil"]["error_fro_rel"] == 2e-16 and found["aug_spmmv"]["dram_bytes"] == 1031810816


def test_methods_that_fail_under_ncu_are_no_missing_counters(tmp_path, monkeypatch):
    fake = tmp_path / "ncu"
    fake.write_text(
        '#!/bin/sh\nfor word; do [ "$before" = --log-file ] && log=$word; before=$word; done\n'
        'echo "==ERROR== The application returned an error code (1)." > $log\necho MemoryError: no room >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RuntimeError, match="ended with 1: MemoryError: no room"):
        counters.count({"study": "step"}, 1, 1, ["stencil"])


def test_without_ncu_or_a_device_every_method_says_why(monkeypatch):
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    with pytest.raises(counters.NoCounters, match="not found"):
        counters.count({}, 1, 1, [])
    methods = cases.build({"study": "counters"}, Context("cpu", Path(), 1, 1)).methods
    assert [method.name for method in methods] == list(shared.COUNTED)
    assert all(isinstance(method, Skipped) and "no CUDA device" in method.reason for method in methods)
