"""Every CUDA unit compiles with NVRTC for exactly the architectures that it declares; no GPU is needed."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from spectile.gpu.compile import Unit

SYSTEMS = ("spamm", "tsparse", "evd", "kpm")


def _units() -> list[tuple[str, str, Unit]]:
    found = []
    for system in SYSTEMS:
        if importlib.util.find_spec(f"spectile.{system}.gpu") is None:
            continue
        units = importlib.import_module(f"spectile.{system}.gpu").UNITS
        for number, unit in enumerate(units):
            for arch in unit.archs:
                found.append(
                    (f"{system}-{number}-{'+'.join(map(lambda s: Path(s).stem, unit.sources))}-{arch}", arch, unit)
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
    unit = Unit("gpu", (), archs=("sm_80",))
    with pytest.raises(ValueError, match="not written for sm_70"):
        unit.cubin("sm_70")


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_gpu_backend_covers_ampere_hopper_blackwell(system: str) -> None:
    if importlib.util.find_spec(f"spectile.{system}.gpu") is None:
        pytest.skip(f"{system} has no CUDA backend")
    declared = {arch for unit in importlib.import_module(f"spectile.{system}.gpu").UNITS for arch in unit.archs}
    assert {"sm_80", "sm_90a", "sm_100"} <= declared
