"""Processes of a measurement: where they keep compiled kernels, and that none outlives the one that started it."""

from __future__ import annotations

import os
import signal
import sys

from spectile_study.bench.private_folder import private_folder


def kernel_cache() -> dict[str, str]:
    """Let CuPy keep compiled kernels on this machine's own disk: a home shared by nodes is slow and locks badly."""
    if "CUPY_CACHE_DIR" in os.environ:
        return {}
    # Kernels are code: a folder that somebody else prepared in a shared place is not used.
    folder = private_folder("spectile-cupy")
    return {} if folder is None else {"CUPY_CACHE_DIR": str(folder)}


def die_with(parent: int) -> None:
    """Ask Linux to end this process when the supervisor is killed, so that no orphan keeps a GPU."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
