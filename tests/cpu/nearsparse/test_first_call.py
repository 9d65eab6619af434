"""The first call of a product compiles what it launches, all of it side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.nearsparse.cuda import product
from spectile.nearsparse.cuda.units import NORM_UNITS, SEARCH_UNITS, SURVEY_UNITS
from spectile.nearsparse.types import PRECISIONS, Request


def matrix(m: int, n: int, dtype: str) -> Any:
    itemsize = np.dtype(dtype).itemsize
    memory = SimpleNamespace(ptr=1 << 20)
    return SimpleNamespace(
        shape=(m, n), ndim=2, strides=(n * itemsize, itemsize), itemsize=itemsize, dtype=np.dtype(dtype), data=memory
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Unit, ...]]:
    calls: list[tuple[Unit, ...]] = []
    monkeypatch.setattr(product, "prepare", lambda *units: calls.append(units))
    monkeypatch.setattr(product, "_PREPARED", {})
    monkeypatch.setattr(product.device, "describe", lambda: TABLE["H200"])
    return calls


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [256, 4096])
def test_what_a_call_launches_is_compiled_at_once_and_once(
    compiled: list[tuple[Unit, ...]], precision: str, n: int
) -> None:
    row = PRECISIONS[precision]
    a, out = matrix(n, n, row.dtype), matrix(n, n, row.output)
    choice = product.prepared_choice(a, a, out, Request(precision, tau=1.0), counts=False)
    assert product.prepared_choice(a, a, out, Request(precision, tau=2.0), counts=False) == choice
    assert compiled == [(choice.unit, NORM_UNITS[row.dtype])]


def test_searches_and_counts_are_compiled_with_the_product(compiled: list[tuple[Unit, ...]]) -> None:
    a = matrix(256, 256, "float32")
    product.prepared_choice(a, a, a, Request("fp32", rtol_factors=1e-3), counts=True)
    product.prepared_choice(a, a, a, Request("fp32", valid_ratio=0.1), counts=False)
    assert [units[2:] for units in compiled] == [
        (SEARCH_UNITS["error", "float64"], SURVEY_UNITS["float64"]),
        (SEARCH_UNITS["ratio", "float64"],),
    ]
