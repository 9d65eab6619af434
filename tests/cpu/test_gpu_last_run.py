"""What is in the tree passed its GPU tests: checked on any machine against the record of the last run on a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

GPU_TESTS = Path(__file__).resolve().parent.parent / "gpu"


@cache
def _plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU_TESTS / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _collected() -> dict[str, list[str]]:
    """Return the ids of all GPU tests by system, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(GPU_TESTS)]
    done = subprocess.run(command, cwd=GPU_TESTS.parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    ids: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            ids.setdefault(_plugin().system_of(line), []).append(line.strip())
    return ids


@pytest.mark.parametrize("system", ["spamm", "tsparse", "evd", "kpm", "gpu"])
def test_gpu_tests_passed_on_a_gpu(system: str) -> None:
    collected = _collected().get(system, [])
    if not collected:
        pytest.skip(f"{system} has no GPU tests")
    record = json.loads(_plugin().RECORD.read_text()) if _plugin().RECORD.exists() else {}
    if system not in record:
        pytest.skip(f"no GPU run of {system} is recorded yet: run pytest tests/gpu on a machine with a CUDA device")
    tests = record[system]["tests"]
    mend = f"run pytest tests/gpu/test_{system}*.py on a CUDA device and commit tests/gpu/last_run.json"
    missing = sorted(set(collected) - set(tests))
    assert not missing, f"GPU tests without a recorded outcome ({mend}): {missing}"
    failed = sorted(name for name, outcome in tests.items() if outcome == "failed")
    assert not failed, f"GPU tests that failed in the recorded run: {failed}"
    assert any(outcome == "passed" for outcome in tests.values()), "the recorded run skipped every test"
    assert record[system]["digest"] == _plugin().digest(system), f"GPU code or tests changed since the run: {mend}"
