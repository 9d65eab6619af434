"""Matrices of any size a dtype can hold, on every path of a GPU: rotations, cuSOLVER alone and in batches, two stages.

CuPy's own kernels take numbers of single precision below 2^-126 for 0.
"""

import numpy as np
import pytest

from spectile import evd

from ...scales import PATHS, check_path, scales_of

cupy = pytest.importorskip("cupy")
from spectile.evd.cuda import choose  # noqa: E402
from spectile.evd.cuda import run as gpu  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
ON_GPU = [path for path in PATHS if not path.startswith(("ev", "gv"))]
SINGLE = ("float32", "complex64")  # whose range is met; large references take seconds each
FEW = ("whole", "index", "value", "A v = w B v", "wide band", "tridiagonal")


def check(path, n, dtype, scale):
    check_path(path, n, dtype, scale, backend="cuda", given=cupy.asarray, host=cupy.asnumpy)


@pytest.mark.parametrize("path", ON_GPU)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 40, 100])
def test_every_path_takes_every_size(n, dtype, path):
    for scale in scales_of(dtype, n):
        check(path, n, dtype, scale)


@pytest.mark.parametrize("path", ON_GPU)
@pytest.mark.parametrize("dtype", SINGLE)
@pytest.mark.parametrize("n", [300, 700])
def test_smallest_and_largest_numbers(n, dtype, path):
    smallest, small, *_, largest = scales_of(dtype, n)
    for scale in (smallest, small, largest):
        check(path, n, dtype, scale)


@pytest.mark.parametrize("path", FEW)
@pytest.mark.parametrize("dtype", SINGLE)
def test_smallest_and_largest_numbers_of_large_matrices(dtype, path):
    smallest, *_, largest = scales_of(dtype, 1500)
    for scale in (smallest, largest):
        check(path, 1500, dtype, scale)


@pytest.mark.parametrize("vendor", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_solvers_of_one_matrix(dtype, vendor, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: vendor)
    for widened in (0, 10_000):
        monkeypatch.setattr(gpu, "widened_order", lambda device, order=widened: order)
        for scale in scales_of(dtype, 130):
            for path in ("whole", "upper", "index", "value", "A B v = w v"):
                check(path, 130, dtype, scale)


@pytest.mark.parametrize("n", [3, 30, 100, 1300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_beyond_the_range_are_an_error(dtype, n):
    a = cupy.full((n, n), np.finfo(dtype).max / 2, dtype)
    calls = [
        lambda: evd.eigh(a),
        lambda: evd.eigvalsh(cupy.stack([a, a])),
        lambda: evd.eigh(a, subset_by_index=(n - 1, n - 1)),
        lambda: evd.eigvalsh(a, cupy.eye(n, dtype=dtype) / 4),
        lambda: evd.eigvalsh_tridiagonal(a[0].real * 2, a[1, 1:].real),
        lambda: evd.eigvals_banded(a[: min(n, 100)]),
    ]
    for call in calls:
        with pytest.raises(OverflowError, match="beyond the range of float"):
            call()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 40, 100, 300, 1300])
def test_every_path_comes_to_an_end(n, dtype, bad):
    """Without the check, too: what is not finite is an error, or in small matrices NaN."""
    a = cupy.eye(n, dtype=dtype)
    a[n - 1, 1] = bad
    calls = [
        lambda: evd.eigh(a, check_finite=False),
        lambda: evd.eigvalsh(a, check_finite=False),
        lambda: evd.eigh(cupy.stack([a, a]), check_finite=False),
        lambda: evd.eigh(a, subset_by_index=(0, 1), check_finite=False),
        lambda: evd.eigh(a, cupy.eye(n, dtype=dtype), check_finite=False),
        lambda: evd.eigh(cupy.eye(n, dtype=dtype), a, check_finite=False),
        lambda: evd.eigh_tridiagonal(a[n - 1].real, a[n - 1, 1:].real, check_finite=False),
        lambda: evd.eig_banded(a[[0, n - 1]], lower=True, check_finite=False),
    ]
    for call in calls:
        try:
            found = call()
        except np.linalg.LinAlgError:
            continue
        assert bool(cupy.isnan(found[0]).any())
