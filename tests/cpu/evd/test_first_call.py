"""The first call of the eigensolver compiles what it launches, all of it side by side."""

from __future__ import annotations

import pytest

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.evd.cuda import run, units
from spectile.evd.types import Subset

KEY = "float64", 32


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[set[Unit]]:
    calls: list[set[Unit]] = []
    monkeypatch.setattr(run, "prepare", lambda *wanted: calls.append(set(wanted)))
    monkeypatch.setattr(run.device, "describe", lambda: TABLE["H200"])
    run._prepare.cache_clear()
    yield calls  # type: ignore[misc]
    run._prepare.cache_clear()


def test_one_kernel_of_a_kind_is_compiled(compiled: list[set[Unit]]) -> None:
    for _ in range(2):
        run.prepare_stages(4096, *KEY, vectors=True, subset=None)
    run.prepare_stages(4200, *KEY, vectors=True, subset=None)
    run.prepare_stages(4096, *KEY, vectors=False, subset=None)
    run.prepare_stages(4096, *KEY, vectors=True, subset=Subset(True, 0, 9), dense=False)
    run.prepare_stages(40_000, *KEY, vectors=True, subset=None)
    band = {units.CHASING[KEY], units.MATRIX["float64"]}
    dense = band | {units.PRODUCTS[KEY], units.PANEL[(*KEY, "cluster_panel_qr")]}
    # So few columns do not fill the device: groups of sweeps follow one another in a launch.
    together = units.SWEEPS[False, 32, True]
    sweeps = {units.SWEEP_TILES[KEY], together}
    back = sweeps | {units.BACK_PANELS[KEY], units.DIVIDE, units.ROOTS, units.VECTORS}
    full, padded, values, few, large = compiled
    assert full == dense | back | {units.LEAVES}
    assert padded == full | {units.PANEL[(*KEY, "panel_qr")]}
    assert units.SWEEPS[False, 32, False] in large and together not in large
    assert dense < values and values - dense <= set(units.STURM.values()) and len(values - dense) == 1
    assert few - set(units.STURM.values()) == band | {units.SWEEP_TILES[KEY], together, units.INVERSE}
