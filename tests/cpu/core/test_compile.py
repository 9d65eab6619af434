"""Every CUDA unit compiles with NVRTC for exactly the architectures that it declares; no GPU is needed.

Of architectures that compile the same text one is in the daily run; `pytest -m slow tests/cpu/core/test_compile.py`
compiles for the others, too (about four minutes on two cores).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spectile.core import compile as compile_module
from spectile.core.compile import PORTABLE, Unit, _image, choose_image
from spectile.core.devices import TABLE

#: Every module that declares CUDA units, as its UNITS.
PACKAGES = (
    *(f"spectile.{system}.cuda.units" for system in ("nearsparse", "tsparse", "evd", "kpm")),
    "spectile_study.cases.spamm.ablation",
    "spectile_study.cases.evd.ozaki",
    "spectile_study.cases.evd.wide",
    "spectile_study.cases.kpm.peaks",
    "spectile_study.cases.kpm.variants",
)


#: Architectures whose text is another's, as `test_no_text_tells_these_architectures_apart` makes sure.
SAME_TEXT = {"sm_86": "sm_80", "sm_89": "sm_80", "sm_103": "sm_100", "sm_121": "sm_120"}


def _units() -> list[tuple[str, str, Unit]]:
    found = []
    for package in PACKAGES:
        units = importlib.import_module(package).UNITS
        for number, unit in enumerate(units):
            for arch in unit.archs:
                found.append(
                    (f"{package}-{number}-{'+'.join(map(lambda s: Path(s).stem, unit.sources))}-{arch}", arch, unit)
                )
    return found


def _same_text(arch: str, unit: Unit) -> bool:
    return SAME_TEXT.get(arch) in unit.archs


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, Unit], Future[bytes]]]:
    """Compile the units of the chosen tests in parallel, with one process for each core."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = [item.callspec.params for item in mine if "unit" in item.callspec.params]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        keys = dict.fromkeys((params["arch"], params["unit"]) for params in chosen)
        yield {(arch, unit): pool.submit(unit.cubin, arch) for arch, unit in keys}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    ("arch", "unit"),
    [
        pytest.param(arch, unit, id=name, marks=[pytest.mark.slow] if _same_text(arch, unit) else [])
        for name, arch, unit in _units()
    ],
)
def test_unit_compiles(arch: str, unit: Unit, compiled: dict[tuple[str, Unit], Future[bytes]]) -> None:
    assert compiled[arch, unit].result()[:4] == b"\x7fELF"


def test_no_text_tells_these_architectures_apart() -> None:
    """What a unit says of `__CUDA_ARCH__` is the same for two architectures of `SAME_TEXT`."""
    comparison = re.compile(r"__CUDA_ARCH__\s*(>=|<=|==|!=|>|<)\s*(\d+)")
    seen = set()
    for unit in {unit for _, _, unit in _units()}:
        text = unit.source()
        found = comparison.findall(text)
        assert len(found) == text.count("__CUDA_ARCH__"), f"{unit} says something else of __CUDA_ARCH__"
        seen |= set(found)
    assert seen
    holds = {">=": int.__ge__, "<=": int.__le__, "==": int.__eq__, "!=": int.__ne__, ">": int.__gt__, "<": int.__lt__}
    for arch, other in SAME_TEXT.items():
        mine, its = (10 * int(name.removeprefix("sm_")) for name in (arch, other))
        for sign, bound in seen:
            assert holds[sign](mine, int(bound)) == holds[sign](its, int(bound)), f"{arch} {sign} {bound}"


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


def test_cache_holds_whole_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    unit = Unit("spectile.core", (), archs=("sm_80",))

    def refused(*_: object) -> bytes:
        raise RuntimeError("NVRTC refused it")

    monkeypatch.setattr(Unit, "cubin", refused)
    with pytest.raises(RuntimeError, match="refused"):
        _image(unit, "sm_80", "cubin")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.setattr(Unit, "cubin", lambda *_: b"code")
    path = _image(unit, "sm_80", "cubin")
    monkeypatch.setattr(Unit, "cubin", refused)  # the second time the file is there
    assert _image(unit, "sm_80", "cubin") == path and path.read_bytes() == b"code"
    assert [place for place in tmp_path.rglob("*") if place.is_file()] == [path]
    # What changes the machine code has a file of its own.
    monkeypatch.setattr(Unit, "cubin", lambda *_: b"code")
    others = [
        replace(unit, defines={"N": "2"}),
        replace(unit, options=("-lineinfo",)),
        replace(unit, sources=("a.cu",)),
    ]
    monkeypatch.setattr(Unit, "source", lambda self: "".join(self.sources))
    assert (
        len(
            {
                path,
                *(_image(other, "sm_80", "cubin") for other in others),
                _image(unit, "sm_90a", "cubin"),
            }
        )
        == 5
    )


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


def test_units_are_compiled_side_by_side_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_module, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(compile_module, "actual_arch", lambda: "sm_90")
    together = threading.Barrier(2, timeout=30)
    compiled = []

    def cubin(unit: Unit, arch: str) -> bytes:
        together.wait()
        compiled.append((unit.defines["N"], arch))
        return b"code"

    monkeypatch.setattr(Unit, "cubin", cubin)
    units = [Unit("spectile.core", (), archs=PORTABLE, defines={"N": str(number)}) for number in range(2)]
    compile_module.prepare(*units)
    assert all(map(compile_module.is_compiling, units))
    compile_module.prepare(*units)
    assert {_image(unit, "sm_90a", "cubin").read_bytes() for unit in units} == {b"code"}
    assert not any(map(compile_module.is_compiling, units)) and not compile_module._UNDER_WAY
    assert sorted(compiled) == [("0", "sm_90a"), ("1", "sm_90a")]


def test_what_needs_one_unit_waits_for_that_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_module, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(compile_module, "actual_arch", lambda: "sm_90")
    monkeypatch.setattr(compile_module.os, "cpu_count", lambda: 2)
    done = threading.Event()

    def cubin(unit: Unit, arch: str) -> bytes:
        if unit.defines["N"] == "slow":
            assert done.wait(30)
        elif unit.defines["N"] == "wrong":
            raise RuntimeError("NVRTC refused it")
        return b"code"

    monkeypatch.setattr(Unit, "cubin", cubin)
    slow, quick, wrong = (
        Unit("spectile.core", (), archs=("sm_90a",), defines={"N": name}) for name in ("slow", "quick", "wrong")
    )
    compile_module.prepare(slow, quick, wrong)
    assert _image(quick, "sm_90a", "cubin").read_bytes() == b"code" and compile_module.is_compiling(slow)
    for _ in range(2):  # what failed is tried again
        with pytest.raises(RuntimeError, match="refused"):
            _image(wrong, "sm_90a", "cubin")
    done.set()
    assert _image(slow, "sm_90a", "cubin").read_bytes() == b"code"


def test_shipped_machine_code_is_taken_where_its_text_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    unit, other = (Unit("spectile.core", (), archs=("sm_80",), defines={"N": number}) for number in "12")
    shipped = tmp_path / "cubins" / compile_module.image_name(unit, "sm_80", "cubin")
    shipped.parent.mkdir()
    shipped.write_bytes(b"shipped")
    monkeypatch.setattr(compile_module.resources, "files", lambda package: tmp_path)
    monkeypatch.setattr(Unit, "cubin", lambda self, arch: b"compiled")
    assert _image(unit, "sm_80", "cubin").read_bytes() == b"shipped"
    assert _image(other, "sm_80", "cubin").read_bytes() == b"compiled"
