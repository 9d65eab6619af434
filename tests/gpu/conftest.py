"""GPU tests: skipped without a device; a whole run of a system's tests on a device is recorded in last_run.json.

The record of a system is written only when every test of its files was collected and none was deselected.  It holds a
digest of the kernels, the launch code and the tests (comments and docstrings left out), so that
``tests/cpu/test_gpu_last_run.py`` can tell on any machine whether what is in the tree passed on a GPU.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SYSTEMS = ("gpu", "spamm", "tsparse", "evd", "kpm")
RECORD = HERE / "last_run.json"


def system_files(system: str) -> list[Path]:
    """Return the kernels, launch code and GPU tests of a system, which together decide whether its tests pass."""
    package = ROOT / "src" / "spectile" / system
    code = [*package.glob("*.py")] if system == "gpu" else [*package.glob("gpu*.py")]
    return sorted([*code, *package.glob("*.cu"), *package.glob("*.cuh"), *HERE.glob(f"test_{system}*.py")])


def digest(system: str) -> str:
    """Return the sha256 of a system's GPU files and of the shared GPU code, comments and docstrings left out."""
    total = hashlib.sha256()
    for path in [*system_files("gpu"), *(system_files(system) if system != "gpu" else [])]:
        text = path.read_text()
        total.update(path.name.encode() + b"\0")
        total.update((_python_code(text) if path.suffix == ".py" else _cuda_code(text)).encode() + b"\0")
    return total.hexdigest()


def _python_code(text: str) -> str:
    """Return the program's syntax tree without docstrings, printed so that every Python version gives the same text."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(node.body[0].value, ast.Constant)
            and isinstance(node.body[0].value.value, str)
        ):
            node.body[0].value.value = ""
    return _print_node(tree)


def _print_node(node: object) -> str:
    # ast.dump differs between Python versions (empty fields, new fields); this prints filled fields only.
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({','.join(f'{name}={_print_node(value)}' for name, value in sorted(fields))})"
    if isinstance(node, list):
        return "[" + ",".join(map(_print_node, node)) + "]"
    return repr(node)


def _cuda_code(text: str) -> str:
    """Return CUDA C++ without comments and with runs of white space made one space."""
    pattern = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    text = pattern.sub(lambda match: match.group() if match.group().startswith('"') else " ", text)
    return "\n".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))


def system_of(nodeid: str) -> str | None:
    """Return the system that a test id of this folder belongs to: ``tests/gpu/test_<system>*.py``."""
    name = nodeid.split("::")[0].rpartition("/")[2].removeprefix("test_")
    return next((system for system in SYSTEMS if name.startswith(system)), None)


def _unavailable() -> str | None:
    from spectile.gpu.device import unavailable_reason

    return unavailable_reason()


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, dict[str, str]] = {}
        self.partial: set[str] = set()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.partial |= {system for item in items if (system := system_of(item.nodeid))}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        system = system_of(report.nodeid)
        if system is None or "tests/gpu/" not in report.nodeid:
            return
        results = self.outcomes.setdefault(system, {})
        # A test counts as passed only if set-up, call and tear-down all passed.
        if report.when == "call" or report.outcome != "passed":
            results[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for argument in self.config.args:
            file, separator, _ = argument.partition("::")
            if separator:
                self.partial |= {system for system in SYSTEMS if system_of(file) == system}
        if session.shouldstop or session.shouldfail:
            return
        record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        for system, results in self.outcomes.items():
            files = {Path(name.split("::")[0]).name for name in results}
            whole = files == {path.name for path in HERE.glob(f"test_{system}*.py")}
            if whole and system not in self.partial:
                record[system] = {"digest": digest(system), **_machine(), "tests": dict(sorted(results.items()))}
        if record:
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _machine() -> dict[str, str]:
    import cupy

    from spectile.gpu import device

    found = device.describe()
    return {
        "device": found.name,
        "driver": found.driver,
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
    }


def pytest_configure(config: pytest.Config) -> None:
    if _unavailable() is None and not config.option.collectonly:
        config.pluginmanager.register(_Recorder(config), "spectile-gpu-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _unavailable()
    if reason is None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _free_device_memory() -> Iterator[None]:
    """Give the pool's idle blocks back after each test, so that the order of tests decides nothing."""
    yield
    if _unavailable() is None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
