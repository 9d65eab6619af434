"""GPU tests: left out without a device; a whole run of a file of tests on a device is a row of outcomes.tsv.

The table informs and decides nothing: every run that collects GPU tests ends with those rows that failed, and with the
files whose tests have not run since the sources that they are about, or they themselves, were last committed.
"""

from __future__ import annotations

import collections
import csv
import datetime
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spectile import _PACKAGES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLE = HERE / "outcomes.tsv"

#: A device that is described as another by SPECTILE_DEVICE has a row of its own.  The date is that of the run's end.
COLUMNS = ("file", "described as", "machine", "date", "commit", "passed", "failed", "skipped", "seconds")
Row = dict[str, str]


def read(table: Path) -> list[Row]:
    """Return the rows of the table."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def write(table: Path, rows: list[Row]) -> None:
    """Put rows into the table, in place of those of the same file and description, without files that are gone."""
    with table.open("r+", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several runs may end at the same time
        kept = [*csv.DictReader(file, delimiter="\t"), *rows]
        latest = {(row["file"], row["described as"]): row for row in kept if (table.parent / row["file"]).exists()}
        file.seek(0)
        file.truncate()
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for _, row in sorted(latest.items()))


def notes(rows: list[Row], files: set[str]) -> list[str]:
    """Return a line for each row of `files` with failures, and one that names the files that are to run again."""
    mine = [row for row in rows if row["file"] in files]
    said = [
        f"FAILED ON A GPU: {row['failed']} of {row['file']} on {row['machine']}{_as(row)} ({row['date']})"
        for row in mine
        if row["failed"] not in ("", "0")
    ]
    plain = {row["file"]: row["date"] for row in mine if not row["described as"]}
    old = sorted(file for file in files if plain.get(file, "") < _changed(file))
    if old:
        said.append(f"not run on a GPU since the last commit to what they test: {', '.join(old)}")
    return said


def _as(row: Row) -> str:
    return f" as {row['described as']}" if row["described as"] else ""


def _changed(file: str) -> str:
    """Return when a file of GPU tests, or the sources that it is about, were last committed; "" without a history."""
    system = Path(file).parts[0]
    systems = [system] if system in _PACKAGES else _PACKAGES
    paths = [f"tests/gpu/{file}", "src/spectile/core", *(f"src/spectile/{name}" for name in systems)]
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct", "--", *paths]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return _date(int(done.stdout)) if done.stdout.strip() else ""


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def file_of(nodeid: str) -> str:
    """Return the file that holds a test, below this folder; "" for tests elsewhere."""
    return nodeid.partition("::")[0].rpartition("tests/gpu/")[2] if "tests/gpu/" in nodeid else ""


def _unavailable() -> str | None:
    from spectile.core.device import refusal

    return refusal()


class Outcomes:
    """What the tests of each file came to."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, str]] = collections.defaultdict(dict)
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.partial: set[str] = set()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.partial |= {file_of(item.nodeid) for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.seconds[file] += report.duration
        # A test counts as passed only if set-up, call and tear-down all passed.
        if report.when == "call" or report.outcome != "passed":
            self.tests[file][report.nodeid] = report.outcome

    def rows(self, machine: str, commit: str, date: str) -> list[Row]:
        """Return a row for each file all of whose tests ran or were skipped."""
        described, listed = os.environ.get("SPECTILE_DEVICE", ""), []
        for file, results in self.tests.items():
            if file and file not in self.partial:
                count = collections.Counter(results.values())
                numbers = (str(count[outcome]) for outcome in ("passed", "failed", "skipped"))
                values = (file, described, machine, date, commit, *numbers, f"{self.seconds[file]:.0f}")
                listed.append(dict(zip(COLUMNS, values, strict=True)))
        return listed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.partial |= {file_of(argument) for argument in session.config.args if "::" in argument}
        if session.shouldstop or session.shouldfail:
            return
        import cupy

        from spectile_study.bench.provenance import commit

        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode()
        sha, differs = commit()
        now = datetime.datetime.now(datetime.UTC).timestamp()
        write(TABLE, self.rows(name, sha[:10] + "+" * bool(differs), _date(now)))


def pytest_configure(config: pytest.Config) -> None:
    # With pytest-xdist the controller hears of every test, and the workers of their own.
    if _unavailable() is None and not config.option.collectonly and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(), "spectile-gpu-outcomes")


#: Files of GPU tests that were collected, and why how many of their tests are left out.
_COLLECTED: set[str] = set()
_LEFT_OUT: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    _COLLECTED.update(item.path.relative_to(HERE).as_posix() for item in mine)
    reason = _unavailable()
    if not mine or reason is None:
        return
    if len(mine) == len(items):  # asked for by name: each says why it does not run
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))
        return
    _LEFT_OUT.add(f"{len(mine)} GPU tests were collected and left out: {reason}")
    config.hook.pytest_deselected(items=mine)
    items[:] = [item for item in items if HERE not in item.path.parents]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["gpu"] = sorted(_COLLECTED), sorted(_LEFT_OUT)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With pytest-xdist the workers collect, and the controller speaks."""
    collected, left_out = getattr(node, "workeroutput", {}).get("gpu", ((), ()))
    _COLLECTED.update(collected)
    _LEFT_OUT.update(left_out)


def pytest_unconfigure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    for note in [*sorted(_LEFT_OUT), *notes(read(TABLE), _COLLECTED)] if terminal else ():
        terminal.write_line(note, red=note.startswith("FAILED"), bold=note.startswith("FAILED"))


@pytest.fixture(autouse=True)
def _free_device_memory() -> Iterator[None]:
    """Give the pool's idle blocks back after each test, so that the order of tests decides nothing."""
    yield
    if _unavailable() is None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture(autouse=True)
def _host_arrays_go_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "auto" take the device for host arrays where a host is predicted to take less; evd's tests name it."""
    from spectile.core import device
    from spectile.core.choice import Candidate, cheapest

    def there(system: str, candidates: list[Candidate]) -> Candidate:
        chosen = cheapest(system, candidates)
        return chosen if system == "evd" else chosen._replace(kernel="cuda")

    monkeypatch.setattr(device, "cheapest", there)
