"""Kernels compiled for the host, a thread of the host for each of a block."""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from tests.on_host import host_library

_KERNEL = re.compile(r'extern "C" __global__ void\s*(?:__launch_bounds__\([^{]*?\)\s+)?(\w+)\(([^)]*)\)\s*\{')
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"$', flags=re.MULTILINE)
_DYNAMIC = re.compile(r"extern __shared__ (\w+) shared\[\];")


def compiled(folder: Path, unit: Unit) -> ctypes.CDLL:
    """Return a library with ``on_host_NAME(blocks, threads, shared bytes, ...)`` for each kernel of a unit."""
    included: set[str] = set()

    def text(name: str) -> str:
        # The units of matrices have a stand-in.
        if name in included or name == "ptx.cuh":
            return ""
        included.add(name)
        return _INCLUDE.sub(lambda match: text(match[1]), (resources.files(unit.package) / name).read_text())

    source = unit.preamble + "\n" + "".join(map(text, unit.sources))
    calls = []
    for name, parameters in _KERNEL.findall(source):
        name = unit.defines.get(name, name)
        names = [re.search(r"(\w+)$", one.strip())[1] for one in parameters.split(",")]  # type: ignore[index]
        calls.append(
            f'extern "C" void on_host_{name}(int blocks, int threads, long dynamic, {parameters}) {{\n'
            f"    run_blocks(blocks, threads, dynamic, [&] {{ {name}({', '.join(names)}); }});\n}}\n"
        )
    source = _DYNAMIC.sub(r"\1* shared = (\1*)shared_memory.data();", source)
    source = source.replace("__shared__", "static")
    header = (Path(__file__).parent / "cuda_on_host.h").read_text()
    defines = [f"-D{name}={value}" for name, value in unit.defines.items()]
    flags = "-std=c++20", "-pthread", "-w", *defines
    return host_library(folder / Path(unit.sources[0]).stem, header + source + "".join(calls), *flags)


def launch(library: ctypes.CDLL, name: str, shape: Any, *arguments: Any) -> None:
    """Run a kernel as `spectile.core.launch.Kernel` launches it."""
    passed = []
    for one in arguments:
        if isinstance(one, np.ndarray) and one.dtype.names:
            passed.append(_by_value(one))
        elif isinstance(one, np.ndarray):
            assert one.flags.c_contiguous
            passed.append(ctypes.c_void_p(one.ctypes.data))
        else:
            kinds = {"d": ctypes.c_double, "i": ctypes.c_int, "l": ctypes.c_longlong, "L": ctypes.c_void_p}
            passed.append(kinds[np.dtype(type(one)).char](one.item()))
    function = getattr(library, f"on_host_{name}")
    function.restype = None
    function(ctypes.c_int(shape.grid[0]), ctypes.c_int(shape.threads), ctypes.c_long(shape.shared_bytes), *passed)


def kernels(functions: dict[Unit, ctypes.CDLL]) -> Any:
    """Return what `kernel` of `spectile.core.launch` is where these units are compiled for the host."""

    def kernel(unit: Unit, name: str) -> Any:
        def bind(shape: Any, *arguments: Any) -> Any:
            values = [one if isinstance(one, np.ndarray) else [one] for one in arguments]
            return lambda _: launch(functions[unit], name, shape, *(one[0] for one in values))

        return SimpleNamespace(bind=bind)

    return kernel


def _by_value(struct: Any) -> Any:
    kinds = {"u8": ctypes.c_uint64, "i4": ctypes.c_int, "f8": ctypes.c_double}
    fields = [(f"f{n}", kinds[struct.dtype[n].str[1:]]) for n in range(len(struct.dtype.names))]
    made = type("Struct", (ctypes.Structure,), {"_fields_": fields})()
    ctypes.memmove(ctypes.addressof(made), struct.ctypes.data, ctypes.sizeof(made))
    return made
