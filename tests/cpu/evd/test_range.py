"""Matrices of any size a dtype can hold, on every path of the CPU, and eigenvalues that it cannot hold."""

import numpy as np
import pytest

from spectile import evd
from spectile.evd.cpu import run as cpu_run

from ...scales import PATHS, check_path, scales_of

DTYPES = ("float64", "float32", "complex128", "complex64")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 100])
def test_every_path_takes_every_size(n, dtype, path):
    for scale in scales_of(dtype, n):
        check_path(path, n, dtype, scale, backend="cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_two_stages_take_every_size(dtype, monkeypatch):
    monkeypatch.setattr(cpu_run, "by_stages", lambda array, *, vectors: True)
    for scale in scales_of(dtype, 70):
        for path in ("whole", "index", "value"):
            check_path(path, 70, dtype, scale, backend="cpu")


@pytest.mark.parametrize("n", [3, 30, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_beyond_the_range_are_an_error(dtype, n):
    a = np.full((n, n), np.finfo(dtype).max / 2, dtype)
    calls = (
        lambda: evd.eigh(a, backend="cpu"),
        lambda: evd.eigvalsh(np.stack([a, a]), backend="cpu"),
        lambda: evd.eigh(a, subset_by_index=(n - 1, n - 1), backend="cpu"),
        lambda: evd.eigvalsh(a, np.eye(n, dtype=dtype), backend="cpu"),
        lambda: evd.eigvals_banded(a, backend="cpu"),
        lambda: evd.eigvalsh_tridiagonal(a[0].real * 2, a[1, 1:].real, backend="cpu"),
    )
    for call in calls:
        with pytest.raises(OverflowError, match="beyond the range of float"):
            call()
