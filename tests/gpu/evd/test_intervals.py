"""Intervals whose ends are eigenvalues, and batches of parts by value, on every path of a GPU."""

import pytest

from ...intervals import check_batches, check_ends

cupy = pytest.importorskip("cupy")
from spectile.evd.cuda import choose  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")


@pytest.mark.parametrize("solver", ["parts", "whole", "vendor"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("copies", [1, 2, 4, 20])
def test_all_copies_of_an_eigenvalue_or_none(copies, dtype, solver, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: solver == "vendor")
    monkeypatch.setattr(choose, "WHOLE_ORDER", 0 if solver == "parts" else 1000)
    check_ends(copies, dtype, backend="cuda", given=cupy.asarray)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_matrices(dtype):
    for copies in (1, 2):
        check_ends(copies, dtype, backend="cuda", given=cupy.asarray, orders=16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 40, 100, 700])
def test_batches_by_value(n, dtype):
    check_batches(n, dtype, backend="cuda", given=cupy.asarray)
