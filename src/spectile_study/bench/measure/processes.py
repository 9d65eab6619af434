"""Processes of a measurement: where they keep compiled kernels, and that none outlives the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path


def kernel_cache() -> dict[str, str]:
    """Let CuPy keep compiled kernels on this machine's own disk: a home shared by nodes is slow and locks badly."""
    if "CUPY_CACHE_DIR" in os.environ:
        return {}
    folder = Path(tempfile.gettempdir()) / f"spectile-cupy-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return {}
    # Kernels are code: a folder that somebody else prepared in a shared place is not used.
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o022 == 0
    return {"CUPY_CACHE_DIR": str(folder)} if ours else {}


def end_with(process: int) -> None:
    """End this process, and with it its worker, when the process with the id `process` ends.

    A Snakemake that is killed leaves its jobs running; a measurement that goes on beside the next run's would spoil it.
    """

    def wait() -> None:
        with contextlib.suppress(PermissionError):  # somebody else's process is not ours to wait for
            while True:
                try:
                    os.kill(process, 0)
                except ProcessLookupError:
                    os._exit(1)
                time.sleep(1)

    threading.Thread(target=wait, daemon=True).start()


def die_with(parent: int) -> None:
    """Ask Linux to end this process when the supervisor is killed, so that no orphan keeps a GPU."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
