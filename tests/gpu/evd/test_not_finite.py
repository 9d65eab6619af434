"""NaN and infinity anywhere in a matrix are told, whichever thread of a kernel meets them."""

import math

import numpy as np
import pytest

from spectile import evd
from spectile_study.inputs.spectra import random_hermitian

cupy = pytest.importorskip("cupy")
from spectile.evd.cuda import choose  # noqa: E402
from spectile.evd.cuda.load import load_matrix  # noqa: E402
from spectile.evd.cuda.matrix import as_array, zero_matrix  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
#: Threads of a block that searches.
THREADS = 256


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_every_thread_finds_what_it_alone_meets(overwrite, lower, dtype):
    n = THREADS + 20
    array = as_array(zero_matrix(n, n, dtype), n, n)
    # The longest column of the triangle: from row 0 on.
    column = 0 if lower else n - 1
    parts = (1, 1j) if np.dtype(dtype).kind == "c" else (1,)
    for row in range(n):
        for part in parts[: 1 if row == column else 2]:
            for value in (np.nan, np.inf, -np.inf, -(2.0**40)):
                array[...] = 1
                array[row, column] = complex(0, value) if part == 1j else value
                if math.isfinite(value):
                    assert load_matrix(array, lower=lower, check_finite=True, overwrite=overwrite)[1] == -42
                    continue
                with pytest.raises(ValueError, match="holds NaN or infinity"):
                    load_matrix(array, lower=lower, check_finite=True, overwrite=overwrite)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("call", [evd.eigh, evd.eigvalsh, evd.tridiagonalize])
def test_two_stages_tell_whichever_thread_meets_it(call, lower, dtype, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    n = THREADS + 45
    given = cupy.asarray(random_hermitian(n, np.random.default_rng(n), dtype))
    for number in range(n):
        row, column = (number, 0) if lower else (0, number)
        kept = given[row, column].copy()
        given[row, column] = np.nan
        with pytest.raises(ValueError, match="holds NaN or infinity"):
            call(given, lower=lower)
        given[row, column] = kept
    call(given, lower=lower)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20, 20), (300, 300), (1700, 1700), (3, 100, 100), (2, 20, 20)])
@pytest.mark.parametrize("generalized", [False, True])
def test_every_path_tells_of_any_place(shape, generalized, dtype):
    rng = np.random.default_rng(shape[-1])
    n = shape[-1]
    a = cupy.asarray(np.broadcast_to(random_hermitian(n, rng, dtype), shape).copy())
    b = (cupy.eye(n, dtype=dtype),) if generalized else ()
    places = [(0, 0), (n - 1, n - 1), (n - 1, 0), *np.sort(rng.integers(0, n, (5, 2)))[:, ::-1]]
    for row, column in places:
        for bad in (np.nan, np.inf):
            broken = a.copy()
            broken[(..., row, column) if len(shape) == 2 else (-1, row, column)] = bad
            with pytest.raises(ValueError, match="holds NaN or infinity"):
                evd.eigh(broken, *b)
