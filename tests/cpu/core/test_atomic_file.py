"""Files appear whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spectile.core.atomic_file import atomic_write


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
