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

GPU_TESTS = Path(__file__).resolve().parents[2] / "gpu"

FILES = sorted(path.relative_to(GPU_TESTS).as_posix() for path in GPU_TESTS.glob("*/test_*.py"))


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
        if line.startswith("tests/gpu/") and "::" in line:
            ids.setdefault(_plugin().file_of(line), []).append(line.strip())
    return ids


def _fault(file: str, collected: list[str], record: dict[str, Any], key: str | None = None) -> str | None:
    """Return what is wrong with the record of a file of tests; None where all of them passed on this very code."""
    key = key or file
    if key not in record:
        return "no run is recorded"
    tests = record[key]["tests"]
    if missing := sorted(set(collected) - set(tests)):
        return f"tests without a recorded outcome: {missing}"
    if failed := sorted(name for name, outcome in tests.items() if outcome == "failed"):
        return f"tests that failed in the recorded run: {failed}"
    if "passed" not in tests.values():
        return "the recorded run skipped every test"
    if record[key]["digest"] != _plugin().digest(GPU_TESTS / file):
        return "GPU code or tests changed since the recorded run"
    return None


# The device as it is, and described as others, whose code it then runs as PTX.
DESCRIBED = (None, "A100", "RTX 4090")


@pytest.mark.parametrize("described", DESCRIBED)
@pytest.mark.parametrize("file", FILES)
def test_gpu_tests_passed_on_a_gpu(file: str, described: str | None) -> None:
    key = _plugin().record_key(file, described)
    fault = _fault(file, _collected()[file], json.loads(_plugin().RECORD.read_text()), key)
    if key in NOT_RUN:
        assert fault is not None, f"{key} has a run on a device: take it out of NOT_RUN"
        pytest.skip(f"{key} has not run as it stands: {NOT_RUN[key]}")
    setting = f"SPECTILE_DEVICE='{described}' " if described else ""
    remedy = f"run {setting}pytest tests/gpu/{file} on a CUDA device and commit tests/gpu/last_run.json"
    assert fault is None, f"{key}: {fault} ({remedy})"


def test_nothing_is_named_that_is_not_there() -> None:
    keys = {_plugin().record_key(file, described) for file in FILES for described in DESCRIBED}
    assert set(NOT_RUN) <= keys
    assert set(json.loads(_plugin().RECORD.read_text())) <= keys


@pytest.mark.parametrize("spoil", ["missing", "failed", "skipped", "digest", "no record"])
def test_a_spoilt_record_is_noticed(spoil: str) -> None:
    file = "core/test_device.py"
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


def test_code_that_a_test_reaches_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, package = _plugin(), tmp_path / "src/spectile/kpm"
    for folder in (package / "cuda", package / "cpu", tmp_path / "src/spectile/core"):
        folder.mkdir(parents=True)
    for name in ("__init__", "cuda/__init__", "cuda/rows", "cpu/__init__", "cpu/rows", "other", "../core/device"):
        (package / f"{name}.py").touch()
    for name in ("cuda/rows.cu", "cuda/rows.cuh", "cpu/none.cu"):
        (package / name).touch()
    (tmp_path / "shared.py").write_text("import spectile.kpm.other\n")
    (package / "api.py").write_text("def f():\n    from spectile.kpm.cuda import rows\n")
    (package / "cuda/rows.py").write_text("import spectile.core.device, numpy\n")
    test = tmp_path / "gpu/test_kpm.py"
    test.parent.mkdir()
    test.write_text("from spectile.kpm.api import f\nfrom ..shared import g\n")
    monkeypatch.setattr(plugin, "ROOT", tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in plugin.sources(test)]
    kpm = [f"src/spectile/kpm/{name}" for name in ("api.py", "cuda/__init__.py", "cuda/rows.cu", "cuda/rows.cuh")]
    kpm += ["src/spectile/kpm/cuda/rows.py", "src/spectile/kpm/other.py"]
    assert found == ["shared.py", "src/spectile/core/device.py", *kpm, "gpu/test_kpm.py"]


def test_names_at_the_top_reach_their_system_alone(tmp_path: Path) -> None:
    """What only a type checker reads is not reached; a public name is, through the system that it comes from."""
    plugin = _plugin()

    def systems(text: str) -> set[str]:
        test = tmp_path / "test_it.py"
        test.write_text(text)
        return {path.parent.name for path in plugin._imported(test)} & set(plugin._PACKAGES)

    assert systems("from spectile import eigh, evd") == {"evd"}
    assert systems("from spectile import spgemm, spamm") == {"nearsparse", "tsparse"}
    assert systems("import spectile") == {"evd", "kpm", "nearsparse", "tsparse"}
    assert systems("if TYPE_CHECKING:\n    from spectile import kpm\nelse:\n    from spectile import evd") == {"evd"}
    everything = plugin.sources(GPU_TESTS / "core/test_sequences.py")
    assert all(any(f"spectile/{system}/cuda" in path.as_posix() for path in everything) for system in plugin._PACKAGES)
