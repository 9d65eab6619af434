"""What is in the tree passed its GPU tests: checked on any machine against the record of the last run on a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GPU_TESTS = Path(__file__).resolve().parent.parent / "gpu"


@cache
def _plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU_TESTS / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Files whose tests no device has run to the end on the code that is in the tree, and why.  Nothing may stay here
# without a reason, and nothing that has a record.
NOT_RUN: dict[str, str] = {}


@cache
def _collected() -> dict[str, list[str]]:
    """Return the ids of all GPU tests by file, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(GPU_TESTS)]
    done = subprocess.run(command, cwd=GPU_TESTS.parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    ids: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            ids.setdefault(_plugin().file_of(line), []).append(line.strip())
    return ids


def _fault(file: str, collected: list[str], record: dict[str, Any]) -> str | None:
    """Return what is wrong with the record of a file of tests; None where all of them passed on this very code."""
    if file not in record:
        return "no run is recorded"
    tests = record[file]["tests"]
    if missing := sorted(set(collected) - set(tests)):
        return f"tests without a recorded outcome: {missing}"
    if failed := sorted(name for name, outcome in tests.items() if outcome == "failed"):
        return f"tests that failed in the recorded run: {failed}"
    if "passed" not in tests.values():
        return "the recorded run skipped every test"
    if record[file]["digest"] != _plugin().digest(GPU_TESTS / file):
        return "GPU code or tests changed since the recorded run"
    return None


@pytest.mark.parametrize("file", sorted(path.name for path in GPU_TESTS.glob("test_*.py")))
def test_gpu_tests_passed_on_a_gpu(file: str) -> None:
    fault = _fault(file, _collected()[file], json.loads(_plugin().RECORD.read_text()))
    if file in NOT_RUN:
        assert fault is not None, f"{file} has a run on a device: take it out of NOT_RUN"
        pytest.skip(f"{file} has not run as it stands: {NOT_RUN[file]}")
    mend = f"run pytest tests/gpu/{file} on a CUDA device and commit tests/gpu/last_run.json"
    assert fault is None, f"{file}: {fault} ({mend})"


def test_nothing_is_named_that_is_not_there() -> None:
    files = {path.name for path in GPU_TESTS.glob("test_*.py")}
    assert set(NOT_RUN) <= files
    assert set(json.loads(_plugin().RECORD.read_text())) <= files


@pytest.mark.parametrize("spoil", ["missing", "failed", "skipped", "digest", "no record"])
def test_a_spoilt_record_is_noticed(spoil: str) -> None:
    file = "test_gpu_device.py"
    record = json.loads(_plugin().RECORD.read_text())
    collected = _collected()[file]
    tests = record[file]["tests"]
    record[file]["digest"] = _plugin().digest(GPU_TESTS / file)
    tests.update(dict.fromkeys(collected, "passed"))
    assert _fault(file, collected, record) is None
    if spoil == "missing":
        del tests[collected[0]]
    elif spoil == "failed":
        tests[collected[0]] = "failed"
    elif spoil == "skipped":
        tests.update(dict.fromkeys(tests, "skipped"))
    elif spoil == "digest":
        record[file]["digest"] = "0" * 64
    else:
        del record[file]
    assert _fault(file, collected, record)


def test_parts_of_a_system_have_their_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, package = _plugin(), tmp_path / "src/spectile/kpm"
    package.mkdir(parents=True)
    for name in ("gpu.py", "staged.cu", "rows.cu", "rows.py", "cpu.py", "sell.py", "staging.py", "density.py"):
        (package / name).touch()
    (package / "gpu.py").write_text("from spectile.kpm.sell import SellMatrix\nfrom spectile.gpu import device\n")
    (package / "gpu_staged.py").write_text("from . import gpu, staging\nfrom .density import moments\n")
    for name in ("test_kpm.py", "test_kpm_staged.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr(plugin, "ROOT", tmp_path)
    monkeypatch.setattr(plugin, "HERE", tmp_path)
    found = {
        file: {path.name for path in plugin.sources(tmp_path / file)} for file in ("test_kpm.py", "test_kpm_staged.py")
    }
    shared = {"gpu.py", "sell.py", "rows.cu", "rows.py"}
    assert found["test_kpm.py"] == shared | {"test_kpm.py"}
    assert found["test_kpm_staged.py"] == shared | {
        "gpu_staged.py",
        "staged.cu",
        "staging.py",
        "density.py",
        "test_kpm_staged.py",
    }
