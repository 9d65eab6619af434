"""Files appear whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spectile.core.atomic_file import atomic_write, require_writable


def test_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path, together = tmp_path / "file", threading.Barrier(2, timeout=120)

    def write(text: str) -> None:
        with atomic_write(path) as partial:
            partial.write_text(text)
            together.wait()
            assert partial.read_text() == text

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ("one", "another")))
    assert path.read_text() in ("one", "another") and list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "folder/file"
    with atomic_write(path) as partial:
        partial.write_text("old")
    with pytest.raises(KeyError), atomic_write(path) as partial:
        partial.write_text("new")
        raise KeyError
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def tree(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


@pytest.mark.parametrize(
    "name", ["file", "new/file", "new/and/newer/file", "new/../file", "old/file", "x" * 250 + "/f"]
)
def test_a_trial_leaves_everything_as_it_was(name: str, tmp_path: Path) -> None:
    """Where a file can be written, and where its name is too long for that."""
    (tmp_path / "old").mkdir()
    path, before = tmp_path / name, tree(tmp_path)
    if len(name) > 250:
        with pytest.raises(OSError, match="cannot be written"):
            require_writable(path.with_name("y" * 300))
    else:
        require_writable(path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["old", "file.txt/sub", "file.txt/sub/sub", "dangling/sub", "new/" + "z" * 300])
def test_a_trial_that_fails_leaves_everything_as_it_was(name: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "file.txt").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = tree(tmp_path)
    with pytest.raises(OSError, match="cannot be written"):
        require_writable(tmp_path / name)
    assert tree(tmp_path) == before


def test_folders_of_a_file_that_was_not_written_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    before = tree(tmp_path)
    for name in ("new/newer/file", "old/new/file", "new/" + "z" * 300):
        with pytest.raises((KeyError, OSError)), atomic_write(tmp_path / name) as partial:
            partial.write_text("half")
            raise KeyError
        assert tree(tmp_path) == before
    with pytest.raises(KeyError), atomic_write(tmp_path / "new/file"):
        (tmp_path / "new/another").write_text("of somebody else")
        raise KeyError
    assert tree(tmp_path) == ["new", "new/another", "old"]


def test_trials_of_many_threads_do_not_meet(tmp_path: Path) -> None:
    def work(number: int) -> None:
        path = tmp_path / f"new/newer/{number}"
        for _ in range(20):
            require_writable(path)
        with atomic_write(path) as partial:
            partial.write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert tree(tmp_path) == ["new", "new/newer", *(f"new/newer/{number}" for number in range(8))]
