"""Every CUDA unit compiles with NVRTC for exactly the architectures that it declares; no GPU is needed.

The daily run makes machine code of so many units that each constant of a text has each of its values on each
architecture, and has NVRTC's front end read the others.  Of architectures that compile the same text it takes the
first.  `pytest -m slow tests/cpu/core/test_compile.py` makes machine code of all.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import multiprocessing
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spectile.__main__ import main
from spectile.core import compile as compile_module
from spectile.core.compile import PORTABLE, Unit, _image, choose_image, image_name
from spectile.core.devices import TABLE

#: Every module that declares CUDA units, as its UNITS.
PACKAGES = (
    *(f"spectile.{system}.cuda.units" for system in ("nearsparse", "tsparse", "evd", "kpm", "tiles")),
    "spectile.evd.cuda.multi.units",
    "spectile_study.cases.spamm.ablation",
    "spectile_study.cases.evd.ozaki",
    "spectile_study.cases.evd.wide",
    "spectile_study.cases.kpm.peaks",
    "spectile_study.cases.kpm.spmm",
    "spectile_study.cases.kpm.variants",
    "spectile_study.everyday.kpm",
    "spectile_study.cases.tsparse.tiles.units",
)


def _units() -> list[tuple[str, str, Unit]]:
    return [
        (f"{package}-{number}-{'+'.join(map(lambda s: Path(s).stem, unit.sources))}-{arch}", arch, unit)
        for package in PACKAGES
        for number, unit in enumerate(importlib.import_module(package).UNITS)
        for arch in unit.archs
    ]


COMPARISON = re.compile(r"__CUDA_ARCH__\s*(>=|<=|==|!=|>|<)\s*(\d+)")
HOLDS = {">=": int.__ge__, "<=": int.__le__, "==": int.__eq__, "!=": int.__ne__, ">": int.__gt__, "<": int.__lt__}


@functools.cache
def _answers(unit: Unit, arch: str) -> tuple[bool, ...]:
    """Return what an architecture answers to what the text of a unit asks of it."""
    number = 10 * int(arch.removeprefix("sm_").rstrip("a"))
    return tuple(HOLDS[sign](number, int(bound)) for sign, bound in COMPARISON.findall(unit.source()))


def _same_text(arch: str, unit: Unit) -> bool:
    """Return whether an architecture that the unit names before compiles the same text."""
    before = unit.archs[: unit.archs.index(arch)]
    return _answers(unit, arch) in {_answers(unit, other) for other in before}


DAILY = [(name, arch, unit) for name, arch, unit in _units() if not _same_text(arch, unit)]


def _facts(arch: str, unit: Unit) -> set[tuple[object, ...]]:
    """Return what tells a unit from others of the same text on an architecture."""
    return {(arch, *one) for one in (*unit.defines.items(), ("options", unit.options), ("preamble", unit.preamble))}


def _covering() -> set[tuple[str, Unit]]:
    """Return units of each text which have, together, all that any of its units has: few of them."""
    texts: dict[object, dict[tuple[str, Unit], set[tuple[object, ...]]]] = {}
    for _, arch, unit in DAILY:
        texts.setdefault((unit.package, unit.sources), {})[arch, unit] = _facts(arch, unit)
    chosen = set()
    for facts in texts.values():
        missing = set().union(*facts.values())
        while missing:
            most = max(facts, key=lambda one: len(facts[one] & missing))
            chosen.add(most)
            missing -= facts[most]
    return chosen


COVERING = _covering()


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[Callable[[str, Unit, str], bytes]]:
    """Compile the units of the chosen tests in parallel, with one process for each core."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = [item.callspec.params for item in mine if "form" in item.callspec.params]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        keys = dict.fromkeys((params["arch"], params["unit"], params["form"]) for params in chosen)
        under_way = {(arch, unit, form): pool.submit(getattr(unit, form), arch) for arch, unit, form in keys}
        yield lambda *key: under_way[key].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("form", ["cubin"])
@pytest.mark.parametrize(
    ("arch", "unit"),
    [
        pytest.param(arch, unit, id=name, marks=[] if (arch, unit) in COVERING else [pytest.mark.slow])
        for name, arch, unit in _units()
    ],
)
def test_unit_compiles(arch: str, unit: Unit, form: str, compiled: Callable[[str, Unit, str], bytes]) -> None:
    assert compiled(arch, unit, form)[:4] == b"\x7fELF"


READ = "-fdevice-syntax-only"


@pytest.mark.parametrize("form", ["ptx"])
@pytest.mark.parametrize(
    ("arch", "unit"),
    [
        pytest.param(arch, replace(unit, options=(*unit.options, READ)), id=name)
        for name, arch, unit in DAILY
        if (arch, unit) not in COVERING
    ],
)
def test_unit_is_read(arch: str, unit: Unit, form: str, compiled: Callable[[str, Unit, str], bytes]) -> None:
    compiled(arch, unit, form)  # or NVRTC's error is raised


@pytest.mark.parametrize(
    "wrong", ["int a = ;", 'static_assert(N == 1, "one");', "__device__ int f() { return g<N>(); }"]
)
def test_what_is_wrong_is_noticed_where_it_is_read(wrong: str) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    unit = Unit("spectile.core", (), archs=("sm_80",), defines={"N": "2"}, options=(READ,), preamble=wrong)
    with pytest.raises(RuntimeError, match="NVRTC refused"):
        unit.ptx("sm_80")


def test_units_of_machine_code_have_every_value_of_every_constant() -> None:
    def values(units: Iterable[tuple[str, Unit]]) -> set[object]:
        return {(unit.package, unit.sources, *fact) for arch, unit in units for fact in _facts(arch, unit)}

    assert values(COVERING) == values((arch, unit) for _, arch, unit in DAILY)
    assert len(COVERING) < len(DAILY) / 2


def test_texts_ask_the_architecture_by_comparisons_alone() -> None:
    for unit in {unit for _, _, unit in _units()}:
        text = unit.source()
        assert len(COMPARISON.findall(text)) == text.count("__CUDA_ARCH__"), f"{unit} asks something else"


def test_an_architecture_with_a_text_of_its_own_is_compiled_every_day(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit("spectile.core", ("asks",), archs=PORTABLE)
    monkeypatch.setattr(Unit, "source", lambda self: "#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200")
    assert [arch for arch in PORTABLE if not _same_text(arch, unit)] == ["sm_80", "sm_90a", "sm_120"]


def test_undeclared_architecture_is_refused() -> None:
    unit = Unit("spectile.core", (), archs=("sm_80",))
    with pytest.raises(ValueError, match="not written for sm_70"):
        unit.cubin("sm_70")


KNOWN = frozenset(arch.rstrip("a") for arch in PORTABLE)
OLD_COMPILER = frozenset({"sm_80", "sm_86", "sm_89", "sm_90"})


@pytest.mark.parametrize(
    ("archs", "device", "known", "image"),
    [
        (PORTABLE, "sm_80", KNOWN, ("sm_80", "cubin")),
        (PORTABLE, "sm_87", KNOWN, ("sm_86", "cubin")),
        (PORTABLE, "sm_90", KNOWN, ("sm_90a", "cubin")),
        (PORTABLE, "sm_120", KNOWN, ("sm_120", "cubin")),
        (PORTABLE, "sm_121", KNOWN, ("sm_121", "cubin")),
        (PORTABLE, "sm_110", KNOWN, ("sm_103", "ptx")),
        (PORTABLE, "sm_130", KNOWN, ("sm_121", "ptx")),
        (PORTABLE, "sm_120", OLD_COMPILER, ("sm_89", "ptx")),
        (PORTABLE, "sm_75", KNOWN, None),
        (("sm_80", "sm_100"), "sm_103", KNOWN, ("sm_100", "cubin")),
        (("sm_90a",), "sm_93", KNOWN, None),
        (("sm_90a",), "sm_100", KNOWN, None),
    ],
)
def test_device_takes_the_nearest_architecture_that_runs_on_it(
    archs: tuple[str, ...], device: str, known: frozenset[str], image: tuple[str, str] | None
) -> None:
    assert choose_image(archs, device, device, known) == image


@pytest.mark.parametrize(("name", "arch"), [("A100", "sm_80"), ("RTX 4090", "sm_89"), ("H200", "sm_90a")])
def test_device_described_as_another_takes_the_code_of_the_other(name: str, arch: str) -> None:
    described = TABLE[name].arch
    form = "cubin" if described == "sm_90" else "ptx"
    assert choose_image(PORTABLE, described, "sm_90", KNOWN) == (arch, form)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of compiled units of this test, and leave nothing of it in the process."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(compile_module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    for name in ("_IN_MEMORY", "_UNDER_WAY"):
        monkeypatch.setattr(compile_module, name, {})
    monkeypatch.setattr(compile_module, "_SEEN", set())
    compile_module._warn_once.cache_clear()
    return compile_module.cache_folders()[0]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """Replace NVRTC by a compiler of other text at each call; return the units that it has compiled."""
    done: list[Unit] = []

    def cubin(unit: Unit, arch: str) -> bytes:
        done.append(unit)
        return f"code {len(done)}".encode()

    monkeypatch.setattr(Unit, "cubin", cubin)
    return done


UNIT = Unit("spectile.core", (), archs=("sm_80", "sm_90a"))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_cache_holds_whole_files_alone(cache: Path, compiler: list[Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bytes:
        raise RuntimeError("NVRTC refused it")

    with monkeypatch.context() as patched:
        patched.setattr(Unit, "cubin", refused)
        with pytest.raises(RuntimeError, match="refused"):
            _image(UNIT, "sm_80", "cubin")
        assert not _files(cache)
    assert _image(UNIT, "sm_80", "cubin") == _image(UNIT, "sm_80", "cubin") == b"code 1"
    assert len(_files(cache)) == 1
    assert cache.stat().st_mode & 0o077 == 0 and compiler == [UNIT]
    # What changes the machine code has a file of its own.
    others = [
        replace(UNIT, defines={"N": "2"}),
        replace(UNIT, options=("-lineinfo",)),
        replace(UNIT, sources=("a.cu",)),
    ]
    monkeypatch.setattr(Unit, "source", lambda self: "".join(self.sources))
    images = {_image(UNIT, "sm_80", "cubin"), *(_image(other, "sm_80", "cubin") for other in others)}
    assert len(images | {_image(UNIT, "sm_90a", "cubin")}) == 5 == len(_files(cache))


def _other(path: Path) -> bytes:
    """Return the file of another unit, under whose name it is whole."""
    _image(replace(UNIT, defines={"N": "other"}), "sm_80", "cubin")
    (other,) = [one for one in _files(path.parent) if one != path]
    return other.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: b"",
        lambda path: path.read_bytes()[:10],
        lambda path: path.read_bytes()[:-1],
        lambda path: path.read_bytes() + b" ",
        lambda path: path.read_bytes()[:-1] + b"7",
        lambda path: b"\0" * len(path.read_bytes()),
        _other,
    ],
)
def test_a_damaged_file_is_compiled_anew_and_replaced(
    cache: Path, compiler: list[Unit], damage: Callable[[Path], bytes]
) -> None:
    assert _image(UNIT, "sm_80", "cubin") == b"code 1"
    (path,) = _files(cache)
    path.write_bytes(damage(path))
    count = len(compiler)
    renewed = _image(UNIT, "sm_80", "cubin")
    assert renewed == f"code {count + 1}".encode()
    assert _image(UNIT, "sm_80", "cubin") == renewed and len(compiler) == count + 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder, patch: folder.chmod(0o777), "others may write to it"),
        (lambda folder, patch: folder.chmod(0o770), "others may write to it"),
        (lambda folder, patch: patch.setattr(os, "geteuid", lambda: 12345), r"user \d+ owns it"),
        (lambda folder, patch: folder.rename(folder.parent / "x") and folder.symlink_to("x"), "others may write to it"),
    ],
)
def test_a_folder_of_others_is_neither_read_nor_written(
    cache: Path, compiler: list[Unit], spoil: Callable, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        owned = Path.lstat  # root's folders are everybody's to trust
        monkeypatch.setattr(
            Path, "lstat", lambda self: SimpleNamespace(st_uid=owned(self).st_uid or 1, st_mode=owned(self).st_mode)
        )
        monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert _image(UNIT, "sm_80", "cubin") == b"code 1"
    before = {path: path.read_bytes() for path in _files(cache)}
    spoil(cache, monkeypatch)
    with pytest.warns(RuntimeWarning, match=rf"cannot be kept in \S+ \({said}\), so .* CUPY_CACHE_DIR$"):
        assert _image(UNIT, "sm_80", "cubin") == b"code 2"
    assert {path: path.read_bytes() for path in _files(cache)} == before
    with warnings.catch_warnings():  # it is said once
        warnings.simplefilter("error")
        assert _image(UNIT, "sm_80", "cubin") == b"code 2" and len(compiler) == 2


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("also_temporary", [False, True])
def test_what_cannot_be_kept_costs_time_and_no_call(
    cache: Path, compiler: list[Unit], also_temporary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a file there is no folder, whoever asks for it."""
    cache.parent.touch()
    if also_temporary:
        (tmp_path / "tmp").rmdir()
        (tmp_path / "tmp").touch()
    instead = "every process compiles them anew" if also_temporary else "the folder for temporary files keeps them"
    with pytest.warns(RuntimeWarning, match=rf"\(Not a directory\), so {instead}"):
        assert _image(UNIT, "sm_80", "cubin") == b"code 1"
    monkeypatch.setattr(compile_module, "describe", lambda: TABLE["A100"])
    monkeypatch.setattr(compile_module, "actual_arch", lambda: "sm_80")
    compile_module.prepare(UNIT)  # which has nothing to do
    assert not compile_module._UNDER_WAY
    assert _image(UNIT, "sm_80", "cubin") == b"code 1" and compiler == [UNIT]
    assert bool(compile_module._IN_MEMORY) is also_temporary


def test_a_full_disk_costs_time_and_no_call(cache: Path, compiler: list[Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", _full)
        with pytest.warns(RuntimeWarning, match=r"\(No space left on device\), so every process"):
            assert _image(UNIT, "sm_80", "cubin") == b"code 1"
    assert not _files(cache) and _image(UNIT, "sm_80", "cubin") == b"code 1" and compiler == [UNIT]


def test_a_user_without_a_home_has_a_cache(
    cache: Path, compiler: list[Unit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CUPY_CACHE_DIR")
    monkeypatch.setattr(Path, "home", nobody)
    assert _image(UNIT, "sm_80", "cubin") == _image(UNIT, "sm_80", "cubin") == b"code 1"
    assert len(_files(tmp_path / "tmp")) == 1


def _code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#line")]


def test_sources_follow_one_another_with_their_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header stands in the text once, wherever it lies, so that it is part of what is compiled and of its digest."""
    files = {
        "one/a.cu": '#include <cuda_fp16.h>\n#include "own.cuh"\nA\n#include "core.cuh"\nend\n',
        "one/b.cu": '#include "core.cuh"  // again\nB\n',
        "one/own.cuh": '#include "core.cuh"\nOWN\n',
        "two/c.cu": '#include "own.cuh"\nC\n',
        "two/own.cuh": "OTHER\n",
        "spectile.core/core.cuh": "CORE\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(compile_module.resources, "files", lambda package: tmp_path / package)
    name_of = compile_module.image_name.__wrapped__  # the cache of names takes files as they were at the first call
    text = Unit("one", ("a.cu", "b.cu"), archs=("sm_80",)).source()
    assert _code(text) == ["#include <cuda_fp16.h>", "CORE", "OWN", "A", "end", "B"]
    assert text.startswith('#line 1 "a.cu"') and '#line 1 "b.cu"' in text
    after = text.splitlines()
    assert after[after.index("A") - 1] == '#line 3 "a.cu"'  # the compiler names lines of the files as they are
    other = Unit("one", ("two:c.cu",), archs=("sm_80",))
    assert _code(other.source()) == ["OTHER", "C"]
    before = name_of(other, "sm_80", "cubin")
    (tmp_path / "two/own.cuh").write_text("CHANGED\n")
    assert name_of(other, "sm_80", "cubin") != before
    with pytest.raises(FileNotFoundError, match=r"missing\.cu is neither in the package one nor in spectile\.core"):
        Unit("one", ("missing.cu",), archs=("sm_80",)).source()


@pytest.mark.parametrize("package", [package for package in PACKAGES if package.startswith("spectile.")])
def test_each_gpu_backend_covers_ampere_hopper_blackwell(package: str) -> None:
    declared = {arch for unit in importlib.import_module(package).UNITS for arch in unit.archs}
    assert {"sm_80", "sm_90a", "sm_100"} <= declared


def test_units_are_compiled_side_by_side_and_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(compile_module, "actual_arch", lambda: "sm_90")
    together, looked_at = threading.Barrier(2, timeout=120), threading.Event()
    compiled = []

    def cubin(unit: Unit, arch: str) -> bytes:
        together.wait()
        assert looked_at.wait(120)
        compiled.append((unit.defines["N"], arch))
        return b"code"

    monkeypatch.setattr(Unit, "cubin", cubin)
    units = [Unit("spectile.core", (), archs=PORTABLE, defines={"N": str(number)}) for number in range(2)]
    compile_module.prepare(*units)
    assert all(map(compile_module.is_compiling, units))
    compile_module.prepare(*units)
    looked_at.set()
    assert {_image(unit, "sm_90a", "cubin") for unit in units} == {b"code"}
    assert not any(map(compile_module.is_compiling, units)) and not compile_module._UNDER_WAY
    assert sorted(compiled) == [("0", "sm_90a"), ("1", "sm_90a")]


def test_what_needs_one_unit_waits_for_that_one_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(compile_module, "actual_arch", lambda: "sm_90")
    monkeypatch.setattr(compile_module.os, "cpu_count", lambda: 2)
    done = threading.Event()

    def cubin(unit: Unit, arch: str) -> bytes:
        if unit.defines["N"] == "slow":
            assert done.wait(120)
        elif unit.defines["N"] == "wrong":
            raise RuntimeError("NVRTC refused it")
        return b"code"

    monkeypatch.setattr(Unit, "cubin", cubin)
    slow, quick, wrong = (
        Unit("spectile.core", (), archs=("sm_90a",), defines={"N": name}) for name in ("slow", "quick", "wrong")
    )
    compile_module.prepare(slow, quick, wrong)
    assert _image(quick, "sm_90a", "cubin") == b"code" and compile_module.is_compiling(slow)
    for _ in range(2):  # what failed is tried again
        with pytest.raises(RuntimeError, match="refused"):
            _image(wrong, "sm_90a", "cubin")
    done.set()
    assert _image(slow, "sm_90a", "cubin") == b"code"


@pytest.mark.parametrize("beside", [False, True])
def test_shipped_machine_code_is_taken_where_its_text_is_the_same_and_it_is_whole(
    beside: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {}
    for kind in ("shipped", "damaged", "other"):
        kinds[kind] = Unit("spectile.core", (), archs=("sm_80",), defines={"N": f"{kind}_{beside}"})
    folder = tmp_path / ("machine_code" if beside else "cubins")
    folder.mkdir()
    monkeypatch.setattr(Unit, "cubin", lambda self, arch: b"shipped")
    for kind in ("shipped", "damaged"):
        path = folder / compile_module.image_name(kinds[kind], "sm_80", "cubin")
        compile_module.write_image(kinds[kind], "sm_80", "cubin", path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    if beside:  # a distribution that tells of its folder
        info = tmp_path / "machine_code-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: machine-code\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[spectile.cubins]\nany = machine_code\n")
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setattr(compile_module.resources, "files", lambda package: tmp_path)
    compile_module.shipping_folders.cache_clear()
    monkeypatch.setattr(Unit, "cubin", lambda self, arch: b"compiled")
    try:
        found = {kind: _image(unit, "sm_80", "cubin") for kind, unit in kinds.items()}
    finally:
        compile_module.shipping_folders.cache_clear()
    assert found == {"shipped": b"shipped", "damaged": b"compiled", "other": b"compiled"}


def test_the_compiler_of_cuda_12_takes_every_source() -> None:
    """Its front end refuses what that of CUDA 13 takes, as generic lambdas; users of the extra cuda12 have it."""
    package = pytest.importorskip("nvidia.cuda_nvrtc", reason="nvidia-cuda-nvrtc-cu12 is not installed")
    pytest.importorskip("cupy", reason="CuPy, which brings CUDA's headers, is not installed")
    nvrtc = ctypes.CDLL(str(next(Path(package.__path__[0]).glob("lib/libnvrtc.so.12"))))
    folders = [f"-I{folder}" for folder in compile_module.include_folders()]
    sources = {(unit.package, unit.sources): unit for _, _, unit in _units()}
    assert len(sources) > 50
    refused = {}
    for name, unit in sources.items():
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        options = [*unit.flags(), *folders, f"-arch={unit.archs[0].replace('sm_', 'compute_')}"]
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), unit.source().encode(), b"unit.cu", 0, None, None)
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            refused[name] = log.value.decode()
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not refused


def test_compile_makes_an_image_of_every_unit_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "write_image", lambda unit, arch, form, path: path.touch())
    assert main(["compile", "--arch", "sm_90a", "--arch", "sm_86", "--out", str(tmp_path)]) == 0
    library = [importlib.import_module(package).UNITS for package in PACKAGES if package.startswith("spectile.")]
    wanted = [(unit, arch) for units in library for unit in units for arch in ("sm_90a", "sm_86") if arch in unit.archs]
    assert {path.name for path in tmp_path.iterdir()} == {image_name(unit, arch, "cubin") for unit, arch in wanted}
