"""The first product compiles side by side what it launches, each numeric kernel as a unit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.tsparse import types
from spectile.tsparse.cuda import bins, choose, factors, plans, units
from spectile.tsparse.cuda.counters import Head

from ...heads import head_of

DEVICE = TABLE["H200"]
FIRST_SORTS = bins.SYMBOLIC_PLACES["SORT_32"], bins.NUMERIC_PLACES["SORT_32"]
#: Rows and entries of A that lanes and blocks count, by warps and by blocks.
BY_WARPS, BY_BLOCKS = (1_000_000, 5_000_000), (2_000, 40_000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Unit, ...]]:
    calls: list[tuple[Unit, ...]] = []
    monkeypatch.setattr(units, "prepare", lambda *wanted: calls.append(wanted))
    monkeypatch.setattr(units, "describe", lambda: DEVICE)
    for asked in (units._prepare_rows, units._prepare_numeric):
        asked.cache_clear()
    yield calls  # type: ignore[misc]
    for asked in (units._prepare_rows, units._prepare_numeric):
        asked.cache_clear()


def test_what_counts_rows_is_compiled_at_first(compiled: list[tuple[Unit, ...]]) -> None:
    for _ in range(2):
        units.prepare_rows("float64", "dd", *BY_BLOCKS, 2_000, 40_000)
    units.prepare_rows("float64", "dd", *BY_WARPS, 500, 1_000)
    first, second = map(set, compiled)
    known = {
        units.CHECK["float64", "d"],
        units.ANALYSIS,
        units.PLACE["float64"],
        units.SYMBOLIC_TABLES,
        units.SYMBOLIC_SORTS,
    }
    # No row of so few columns, of a B of so few entries, goes to a block.
    assert second == {units.SYMBOLIC_WINDOWS[False], *known}
    assert first == {units.SYMBOLIC_WINDOWS[True], units.SYMBOLIC_BLOCK, *known}


def _heads(symbolic: dict[int, int], numeric: dict[int, int]) -> Head:
    counts = {f"SYMBOLIC+{number}": rows for number, rows in symbolic.items()}
    return head_of(**counts, **{f"NUMERIC+{number}": rows for number, rows in numeric.items()})


@pytest.mark.parametrize(
    ("symbolic", "numeric", "columns", "spare"),
    [
        ({0: 2000}, {1: 1990, 0: 10}, 2000, 0),  # cold.py: 20 entries a row, 2000 columns
        ({0: 2000}, {1: 2000}, 2000, 1),
        ({1: 50}, {2: 40, 8: 10}, 8000, 0),
        ({4: 9, 5: 90}, {5: 9, 6: 40, 7: 40, 8: 10}, 10**6, 0),
        (*(dict(zip(range(first, first + 3), (4, 3, 2), strict=True)) for first in FIRST_SORTS), 500, 0),
        ({4: 9}, {5: 9}, 10**8, 1),
        ({}, {}, 10, 0),
    ],
)
def test_the_analysis_foresees_what_fills_the_rows(
    symbolic: dict[int, int], numeric: dict[int, int], columns: int, spare: int
) -> None:
    """At most one kernel too many is compiled for rows of one kind, and none is missed."""
    both = _heads(symbolic, numeric)
    foreseen = choose.foreseen(both, columns, 20.0)
    launched = {(one.family, one.name) for one in choose.numeric(both, 2000, columns, 20.0, 8, TABLE["H200"])}
    assert launched <= set(foreseen) and len(foreseen) == len(launched) + spare


def test_each_kernel_of_the_numeric_phase_is_compiled_once(compiled: list[tuple[Unit, ...]]) -> None:
    names = (("window", "numeric_window_2048_32"), ("sort", "numeric_sort_32_8"))
    for reuse in (False, True, False):
        units.prepare_numeric("float32", names, reuse)
    sort = units.NUMERIC["sort"]["float32"]["numeric_sort_32_8"]
    assert compiled == [
        (families["window"]["float32"]["numeric_window_2048_32"], sort) for families in (units.NUMERIC, units.REUSE)
    ]


def test_each_numeric_kernel_is_alone_in_its_unit() -> None:
    for family in (*units.NUMERIC.values(), *units.REUSE.values()):
        for kernels in family.values():
            for name, unit in kernels.items():
                assert unit.defines["NAME"] == name and unit in units.UNITS
                assert unit.source().count("__global__") == 1
    assert len(set(units.UNITS)) == len(units.UNITS)


def test_only_a_plan_of_new_sizes_asks_what_is_compiled(
    compiled: list[tuple[Unit, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated call finds the plan of its check and nothing else."""
    pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(units, "prepare_rows", lambda *sizes: asked.append(sizes))
    monkeypatch.setattr(factors, "_bound_check", lambda *sizes: lambda *addresses: None)
    monkeypatch.setattr(plans, "_kept", plans._Kept())

    def matrix(rows: int, columns: int, nnz: int) -> SimpleNamespace:
        def array(size: int, dtype: str) -> SimpleNamespace:
            return SimpleNamespace(size=size, dtype=np.dtype(dtype), data=SimpleNamespace(ptr=0))

        shape, indptr = (rows, columns), array(rows + 1, "i4")
        return SimpleNamespace(shape=shape, indptr=indptr, indices=array(nnz, "i4"), data=array(nnz, "f8"))

    pair = [matrix(30, 40, 500), matrix(40, 20, 300)]
    counters = SimpleNamespace(device=0, stream=0, head=0)
    precision = types.lookup("float64")
    for _ in range(3):
        for which in range(2):
            factors._check(pair[which:][:1], precision, counters, which, pair)  # type: ignore[arg-type]
    assert asked == [("float64", "dd", 30, 500, 20, 300)] * 2  # a plan for each factor
