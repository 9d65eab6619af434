"""Files that appear only once they are complete, so that no reader and no killed run leaves or sees half a file."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` if the block ends without an error, and is removed otherwise.

    The folder is created if it does not exist.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def require_writable(path: str | Path) -> None:
    """Raise OSError, in one sentence, where :func:`atomic_write` cannot write a file; its folder is created."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(path)
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error}): name a file in a folder that you may write to") from error


def _partial(path: Path) -> Path:
    """Return where a file grows until it is complete: beside it, under a name that no other thread or host takes."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
