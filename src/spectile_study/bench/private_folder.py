"""A folder for temporary files that nobody else can write to."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def private_folder(name: str) -> Path | None:
    """Return this user's folder `name` on this machine's own disk, or None if somebody else made it."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o022 == 0
    return folder if ours else None
