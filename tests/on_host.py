"""Device code compiled for the host, so that it runs where no device is."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from spectile.core.compile import Unit

#: What kernels call on a device, with a fiber of the host for each thread of a block.
FIBERS = Path(__file__).with_name("fibers.h")


def host_library(stem: Path, source: str, *flags: str) -> ctypes.CDLL:
    """Return what g++ makes of a source, which is written beside it; skip the test where g++ is not installed."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    written, compiled = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    written.write_text(source)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", *flags, "-o", str(compiled), str(written)], check=True)
    return ctypes.CDLL(str(compiled))


def fibers_library(stem: Path, unit: Unit, run: str) -> ctypes.CDLL:
    """Return a library of a unit of the eigensolver, whose functions `run` launches."""
    source = unit.source()
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    text = "\n".join((defines, FIBERS.read_text(), source[source.index("// The scalar of a unit") :], run))
    return host_library(stem, text, "-w", "-std=c++17")
