"""GPU tests: skipped without a device; a whole run of a file of tests on a device is recorded in last_run.json.

The record of a file is written only when every test of it was collected and none was deselected.  It holds a digest of
the kernels and launch code that the file tests and of the file itself (comments and docstrings left out), so that
``tests/cpu/test_gpu_last_run.py`` can tell on any machine whether what is in the tree passed on a GPU.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spectile.bench.provenance import PAPERS, program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SYSTEMS = ("gpu", *PAPERS)
RECORD = HERE / "last_run.json"


def sources(test: Path) -> list[Path]:
    """Return the kernels and launch code that decide whether a file of GPU tests passes, and the file itself.

    ``test_<system>_<part>.py`` tests ``gpu_<part>.py`` and ``<part>.cu``, where the system has them, on top of the rest
    of the system's GPU code, which every file of its tests tests.  GPU code includes what a ``gpu*.py`` imports from
    its system, such as a planner on the host, and the module that has the name of a kernel.
    """
    system = system_of(test.name)
    parts = {path.stem.removeprefix(f"test_{system}_") for path in HERE.glob(f"test_{system}_*.py")}
    others = parts - {test.stem.removeprefix(f"test_{system}_")}
    code = _code("gpu", "*.py")
    if system is not None and system != "gpu":
        own = [path for path in _code(system, "gpu*.py") if path.stem.removeprefix("gpu_") not in others]
        host = {module for path in own if path.suffix == ".py" for module in _imported(path)}
        host |= {path.with_suffix(".py") for path in own if path.with_suffix(".py").exists()}
        code += own + sorted(path for path in host - set(own) if not path.stem.startswith("gpu"))
    return [*code, test]


def _imported(path: Path) -> set[Path]:
    """Return the modules beside a module that it imports, by any of the three spellings."""
    package = f"spectile.{path.parent.name}"
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        origin = ".".join([package] * node.level + [node.module] * bool(node.module))
        if origin == package:
            names |= {alias.name for alias in node.names}
        elif origin.startswith(f"{package}."):
            names.add(origin.removeprefix(f"{package}."))
    return {path.with_name(f"{name}.py") for name in names} & set(path.parent.glob("*.py"))


def _code(system: str, pattern: str) -> list[Path]:
    package = ROOT / "src" / "spectile" / system
    return sorted([*package.glob(pattern), *package.glob("*.cu"), *package.glob("*.cuh")])


def digest(test: Path) -> str:
    """Return the sha256 of what :func:`sources` names, comments and docstrings left out."""
    total = hashlib.sha256()
    for path in sources(test):
        total.update(f"{path.name}\0{program(path)}\0".encode())
    return total.hexdigest()


def system_of(file: str) -> str | None:
    """Return the system that a file of this folder tests: ``test_<system>.py`` or ``test_<system>_<part>.py``."""
    name = file.removeprefix("test_").removesuffix(".py").partition("_")[0]
    return name if name in SYSTEMS else None


def file_of(nodeid: str) -> str:
    """Return the name of the file that holds a test."""
    return nodeid.partition("::")[0].rpartition("/")[2]


def _unavailable() -> str | None:
    from spectile.gpu.device import unavailable_reason

    return unavailable_reason()


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, dict[str, str]] = {}
        self.partial: set[str] = set()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.partial |= {file_of(item.nodeid) for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "tests/gpu/" not in report.nodeid:
            return
        results = self.outcomes.setdefault(file_of(report.nodeid), {})
        # A test counts as passed only if set-up, call and tear-down all passed.
        if report.when == "call" or report.outcome != "passed":
            results[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.partial |= {file_of(argument) for argument in self.config.args if "::" in argument}
        if session.shouldstop or session.shouldfail:
            return
        record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        for file, results in self.outcomes.items():
            if file not in self.partial:
                record[file] = {"digest": digest(HERE / file), **_machine(), "tests": dict(sorted(results.items()))}
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
