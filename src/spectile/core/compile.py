"""CUDA C++ translation units: declared once, compiled by NVRTC, loaded through CuPy.

A system declares its units in its ``cuda/units.py``::

    UNITS = (Unit(__package__, ("kernels.cu",), archs=("sm_90a",), defines={"BLOCK": "32"}),)

so that a machine without a GPU can compile exactly what is declared (``Unit.cubin``), and the launch code loads the
unit for the current device (``Unit.module``).  ``#include "tiles.cuh"`` is resolved by this module, first beside the
source and then in ``core/``, so that headers are part of a unit's text and digest.  Compiled units are kept on disk
where nobody else can have written them, and else in memory: what cannot be kept costs time and never a call.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import struct
import tempfile
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal

from spectile.core.atomic_file import atomic_write
from spectile.core.cupy_parts import part
from spectile.core.device import actual_arch, describe
from spectile.core.threads import cores

#: Architectures for which a portable unit has machine code; the driver of a later device compiles its PTX.
PORTABLE = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_121")

# No -ftz and no fast math: an fp32 kernel keeps IEEE rounding and subnormals unless its source says otherwise.
BASE_OPTIONS = ("-std=c++17", "--extra-device-vectorization")


Form = Literal["cubin", "ptx"]
_LOGGER = logging.getLogger("spectile.compile")


@dataclass(frozen=True)
class Unit:
    """One CUDA C++ translation unit."""

    package: str  #: The Python package whose folder holds the sources, for example ``"spectile.evd.cuda"``.
    sources: tuple[str, ...]  #: File names, concatenated in order; ``package:name`` for a file of another package.
    #: Every architecture that the unit is written for, `PORTABLE` or those whose instructions it uses; CI compiles
    #: all of them.  A device uses its own, or the nearest older one of its family, or else the PTX of the newest one
    #: that is not newer than the device (never of an architecture with an ``a``, which suits one device only).
    archs: tuple[str, ...]
    defines: Mapping[str, str] = field(default_factory=dict)  #: Preprocessor constants: the unit's tuning parameters.
    options: tuple[str, ...] = ()  #: Further NVRTC options.
    preamble: str = ""  #: Text before the sources that the host makes, for example what it declares for both.

    def __hash__(self) -> int:
        defines = tuple(sorted(self.defines.items()))
        return hash((self.package, self.sources, self.archs, defines, self.options, self.preamble))

    def source(self) -> str:
        """Return the text of the unit, with a ``#line`` mark before each file."""
        included: set[str] = set()
        texts = [_with_headers(self.package, name, included) for name in self.sources]
        return "\n".join([f'#line 1 "preamble"\n{self.preamble}', *texts] if self.preamble else texts)

    def flags(self) -> tuple[str, ...]:
        """Return the NVRTC options that determine the machine code, except the architecture."""
        defines = tuple(f"-D{name}={value}" for name, value in sorted(self.defines.items()))
        return (*BASE_OPTIONS, *self.options, *defines)

    def cubin(self, arch: str) -> bytes:
        """Compile for `arch` (one of `archs`) with NVRTC; needs no GPU.

        Raises ValueError if the unit does not declare `arch`, and RuntimeError if NVRTC refuses the source; the message
        is its log.
        """
        compiled = self._compile(arch, "cubin")
        # CuPy drops the last byte, which ends a text such as PTX but belongs to machine code.
        return compiled + b"\0" if _elf_size(compiled) == len(compiled) + 1 else compiled

    def ptx(self, arch: str) -> bytes:
        """Compile to the PTX of `arch` (one of `archs`), which drivers of later devices compile; raises as `cubin`."""
        return self._compile(arch, "ptx")

    def _compile(self, arch: str, method: str) -> bytes:
        name = f"{self.package}/{'+'.join(self.sources)}"
        if arch not in self.archs:
            raise ValueError(f"unit {name} is not written for {arch}, only for {self.archs}")
        target = arch if method == "cubin" else arch.replace("sm_", "compute_")
        program = part("_NVRTCProgram")(self.source(), self.sources[0] if self.sources else self.package, method=method)
        try:
            folders = tuple(f"-I{folder}" for folder in include_folders())
            compiled, _ = program.compile((*self.flags(), *folders, f"-arch={target}"))
        except part("CompileException") as error:
            raise RuntimeError(f"NVRTC refused {name} for {arch}:\n{error}") from error
        return compiled if isinstance(compiled, bytes) else compiled.encode()

    def module(self) -> Any:
        """Load the unit on the current device, compiled for its architecture, as a ``cupy.cuda.function.Module``."""
        import cupy

        return _load(self, describe().arch, actual_arch(), cupy.cuda.runtime.getDevice())


_INCLUDE = re.compile(r'^#include "([^"]+)"[^\n]*$', flags=re.MULTILINE)


def _with_headers(package: str, name: str, included: set[str]) -> str:
    """Return a source with our headers in place of their ``#include``, each once in a unit.

    A header is looked for in the folder of `package`, then in ``spectile/core``; ``package:name`` names a source of
    another package, whose own headers are looked for there.
    """
    package, _, name = name.rpartition(":") if ":" in name else (package, "", name)
    places = [resources.files(one) / name for one in (package, "spectile.core")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{name} is neither in the package {package} nor in spectile.core")

    def header(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 2
        if match[1].rpartition(":")[2] in included:
            return ""
        return f'{_with_headers(package, match[1], included)}\n#line {line} "{name}"'

    included.add(name)
    text = path.read_text()
    return f'#line 1 "{name}"\n{_INCLUDE.sub(header, text)}'


def _elf_size(image: bytes) -> int:
    """Return the size that the header of a 64-bit ELF file states."""
    program_headers, section_headers = struct.unpack_from("<QQ", image, 32)
    size, count, section_size, sections = struct.unpack_from("<4H", image, 54)
    return max(program_headers + size * count, section_headers + section_size * sections)


@functools.cache
def _load(unit: Unit, described: str, actual: str, index: int) -> Any:
    """Load `unit` on the current device, number `index`; `described` is the device that its choices were made for."""
    image = choose_image(unit.archs, described, actual, compilable())
    if image is None:
        raise RuntimeError(
            f"the kernels {unit.package}/{'+'.join(unit.sources)} are written for {', '.join(unit.archs)}, "
            f"and this device is {described}: use a device of a listed architecture, or copy the operands to the host "
            'and use backend="cpu"'
        )
    module = part("Module")()
    module.load(_image(unit, *image))
    return module


def prepare(*units: Unit) -> None:
    """Begin to compile side by side those of `units` that the current device needs and that are not in the cache.

    What loads a unit waits for it alone: kernels run while later ones are compiled.
    """
    known = compilable()
    device, actual = describe().arch, actual_arch()
    chosen = [(unit, image) for unit in units if (image := choose_image(unit.archs, device, actual, known))]
    with _LOCK:
        named = {image_name(unit, *image): (unit, *image) for unit, image in chosen}
        new = {name: one for name, one in named.items() if name not in _UNDER_WAY and name not in _SEEN}
        if new:
            places = [*shipping_folders(), *cache_folders()]
            _SEEN.update(name for name in new if any((at / name).exists() for at in places))
            new = {name: one for name, one in new.items() if name not in _SEEN}
        if new:  # NVRTC may be called from several threads at once
            pool = ThreadPoolExecutor(min(len(new), cores()))
            _UNDER_WAY.update((name, pool.submit(_compiled, *one)) for name, one in new.items())
            pool.shutdown(wait=False)


def is_compiling(unit: Unit) -> bool:
    """Return whether `prepare` has begun to compile `unit` for the current device and has not ended."""
    if not _UNDER_WAY:
        return False
    image = choose_image(unit.archs, describe().arch, actual_arch(), compilable())
    begun = _UNDER_WAY.get(image_name(unit, *image)) if image else None
    return begun is not None and not begun.done()


#: Units that threads compile, by the name of the image, until something has waited for them.
_UNDER_WAY: dict[str, Future[bytes]] = {}
#: Images that no folder takes, by their name, and names of those that are there or were asked for.
_IN_MEMORY: dict[str, bytes] = {}
_SEEN: set[str] = set()
_LOCK = threading.Lock()


def choose_image(archs: tuple[str, ...], described: str, actual: str, known: frozenset[str]) -> tuple[str, Form] | None:
    """Return the architecture and form in which a unit is loaded, or None if nothing runs on the device.

    It is written for `archs`, of which the installed compiler knows those of `known`; code is chosen for the
    architecture of the device as described, and must run on the actual one.
    """
    written = [arch for arch in archs if arch.rstrip("a") in known]
    if described == actual:
        exact = [arch for arch in written if arch.rstrip("a") == actual]
        # Machine code runs on devices of the same major version whose minor version is not lower.
        family = [arch for arch in written if arch[:-1] == actual[:-1] and not arch.endswith("a") and arch <= actual]
        for fitting in (exact, sorted(family)):
            if fitting:
                return fitting[-1], "cubin"
    older = [arch for arch in written if not arch.endswith("a") and _number(arch) <= _number(described)]
    return (max(older, key=_number), "ptx") if older else None


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("a"))


@functools.cache
def compilable() -> frozenset[str]:
    """Return the architectures that the installed NVRTC compiles for, for example ``"sm_90"``."""
    from cupy.cuda import nvrtc

    return frozenset(f"sm_{number}" for number in nvrtc.getSupportedArchs())


@functools.cache
def image_name(unit: Unit, arch: str, form: Form) -> str:
    """Return the file name of a compiled unit, which its text, flags and architecture determine."""
    text = "\0".join((unit.source(), arch, *unit.flags()))
    return f"{unit.package}_{hashlib.sha256(text.encode()).hexdigest()[:32]}.{form}"


@functools.cache
def shipping_folders() -> tuple[Path, ...]:
    """Return where installed packages may bring machine code: this one, and those with an entry point for it.

    An entry point of the group ``spectile.cubins`` names a package whose folder holds what ``spectile compile`` wrote.
    """
    own = Path(str(resources.files("spectile"))) / "cubins"
    named = metadata.entry_points(group="spectile.cubins")
    return own, *(Path(str(each.dist.locate_file(each.value))) for each in named if each.dist is not None)


def cache_folders() -> tuple[Path, ...]:
    """Return where compiled units are kept: in CuPy's cache, or else in a folder of this user for temporary files."""
    from cupy.cuda import nvrtc

    version = "spectile-nvrtc{}.{}".format(*nvrtc.getVersion())
    private = Path(tempfile.gettempdir()) / f"{version}-{os.geteuid()}"
    if named := os.environ.get("CUPY_CACHE_DIR"):
        return Path(named) / version, private
    try:
        return Path.home() / ".cupy" / "kernel_cache" / version, private
    except RuntimeError:  # nobody knows this user's home
        return (private,)


def _image(unit: Unit, arch: str, form: Form) -> bytes:
    """Return a compiled unit: what the package brings or the cache holds, or else compiled now."""
    name = image_name(unit, arch, form)
    _SEEN.add(name)
    if name in _IN_MEMORY:
        return _IN_MEMORY[name]
    for folder in shipping_folders():
        if (shipped := _unsealed(folder / name)) is not None:
            return shipped
    begun = _UNDER_WAY.get(name)
    if begun is not None:
        try:
            return begun.result()
        finally:
            _UNDER_WAY.pop(name, None)
    found = (_read(folder / name) for folder in cache_folders())
    return next((image for image in found if image is not None), None) or _compiled(unit, arch, form)


def _compiled(unit: Unit, arch: str, form: Form) -> bytes:
    """Compile a unit and keep it in the first folder that takes it, or in memory."""
    image, name, refusals = _compile(unit, arch, form), image_name(unit, arch, form), []
    for folder in cache_folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(folder)
            with atomic_write(folder / name) as partial:
                partial.write_bytes(_seal(name, image) + image)
        except OSError as error:
            refusals.append(f"{folder} ({error.strerror or error})")
        else:
            break
    else:
        _IN_MEMORY[name] = image
    if refusals:
        _warn_once(refusals[0], name in _IN_MEMORY)
    return image


def _read(path: Path) -> bytes | None:
    """Return a unit from the cache, or None where it is not there, damaged, or another user's."""
    try:
        _require_own(path.parent)
    except OSError:
        return None
    return _unsealed(path)


def _unsealed(path: Path) -> bytes | None:
    """Return a unit from its file, or None where that is not there or damaged."""
    try:
        held = path.read_bytes()
    except OSError:
        return None
    seal = _seal(path.name, held[_SEAL_BYTES:])
    return held[_SEAL_BYTES:] if held[:_SEAL_BYTES] == seal else None


_SEAL_BYTES = hashlib.sha256().digest_size


def _seal(name: str, image: bytes) -> bytes:
    """Return the digest of an image under its name, with which its file begins."""
    return hashlib.sha256(name.encode() + b"\0" + image).digest()


def _require_own(folder: Path) -> None:
    """Raise PermissionError where others than this user and root can have written a folder's files."""
    known = folder.lstat()  # a link, which anybody may have made, is open to all
    if known.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"user {known.st_uid} owns it")
    if known.st_mode & 0o022:
        raise PermissionError("others may write to it")


@functools.cache
def _warn_once(refusal: str, in_memory: bool) -> None:
    instead = "every process compiles them anew" if in_memory else "the folder for temporary files keeps them"
    warnings.warn(
        f"compiled kernels cannot be kept in {refusal}, so {instead}: name a folder of your own by CUPY_CACHE_DIR",
        RuntimeWarning,
        stacklevel=3,
    )


def _compile(unit: Unit, arch: str, form: Form) -> bytes:
    _LOGGER.info("compiling %s/%s for %s", unit.package, "+".join(unit.sources), arch)
    return unit.cubin(arch) if form == "cubin" else unit.ptx(arch)


def write_image(unit: Unit, arch: str, form: Form, path: Path) -> None:
    """Compile a unit into a file, as a package ships it."""
    image = _compile(unit, arch, form)
    with atomic_write(path) as partial:
        partial.write_bytes(_seal(path.name, image) + image)


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Return the folders that hold CUDA's own headers (``cuda_fp16.h``): the wheel's, or the toolkit's."""
    folders: list[str] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        folders += [str(path) for path in Path(root).glob("*/include") if (path / "cuda_fp16.h").exists()]
    for name in ("CUDA_PATH", "CUDA_HOME"):
        if name in os.environ:
            folders.append(str(Path(os.environ[name]) / "include"))
    if Path("/usr/local/cuda/include").exists():
        folders.append("/usr/local/cuda/include")
    return tuple(dict.fromkeys(folders))
