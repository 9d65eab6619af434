"""Files that appear only once they are complete, so that no reader and no killed run leaves or sees half a file."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` if the block ends without an error, and is removed otherwise.

    The folder is created if it does not exist, and not left empty by an error.
    """
    path = Path(path)
    created = _missing(path.parent)
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):  # of a name that is none
            partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of a folder that is not empty
            for folder in created:
                folder.rmdir()
        raise


def require_writable(path: str | Path) -> None:
    """Raise OSError, in one sentence, where :func:`atomic_write` cannot write a file; leaves everything as it was."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        trial = _partial(path)
        if created := _missing(path.parent):
            # Under a name of its own, which nobody else creates or removes meanwhile.
            stand_in = _partial(created[-1])
            trial = stand_in.joinpath(trial.relative_to(created[-1]))
        try:
            trial.parent.mkdir(parents=True, exist_ok=True)
            trial.touch(exist_ok=False)
            trial.unlink()
        finally:
            if created:
                shutil.rmtree(stand_in, ignore_errors=True)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error}): name a file in a folder that you may write to") from error


def _missing(folder: Path) -> list[Path]:
    """Return which of a folder and those that it lies in do not exist, the innermost first."""
    return list(itertools.takewhile(lambda one: not os.path.lexists(one), (folder, *folder.parents)))


def _partial(path: Path) -> Path:
    """Return where a file grows until it is complete: beside it, under a name that no other thread or host takes."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
