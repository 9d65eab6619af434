"""The first call of KPM compiles what comes after the look at a matrix beside it."""

from __future__ import annotations

import pytest

from spectile.core.compile import Unit
from spectile.kpm.cuda import inspection
from spectile.kpm.cuda.common import inspect_unit, vectors_unit
from spectile.kpm.cuda.units import UNITS


def test_start_vectors_are_compiled_beside_the_look_at_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[Unit, ...]] = []
    monkeypatch.setattr(inspection, "prepare", lambda *units: compiled.append(units))
    inspection._prepared.cache_clear()
    monkeypatch.setattr(inspection, "is_compiling", lambda unit: False)
    for _ in range(2):
        assert inspection._prepared("sm_90", "float64", False) == inspect_unit("float64")
    inspection._prepared.cache_clear()
    assert compiled == [(inspect_unit("float64"), vectors_unit("float64"))]
    assert {unit for units in compiled for unit in units} <= set(UNITS)
