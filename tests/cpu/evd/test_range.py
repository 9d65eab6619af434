"""Matrices of any size a dtype can hold, on every path of the CPU, and eigenvalues that it cannot hold."""

import numpy as np
import pytest

from spectile import evd
from spectile.evd import load
from spectile.evd.cpu import drivers, lapack
from spectile.evd.cpu import run as cpu_run
from spectile.evd.types import rounded_down
from spectile_study.inputs.spectra import random_hermitian

from ...scales import PATHS, check_path, scaled, scales_of, wide

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


@pytest.mark.parametrize("n", [1, 3, load.STRIP, 2 * load.STRIP + 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_count_both_triangles_and_the_diagonal_once(dtype, n):
    a = random_hermitian(n, np.random.default_rng(n), dtype)
    one_triangle = np.tril(a) + np.triu(np.full_like(a, np.nan), 1)
    assert load.frobenius_of_triangle(one_triangle) == pytest.approx(np.linalg.norm(a), rel=1e-6)
    diagonals = [np.diagonal(a, -k) for k in range(min(n, 5))]
    band = np.where(abs(np.subtract.outer(np.arange(n), np.arange(n))) < 5, a, 0)
    assert load.frobenius_of_diagonals(diagonals) == pytest.approx(np.linalg.norm(band), rel=1e-6)


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


@pytest.mark.parametrize("driver", ["gv", "gvd", "gvx"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_right_where_eigenvalues_are_subnormal(dtype, driver):
    n, power = 20, 70 if np.finfo(dtype).bits == 32 else 520
    rng = np.random.default_rng(7)
    a, b = random_hermitian(n, rng, dtype), np.diag(np.linspace(1, 3, n)).astype(dtype)
    w, v = evd.eigh(scaled(a, -power), scaled(b, power), driver=driver, backend="cpu")
    assert np.isfinite(w).all()
    v = wide(v)
    v /= np.linalg.norm(v, axis=0)
    own = ((v.conj() * (a @ v)).sum(axis=0) / (v.conj() * (b @ v)).sum(axis=0)).real
    assert np.linalg.norm(a @ v - b @ v * own) < 100 * n * np.finfo(dtype).eps


def test_ends_are_the_nearest_numbers_that_are_not_above_them():
    limits, rng = np.finfo(np.float32), np.random.default_rng(1)
    tiny = float(limits.smallest_subnormal)
    ends = [*(rng.standard_normal(500) * 10.0 ** rng.uniform(-50, 45, 500)), 0.0, 1.0, float(limits.max), np.inf]
    ends += [tiny, 0.4 * tiny, 0.6 * tiny, 1 + 1e-12, 2.0**-126 * (1 - 2e-8), 1.0001 * float(limits.max), 1e300]
    for end in [sign * float(end) for end in ends for sign in (1, -1)]:
        low = rounded_down(end, np.dtype(np.float32))
        with np.errstate(over="ignore", under="ignore"):
            assert np.float32(low) == low <= end
            assert low == np.inf or float(np.nextafter(np.float32(low), np.float32(np.inf))) > end


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 32, 33, 70])
def test_few_columns_go_back_as_many_do(columns, dtype):
    rng = np.random.default_rng(4)
    a = random_hermitian(70, rng, dtype)
    reduce = drivers.routine(drivers.name_of("trd", drivers.scalar_of(a.dtype).letter))
    factor, d, e, tau, _ = reduce(np.asfortranarray(a), lower=True)
    q, t = np.eye(70, dtype=dtype, order="F"), np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    lapack.unmtr(factor, tau, q, lower=True)
    z = np.asfortranarray(rng.standard_normal((70, columns)).astype(dtype))
    tz = np.asfortranarray((t @ z).astype(dtype))
    lapack.unmtr(factor, tau, tz, lower=True)
    np.testing.assert_allclose(tz, a @ (q @ z), atol=1e3 * np.finfo(dtype).eps)
