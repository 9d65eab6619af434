"""Device code compiled for the host, so that it runs where no device is."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


def fibers_library(stem: Path, unit: Unit, run: str, *left_out: tuple[str, str], before: str = "") -> ctypes.CDLL:
    """Return a library of a unit of the eigensolver, whose functions `run` launches.

    What the host has not is left out of the source, from one text up to another.
    """
    source = unit.source()
    source = source[source.index("// The scalar of a unit") :]
    for first, last in left_out:
        begin = source.index(first)
        source = source[:begin] + source[source.index(last, begin) :]
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    text = "\n".join((defines, before, FIBERS.read_text(), source, run))
    return host_library(stem, text, "-w", "-std=c++17")


class Pinned:
    """Memory that stands for pinned memory."""

    def __init__(self, size: int) -> None:
        self.buffer = (ctypes.c_char * size)()
        self.ptr = ctypes.addressof(self.buffer)


class Stream:
    """A stream whose one kernel ends when `end` is called, here or in `synchronize`."""

    ptr = 0

    def __init__(self) -> None:
        self.end, self.waits = None, 0

    def synchronize(self, _: int = 0) -> None:
        self.waits += 1
        if self.end is not None:
            self.end()


def cupy_of(stream: Stream) -> SimpleNamespace:
    """Return what stands for CuPy where words are told, on one device with one stream."""
    runtime = SimpleNamespace(getDevice=lambda: 0, streamSynchronize=stream.synchronize)
    cuda = SimpleNamespace(alloc_pinned_memory=Pinned, get_current_stream=lambda: stream, runtime=runtime)
    return SimpleNamespace(empty=np.empty, zeros=np.zeros, cuda=cuda)
