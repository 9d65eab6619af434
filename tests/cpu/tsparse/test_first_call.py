"""The first product compiles side by side what products of its kind may launch, each numeric kernel as a unit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.tsparse import types
from spectile.tsparse.cuda import factors, plans, units

DEVICE = TABLE["H200"]
#: Rows and entries of A that lanes and blocks count, by warps and by blocks.
BY_WARPS, BY_BLOCKS = (1_000_000, 5_000_000), (2_000, 40_000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Unit, ...]]:
    calls: list[tuple[Unit, ...]] = []
    monkeypatch.setattr(units, "prepare", lambda *wanted: calls.append(wanted))
    monkeypatch.setattr(units, "describe", lambda: DEVICE)
    units._prepare_rows.cache_clear()
    yield calls  # type: ignore[misc]
    units._prepare_rows.cache_clear()


def test_one_symbolic_kernel_is_compiled_and_all_numeric_ones_but_the_rare(compiled: list[tuple[Unit, ...]]) -> None:
    for _ in range(2):
        units.prepare_rows("float64", 0, *BY_BLOCKS, 2_000, 40_000)
    units.prepare_rows("float64", 0, *BY_WARPS, 500, 1_000)
    first, second = map(set, compiled)
    assert units.SYMBOLIC[True] in first - second and units.SYMBOLIC[False] in second - first
    numeric = {unit for family in (units.SORT, units.WINDOW, units.HASH) for unit in family["float64"].values()}
    known = {units.CHECK["float64"], units.ANALYSIS["float64"]}
    assert second == {units.SYMBOLIC[False], *known, *numeric}
    # No row of so few columns, of a B of so few entries, goes to a block.
    blocks = {units.BLOCK["float64"][f"numeric_block_{kind}"] for kind in ("small", "large")}
    assert first == {units.SYMBOLIC[True], units.SYMBOLIC_BLOCK, *known, *numeric, *blocks}


def test_the_slowest_unit_is_compiled_from_the_beginning(compiled: list[tuple[Unit, ...]]) -> None:
    units.prepare_rows("float32", 0, *BY_WARPS, 10**6, 10**6)
    assert compiled[0][0] is units.SYMBOLIC[False]


def test_each_numeric_kernel_is_alone_in_its_unit() -> None:
    families = (units.SORT, units.WINDOW, units.HASH, units.WIDE_HASH, units.BLOCK)
    reuse = (units.REUSE_WINDOW, units.REUSE_HASH, units.REUSE_BLOCK)
    for family in (*families, *reuse):
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
    monkeypatch.setattr(factors, "_Check", lambda *sizes: lambda *addresses: None)
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
            factors._check(pair[which], precision, counters, which, types.BY_ENTRY, pair)  # type: ignore[arg-type]
    assert asked == [("float64", 0, 30, 500, 20, 300)] * 2  # a plan for each factor
