"""The table of what GPU tests came to: written by a run on a device, and said at the end of every run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.modules import module_at

GPU_TESTS = Path(__file__).resolve().parents[2] / "gpu"


@pytest.fixture
def plugin() -> ModuleType:
    """Return the settings of the GPU tests as a module of its own."""
    return module_at(GPU_TESTS / "conftest.py")


@pytest.fixture
def outcomes(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return what a run noted of two files, of which one had a test left out."""
    monkeypatch.delenv("SPECTILE_DEVICE", raising=False)
    noted = plugin.Outcomes()
    for node, when, outcome in (
        ("tests/gpu/kpm/test_a.py::test_1", "setup", "passed"),
        ("tests/gpu/kpm/test_a.py::test_1", "call", "passed"),
        ("tests/gpu/kpm/test_a.py::test_1", "teardown", "failed"),
        ("tests/gpu/kpm/test_a.py::test_2", "call", "passed"),
        ("tests/gpu/kpm/test_a.py::test_3", "setup", "skipped"),
        ("tests/gpu/evd/test_b.py::test_1", "call", "passed"),
        ("tests/cpu/core/test_c.py::test_1", "call", "passed"),
    ):
        noted.pytest_runtest_logreport(SimpleNamespace(nodeid=node, when=when, outcome=outcome, duration=2.0))
    noted.pytest_deselected([SimpleNamespace(nodeid="tests/gpu/evd/test_b.py::test_2")])
    return noted


def test_a_whole_file_is_a_row_and_a_test_counts_once(plugin, outcomes, monkeypatch):
    (row,) = outcomes.rows("NVIDIA H200", "abc+", "2026-01-02 03:04:05")
    assert row == dict(
        zip(
            plugin.COLUMNS,
            ("kpm/test_a.py", "", "NVIDIA H200", "2026-01-02 03:04:05", "abc+", "1", "1", "1", "10"),
            strict=True,
        )
    )
    monkeypatch.setenv("SPECTILE_DEVICE", "A100")
    assert outcomes.rows("NVIDIA H200", "abc", "")[0]["described as"] == "A100"


def test_rows_replace_those_of_the_same_file_alone(plugin, outcomes, tmp_path, monkeypatch):
    table = tmp_path / "outcomes.tsv"
    table.write_text("\t".join(plugin.COLUMNS) + "\n")
    (tmp_path / "kpm").mkdir()
    for name in ("a", "z"):
        (tmp_path / f"kpm/test_{name}.py").touch()
    (first,) = outcomes.rows("H100", "one", "2026")
    monkeypatch.setenv("SPECTILE_DEVICE", "A100")
    (described,) = outcomes.rows("H100", "one", "2026")
    other, gone = first | {"file": "kpm/test_z.py"}, first | {"file": "kpm/test_gone.py"}
    plugin.write(table, [other, first, described, gone])
    assert plugin.read(table) == [first, described, other]
    latest = first | {"commit": "two"}
    plugin.write(table, [latest])
    assert plugin.read(table) == [latest, described, other]


def test_failures_and_files_older_than_their_sources_are_said(plugin, outcomes, monkeypatch):
    monkeypatch.setattr(plugin, "_changed", {"kpm/test_a.py": "2026-05-01", "kpm/test_z.py": "2026-05-01"}.get)
    (row,) = outcomes.rows("H100", "one", "2026-05-02")
    (failed,) = plugin.notes([row], {"kpm/test_a.py"})
    assert failed == "FAILED ON A GPU: 1 of kpm/test_a.py on H100 (2026-05-02)"
    whole = row | {"failed": "0"}
    assert plugin.notes([whole], {"kpm/test_a.py"}) == []
    assert plugin.notes([row], set()) == []
    (old,) = plugin.notes([whole | {"date": "2026-04-30"}], {"kpm/test_a.py"})
    assert old.endswith(": kpm/test_a.py")
    # A device that is described as another says nothing of the device itself.
    (never,) = plugin.notes([whole | {"described as": "A100"}], {"kpm/test_a.py", "kpm/test_z.py"})
    assert never.endswith(": kpm/test_a.py, kpm/test_z.py")


def test_sources_of_a_file_are_its_system_and_core(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "ROOT", tmp_path)
    assert plugin._changed("kpm/test_a.py") == ""

    def git(*words, day=1):
        date = f"2026-01-{day:02}T00:00:00Z"
        here = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull}
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, env=os.environ | here)

    def commit(path, day):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(str(day))
        git("add", "-A")
        git("commit", "-m", path, day=day)

    git("init", "-q")
    commit("tests/gpu/kpm/test_a.py", 2)
    commit("src/spectile/evd/api.py", 4)
    assert plugin._changed("kpm/test_a.py") == "2026-01-02 00:00:00"
    assert plugin._changed("core/test_b.py") == "2026-01-04 00:00:00"  # which calls every system
    commit("src/spectile/core/device.py", 6)
    assert plugin._changed("kpm/test_a.py") == "2026-01-06 00:00:00"
    commit("src/spectile/kpm/api.py", 8)
    assert plugin._changed("kpm/test_a.py") == "2026-01-08 00:00:00"


def _collected(plugin, *paths):
    """Return tests of these files, and a configuration that notes what is left out."""
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items = [SimpleNamespace(path=plugin.ROOT / path, marks=[]) for path in paths]
    for item in items:
        item.add_marker = item.marks.append
    return items, SimpleNamespace(hook=hook, left_out=left_out)


def test_without_a_device_gpu_tests_are_left_out_in_one_line(plugin, monkeypatch):
    paths = ("tests/gpu/kpm/test_a.py", "tests/cpu/core/test_c.py", "tests/gpu/evd/test_b.py")
    monkeypatch.setattr(plugin, "_unavailable", lambda: None)
    items, config = _collected(plugin, *paths)
    plugin.pytest_collection_modifyitems(config, items)
    assert len(items) == 3 and not config.left_out and not any(item.marks for item in items)

    monkeypatch.setattr(plugin, "_unavailable", lambda: "no device")
    plugin.pytest_collection_modifyitems(config, items)
    assert [item.path.name for item in items] == ["test_c.py"]
    assert [item.path.name for item in config.left_out] == ["test_a.py", "test_b.py"]

    # Those that were asked for say why they do not run.
    items, config = _collected(plugin, *paths[::2])
    plugin.pytest_collection_modifyitems(config, items)
    assert len(items) == 2 and not config.left_out
    assert all(mark.kwargs == {"reason": "no device"} for item in items for mark in item.marks)

    # What workers collected is said where their results are gathered, once.
    worker, lines = SimpleNamespace(workeroutput={}), []
    plugin.pytest_sessionfinish(SimpleNamespace(config=worker))
    said = SimpleNamespace(write_line=lambda line, **_: lines.append(line))
    controller = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: said))
    monkeypatch.setattr(plugin, "read", lambda table: [])
    monkeypatch.setattr(plugin, "_changed", lambda file: "2026")
    plugin._COLLECTED.clear()
    plugin._LEFT_OUT.clear()
    for _ in range(2):
        plugin.pytest_testnodedown(worker)
    plugin.pytest_unconfigure(controller)
    assert lines[0] == "2 GPU tests were collected and left out: no device"
    assert lines[1].endswith(": evd/test_b.py, kpm/test_a.py") and len(lines) == 2


def test_the_table_can_be_read(plugin):
    assert plugin.notes(plugin.read(plugin.TABLE), set()) == []
    assert set(plugin.read(plugin.TABLE)[0]) == set(plugin.COLUMNS)
