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
_AGAIN = "the device time of the session of 2026-11-22 was spent"
_EVD = (
    "after the run at ff9a2b8, EVD's single precision of middle orders went to cuSOLVER in double (graded spectra of "
    f"orders 97 to 333 had not converged; on an H200 they did at 230015e) and syevj left; {_AGAIN}"
)
_CHECKS = (
    "after the run at ff9a2b8, checks of arguments and the choices of launches of spgemm and KPM changed, in Python: "
    f"no kernel did; {_AGAIN}"
)
_RANGE = (
    "after the run at ff9a2b8, checks of arguments changed, and the kernels that search and bound SpAMM's error "
    f"(search.cu, survey.cu) where norms' products or their squares leave the range; {_AGAIN}"
)
_WATER = f"its test of water asked for inputs that a bare machine lacks; corrected after the run at ff9a2b8, {_AGAIN}"
_NAIVE = (
    "the case of a naive chain on GPU and CPU (test_cases_pass_their_checks[hybrid-None]) gave cuSPARSE columns out of "
    f"order; corrected in spectile_study/cases/kpm/together.py, {_AGAIN}"
)
_ADVICE = f"after the run at ff9a2b8, advice was worded anew and DLPack's look-up moved to core.host; {_AGAIN}"
_REASONS = {
    _ADVICE: ("core/test_device",),
    _EVD: (
        *("core/test_allocation_failures", "core/test_sequences", "evd/test_calls", "evd/test_cupy_cases"),
        *("evd/test_eigh", "evd/test_narrow_families", "evd/test_problems", "evd/test_properties"),
        "evd/test_scipy_suite",
    ),
    _CHECKS: (
        *(f"tsparse/test_{name}" for name in ("collection", "sizes", "spgemm", "tasks")),
        *(f"kpm/test_{name}" for name in ("grouped", "kpm", "operators", "staged")),
    ),
    _RANGE: tuple(f"nearsparse/test_{name}" for name in ("multi_gpu", "ordinary_use", "plans", "search", "spamm")),
    _WATER: ("nearsparse/test_case_studies",),
    _NAIVE: ("kpm/test_multi_gpu",),
}
NOT_RUN: dict[str, str] = {
    f"{file}.py{way}": reason
    for reason, files in _REASONS.items()
    for file in files
    for way in ("", " as A100", " as RTX 4090")
}


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
