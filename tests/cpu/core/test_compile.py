"""Every CUDA unit compiles with NVRTC for exactly the architectures that it declares; no GPU is needed."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from spectile.core.compile import Unit, _cached_cubin, _runs_on

#: Every module that declares CUDA units, as its UNITS.
PACKAGES = (
    *(f"spectile.{system}.cuda.units" for system in ("nearsparse", "tsparse", "evd", "kpm")),
    "spectile_study.cases.evd.ozaki",
    "spectile_study.cases.kpm.peaks",
)


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


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, Unit], Future[bytes]]]:
    """Compile the units of the chosen tests beside one another, a process a core."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    chosen = [item.callspec.params for item in request.session.items if "unit" in getattr(item, "fixturenames", ())]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        keys = dict.fromkeys((params["arch"], params["unit"]) for params in chosen)
        yield {(arch, unit): pool.submit(unit.cubin, arch) for arch, unit in keys}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("arch", "unit"), [pytest.param(arch, unit, id=name) for name, arch, unit in _units()])
def test_unit_compiles(arch: str, unit: Unit, compiled: dict[tuple[str, Unit], Future[bytes]]) -> None:
    assert compiled[arch, unit].result()[:4] == b"\x7fELF"


def test_undeclared_architecture_is_refused() -> None:
    unit = Unit("spectile.core", (), archs=("sm_80",))
    with pytest.raises(ValueError, match="not written for sm_70"):
        unit.cubin("sm_70")


@pytest.mark.parametrize(
    ("device", "arch"),
    [
        ("sm_80", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_90", "sm_90a"),
        ("sm_103", "sm_100"),
        ("sm_75", None),
        ("sm_120", None),
    ],
)
def test_device_takes_the_nearest_architecture_that_runs_on_it(device: str, arch: str | None) -> None:
    assert _runs_on(("sm_80", "sm_90", "sm_90a", "sm_100"), device) == arch


def test_device_of_a_later_minor_version_takes_no_code_of_one_device_alone() -> None:
    assert _runs_on(("sm_90a",), "sm_93") is None


def test_cache_holds_whole_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    unit = Unit("spectile.core", (), archs=("sm_80",))

    def refused(*_: object) -> bytes:
        raise RuntimeError("NVRTC refused it")

    monkeypatch.setattr(Unit, "cubin", refused)
    with pytest.raises(RuntimeError, match="refused"):
        _cached_cubin(unit, "sm_80")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Unit, "cubin", lambda *_: b"code")
    path = _cached_cubin(unit, "sm_80")
    monkeypatch.setattr(Unit, "cubin", refused)  # the second time the file is there
    assert _cached_cubin(unit, "sm_80") == path and path.read_bytes() == b"code"
    assert [*tmp_path.iterdir()] == [path]
    # What changes the machine code has a file of its own.
    monkeypatch.setattr(Unit, "cubin", lambda *_: b"code")
    others = [
        replace(unit, defines={"N": "2"}),
        replace(unit, options=("-lineinfo",)),
        replace(unit, sources=("a.cu",)),
    ]
    monkeypatch.setattr(Unit, "source", lambda self: "".join(self.sources))
    assert len({path, *(_cached_cubin(other, "sm_80") for other in others), _cached_cubin(unit, "sm_90a")}) == 5


def test_sources_follow_one_another_with_their_names() -> None:
    text = Unit("spectile.evd.cuda", ("scalar.cu", "matrix.cu"), archs=("sm_80",)).source()
    folder = resources.files("spectile.evd.cuda")
    first, second = ((folder / name).read_text() for name in ("scalar.cu", "matrix.cu"))
    assert text == f'#line 1 "scalar.cu"\n{first}\n#line 1 "matrix.cu"\n{second}'


@pytest.mark.parametrize("package", [package for package in PACKAGES if package.startswith("spectile.")])
def test_each_gpu_backend_covers_ampere_hopper_blackwell(package: str) -> None:
    declared = {arch for unit in importlib.import_module(package).UNITS for arch in unit.archs}
    assert {"sm_80", "sm_90a", "sm_100"} <= declared
