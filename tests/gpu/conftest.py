"""GPU tests: skipped without a device; a whole run of a file of tests on a device is recorded in last_run.json.

The record of a file is written only when every test of it was collected and none was deselected.  It holds a digest of
the kernels and launch code that the file tests and of the file itself (comments and docstrings left out), so that
``tests/cpu/core/test_gpu_last_run.py`` can tell on any machine whether what is in the tree passed on a GPU.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spectile import _HOMES, _PACKAGES
from spectile_study.bench.provenance import program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RECORD = HERE / "last_run.json"


def sources(test: Path) -> list[Path]:
    """Return what decides whether a file of GPU tests passes: the library's modules that it reaches, and the file.

    Reached is what the file imports, anywhere in it, and what that imports in turn; CUDA sources count in every folder
    of which a module is reached.
    """
    reached: dict[Path, None] = {}
    waiting = [*_imported(test)]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached[module] = None
            waiting += _imported(module)
    folders = {module.parent for module in reached}
    kernels = {kernel for folder in folders for kernel in (*folder.glob("*.cu"), *folder.glob("*.cuh"))}
    return [*sorted({*reached, *kernels}), test]


def _imported(path: Path) -> Iterator[Path]:
    """Yield the modules of the library that a module imports, with the packages that hold them, and tests it shares."""
    for node in _nodes_that_run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            if "spectile" in names:  # its attributes may be anything public
                names += [f"spectile.{system}" for system in _PACKAGES]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level:
            yield path.parents[node.level - 1].joinpath(*node.module.split(".")).with_suffix(".py")
            continue
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if node.module == "spectile":  # which imports what has a public name at its first use
                names += [f"spectile.{_HOMES[alias.name]}" for alias in node.names if alias.name in _HOMES]
        else:
            continue
        for name in names:
            yield from _modules(name)


def _nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree but those that only a type checker reads."""
    yield node
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes_that_run(child)


def _modules(name: str) -> Iterator[Path]:
    """Yield the files behind a dotted name of the library; nothing for names that are no module."""
    if name.partition(".")[0] != "spectile":
        return
    place = ROOT / "src" / Path(*name.split("."))
    if place.is_dir():
        yield place / "__init__.py"
    elif place.with_suffix(".py").exists():
        yield place.with_suffix(".py")


def digest(test: Path) -> str:
    """Return the sha256 of what :func:`sources` names, comments and docstrings left out."""
    total = hashlib.sha256()
    for path in sources(test):
        total.update(f"{path.relative_to(ROOT)}\0{program(path)}\0".encode())
    return total.hexdigest()


def file_of(nodeid: str) -> str:
    """Return the file that holds a test, below this folder."""
    return nodeid.partition("::")[0].rpartition("tests/gpu/")[2]


def record_key(file: str, described: str | None = os.environ.get("SPECTILE_DEVICE")) -> str:
    """Return the name of a file's record; the run of a device that was described as another one has its own."""
    return file if described is None else f"{file} as {described}"


def _unavailable() -> str | None:
    from spectile.core.device import refusal

    return refusal()


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
        chosen = self.config.option.keyword or self.config.option.markexpr
        if session.shouldstop or session.shouldfail or chosen:
            return
        records = {
            record_key(file): {"digest": digest(HERE / file), **_machine(), "tests": dict(sorted(results.items()))}
            for file, results in self.outcomes.items()
            if file not in self.partial
        }
        with RECORD.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several runs may end at the same time
            text = json.dumps(json.load(file) | records, indent=1, sort_keys=True)
            file.seek(0)
            file.truncate()
            file.write(text + "\n")


def _machine() -> dict[str, str]:
    import cupy

    from spectile.core import device

    return {
        "device": device.describe().name,
        "driver": str(cupy.cuda.runtime.driverGetVersion()),
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
    }


def pytest_configure(config: pytest.Config) -> None:
    # With pytest-xdist the controller hears of every test, and the workers of their own.
    if _unavailable() is None and not config.option.collectonly and not hasattr(config, "workerinput"):
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
