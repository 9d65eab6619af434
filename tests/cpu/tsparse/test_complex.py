"""Complex factors: values within their bound, on patterns that are kept, in both precisions."""

import ctypes

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm, symbolic

from ...on_host import host_library
from .test_limits import least


def random(m, n, dtype, seed, density=0.2):
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    values = rng.standard_normal(A.nnz) * 2.0 ** rng.integers(-9, 9, A.nnz)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(A.nnz)
    A.data = values.astype(dtype)
    return A


def exact(A, B):
    return A.toarray().astype(np.clongdouble) @ B.toarray().astype(np.clongdouble)


def within(C, A, B, precision=None):
    bound = error_bound(A, B, precision=precision)
    np.testing.assert_array_equal(C.indices, bound.indices)
    rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
    error = np.abs(C.data - exact(A, B)[rows, C.indices])
    assert (error <= bound.data).all(), (error / bound.data).max()
    assert bound.data.max(initial=0) < 1e-3 * abs(C.data).max(initial=1)


@pytest.mark.parametrize("left", [np.complex64, np.complex128])
@pytest.mark.parametrize("right", [np.int16, np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("precision", [None, "float64", "float32"])
def test_products_are_within_their_bound(left, right, precision):
    A, B = random(40, 60, left, 1), random(60, 50, right, 2)
    C = spgemm(A, B, precision=precision, backend="cpu")
    wanted = np.result_type(left, right) if precision is None else {"float64": "c16", "float32": "c8"}[precision]
    assert C.dtype == wanted
    within(C, A, B, precision)
    again = symbolic(A, B, backend="cpu").multiply(A, B, precision=precision)
    np.testing.assert_array_equal(again.data, C.data)
    limited = spgemm(A, B, precision=precision, memory_limit=10**6, backend="cpu")
    np.testing.assert_array_equal(limited.data, C.data)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil"])
def test_every_format_with_duplicates(form):
    rng = np.random.default_rng(3)
    row, column = rng.integers(0, 12, (2, 90))
    M = sp.coo_array((rng.standard_normal(90) + 1j * rng.standard_normal(90), (row, column)), shape=(12, 12))
    if form != "coo":
        M = M.asformat(form)
    within(spgemm(M, M, backend="cpu"), M, M)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_numeric_takes_values_of_a_pattern(dtype):
    A, B = random(30, 20, dtype, 4), random(20, 40, dtype, 5)
    pattern = symbolic(A, B, backend="cpu")
    data = pattern.numeric(A.data, B.data)
    assert data.dtype == dtype
    np.testing.assert_array_equal(data, spgemm(A, B, backend="cpu").data)
    with pytest.raises(TypeError, match="all complex64 or all complex128"):
        pattern.numeric(A.data.real.copy(), B.data)


def test_a_limit_is_kept():
    A = random(3000, 3000, np.complex128, 6, 0.001)
    enough = least(lambda limit: spgemm(A, A, memory_limit=limit, backend="cpu"))
    np.testing.assert_array_equal(
        spgemm(A, A, memory_limit=enough, backend="cpu").data, spgemm(A, A, backend="cpu").data
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 1j * np.inf, complex(1, np.nan)])
def test_what_is_not_finite_is_named(value):
    A = random(10, 10, np.complex128, 7)
    A.data[3] = value
    with pytest.raises(ValueError, match=r"A holds .*(nan|inf).* at row"):
        spgemm(A, A.copy(), backend="cpu")
    assert not np.isfinite(spgemm(A, A, check_finite=False, backend="cpu").data).all()


def test_values_beyond_single_precision_are_refused():
    A = sp.csr_array([[1e300 + 1j]])
    with pytest.raises(ValueError, match="beyond the range of float32"):
        spgemm(A, A, precision="float32", backend="cpu")


def test_long_doubles_are_exact_or_refused():
    A = sp.csr_array(np.array([[1 + 2j]], np.clongdouble))
    assert spgemm(A, A, backend="cpu").data[0] == -3 + 4j
    A.data += np.longdouble(2) ** -60
    with pytest.raises(TypeError, match="does not hold"):
        spgemm(A, A, backend="cpu")


def test_the_device_adds_products_within_the_bound_of_one(tmp_path):
    """The functions of complex values, compiled for the host: three units of the product and one of the sum."""
    from importlib.resources import files

    shims = """
#include <cmath>
#define __device__
#define __forceinline__ inline
static inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
template <class T> T __shfl_sync(unsigned, T value, int, int) { return value; }
"""
    source = (files("spectile.tsparse.cuda") / "value.cuh").read_text()
    call = """
extern "C" void add(int n, const float* a, const float* b, float* sums) {
    for (int i = 0; i < n; ++i) {
        const float *x = a + 2 * i, *y = b + 2 * i, *z = sums + 2 * i;
        const Complex<float> before(z[0], z[1]);
        const Complex<float> sum = add_product(Complex<float>(x[0], x[1]), Complex<float>(y[0], y[1]), before);
        const Complex<double> wide(__shfl_sync(0u, sum, 0));
        sums[2 * i] = float(wide.x), sums[2 * i + 1] = float(wide.y);
    }
}
"""
    library = host_library(tmp_path / "value", shims + source + call, "-ffp-contract=off")
    rng = np.random.default_rng(8)
    a, b, sums = (rng.standard_normal(2000).astype(np.float32).view(np.complex64) for _ in range(3))
    out = sums.copy()
    library.add(
        1000, a.ctypes.data_as(ctypes.c_void_p), b.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)
    )
    wide = a.astype(complex) * b
    exact = sums + wide
    assert (abs(out - exact) <= 2.0**-24 * (3 * abs(wide) + abs(exact))).all()
