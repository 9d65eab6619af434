"""Device code compiled for the host, so that it runs where no device is."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest


def host_library(stem: Path, source: str, *flags: str) -> ctypes.CDLL:
    """Return what g++ makes of a source, which is written beside it; skip the test where g++ is not installed."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    written, compiled = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    written.write_text(source)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", *flags, "-o", str(compiled), str(written)], check=True)
    return ctypes.CDLL(str(compiled))
