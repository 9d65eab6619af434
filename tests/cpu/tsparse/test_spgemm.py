"""Sparse products on the CPU: pattern, rounding, the paper's counts, and worded errors."""

import ctypes
from importlib import resources

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spectile.tsparse import error_bound, rounding, spgemm, symbolic
from spectile.tsparse.cpu import kernels

from ...on_host import host_library

PRECISIONS = ("float64", "float32", "tf32", "float16")
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def random(m, n, density, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    A.data = {
        "normal": rng.standard_normal(A.nnz),
        "ones": np.ones(A.nnz),
        "integers": rng.integers(-2, 3, A.nnz).astype(float),
        "wide": rng.standard_normal(A.nnz) * 2.0 ** rng.integers(-8, 9, A.nnz),
    }[kind]
    return A


def structural(A, B):
    ones = [sp.csr_array((np.ones(len(x.data)), x.indices, x.indptr), shape=x.shape) for x in (A, B)]
    C = sp.csr_array(ones[0] @ ones[1])
    C.sort_indices()
    return C


def assert_product(C, A, B, precision="float64"):
    expected = structural(sp.csr_array(A), sp.csr_array(B))
    np.testing.assert_array_equal(C.indptr, expected.indptr)
    np.testing.assert_array_equal(C.indices, expected.indices)
    bound = error_bound(A, B, precision=precision)
    exact = (sp.csr_array(A.astype(np.longdouble)) @ sp.csr_array(B.astype(np.longdouble))).toarray()
    rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
    error = np.abs(C.data - exact[rows, C.indices])
    assert (error <= bound.data).all(), (error / bound.data).max()


shapes = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 70))


@QUICK
@given(
    shapes,
    st.floats(0, 0.5),
    st.integers(0, 10**6),
    st.sampled_from(["normal", "ones", "integers", "wide"]),
    st.sampled_from(PRECISIONS),
)
def test_product_is_structural_and_within_its_bound(shape, density, seed, kind, precision):
    m, k, n = shape
    A, B = random(m, k, density, seed, kind), random(k, n, density, seed + 1, kind)
    C = multiply(A, B, precision=precision)
    assert C.shape == (m, n)
    assert C.dtype == (np.float64 if precision == "float64" else np.float32)
    assert_product(C, A, B, precision)


def test_cancelled_entries_stay_stored():
    A = sp.csr_array(np.array([[1.0, -1.0]]))
    B = sp.csr_array(np.array([[3.0], [3.0]]))
    C = multiply(A, B)
    assert C.nnz == 1
    assert C.data[0] == 0


@QUICK
@given(shapes, st.floats(0, 0.4), st.integers(0, 10**6))
def test_products_associate_and_transpose(shape, density, seed):
    m, k, n = shape
    A, B = random(m, k, density, seed, "integers"), random(k, n, density, seed + 1, "integers")
    C = random(n, m, density, seed + 2, "integers")
    left = multiply(multiply(A, B), C)
    right = multiply(A, multiply(B, C))
    np.testing.assert_array_equal(left.toarray(), right.toarray())
    transposed = multiply(sp.csr_array(B.T), sp.csr_array(A.T))
    np.testing.assert_array_equal(multiply(A, B).toarray().T, transposed.toarray())


def test_stored_zeros_are_entries():
    A = sp.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    B = sp.csr_array(np.array([[1.0, 0.0], [0.0, 3.0]]))
    C = multiply(A, B)
    assert C.nnz == 2
    np.testing.assert_array_equal(C.toarray(), [[0.0, 0.0], [0.0, 6.0]])


def test_inputs_are_left_alone():
    A = random(40, 40, 0.2, 20)
    before = A.copy()
    for precision in PRECISIONS:
        multiply(A, A, precision=precision)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(A, name), getattr(before, name))


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_array, sp.dok_array, sp.bsr_array])
def test_every_format_and_both_kinds(make):
    A = make(random(20, 20, 0.2, 3))
    C = multiply(A, A)
    assert isinstance(C, sp.csr_array if isinstance(A, sp.sparray) else sp.csr_matrix)
    np.testing.assert_allclose(C.toarray(), A.toarray() @ A.toarray(), atol=1e-14)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float32, np.float64, np.longdouble])
def test_every_real_dtype(dtype):
    A = sp.csr_array(abs(random(30, 30, 0.2, 4, "integers")).astype(dtype))
    dense = A.toarray().astype(float)
    for precision in PRECISIONS:
        np.testing.assert_array_equal(multiply(A, A, precision=precision).toarray(), dense @ dense)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("index", [">i4", ">i8"])
def test_indices_of_the_other_byte_order_are_as_valid(form, index):
    A = random(20, 20, 0.2, 3).asformat(form)
    wanted = multiply(A, A).toarray()
    for name in ("indices", "indptr", "row", "col"):
        if hasattr(A, name):
            setattr(A, name, getattr(A, name).astype(index))
    A.data = A.data.astype(">f8")
    np.testing.assert_array_equal(multiply(A, A).toarray(), wanted)


def test_unsorted_and_duplicate_entries():
    indptr, indices = np.array([0, 4, 4, 6]), np.array([2, 0, 2, 1, 2, 0])
    A = sp.csr_array((np.arange(1.0, 7.0), indices, indptr), shape=(3, 3))
    before = A.copy()
    C = multiply(A, A)
    np.testing.assert_allclose(C.toarray(), A.toarray() @ A.toarray())
    assert C.has_sorted_indices
    np.testing.assert_array_equal(A.indices, before.indices)
    np.testing.assert_array_equal(A.data, before.data)


@pytest.mark.parametrize("columns", [50, 4_000, 300_000, 900_000])
@pytest.mark.parametrize("limited", [False, True])
def test_rows_of_every_length_are_sorted_over_every_distance(columns, limited):
    """Short and long, in runs and scattered, over one word of the coarsest bitmap and several."""
    rng, lengths = np.random.default_rng(columns), [0, 1, 2, 5, 12, 13, 16, 17, 40, 65, 400, 3000]
    rows = [np.sort(rng.choice(columns, min(n, columns), replace=False)) for n in lengths]
    rows += [np.arange(first, min(first + 90, columns)) for first in (0, 17, columns - 30)]
    indptr = np.cumsum([0, *map(len, rows)])
    B = sp.csr_array((rng.standard_normal(indptr[-1]), np.concatenate(rows), indptr), shape=(len(rows), columns))
    A = random(200, len(rows), 0.3, 3)
    assert_rows(multiply(A, B, **({"memory_limit": 10**9} if limited else {})), A, B)


@pytest.mark.parametrize("way", ["one pass", "counted", "values alone"])
def test_rows_of_a_factor_that_no_cache_holds_are_those_of_a_small_one(way):
    """What is fetched ahead changes nothing, at the end of A and in rows that it leaves out, too."""
    A, B = random(900, 20_000, 5e-4, 1), random(20_000, 3_000, 3e-3, 2)
    assert 12 * B.nnz > kernels.CACHED and A.nnz > kernels.FIRST_AHEAD
    if way == "values alone":
        C = symbolic(A, B, backend="cpu")
        C = sp.csr_array((C.numeric(A.data, B.data), C.indices, C.indptr), shape=(900, 3_000))
    else:
        C = multiply(A, B, memory_limit=None if way == "one pass" else 10**9)
    assert_rows(C, A, B)


def assert_rows(C, A, B):
    """Compare a product with the sums of multiples of rows, in their order."""
    for i in range(A.shape[0]):
        total, met = np.zeros(B.shape[1]), np.zeros(B.shape[1], bool)
        for p in range(A.indptr[i], A.indptr[i + 1]):
            row = slice(*B.indptr[A.indices[p] : A.indices[p] + 2])
            total[B.indices[row]] += A.data[p] * B.data[row]
            met[B.indices[row]] = True
        found = slice(*C.indptr[i : i + 2])
        np.testing.assert_array_equal(C.indices[found], np.flatnonzero(met))
        np.testing.assert_array_equal(C.data[found], total[met])


def test_int64_indices_are_taken():
    A = random(30, 30, 0.2, 5)
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    assert_product(multiply(A, A), A, A)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1)])
def test_empty_products(shape):
    m, k, n = shape
    C = multiply(sp.csr_array((m, k)), sp.csr_array((k, n)))
    assert C.shape == (m, n)
    assert C.nnz == 0


def test_same_bits_for_every_number_of_threads():
    import numba

    A = random(700, 700, 0.05, 6)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(threads)
            results.append(multiply(A, A).data)
    finally:
        numba.set_num_threads(before)
    for result in results:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kept", [2**25, 0])
def test_chunks_of_rows_are_put_together(kept, threads, monkeypatch):
    from spectile.tsparse.cpu import one_pass
    from spectile.tsparse.cpu.work import chunks, survey

    A = sp.vstack([random(1500, 900, 0.01, 21), sp.csr_array((40, 900)), random(200, 900, 0.1, 22)], format="csr")
    B = random(900, 1200, 0.02, 23)
    left, right = ((x.indptr.astype(np.int64), x.indices, x.data) for x in (A, B))
    monkeypatch.setattr(one_pass, "LARGEST_KEPT", kept)
    monkeypatch.setattr(one_pass, "num_threads", lambda: threads)
    work = survey(left[0], left[1], right[0])
    assert work.products == np.diff(B.indptr)[A.indices].sum()
    pieces = chunks(work, 3, 3000)
    assert len(pieces) > 20
    whole = one_pass.multiply(left, right, 1200, work, chunks(work, 1))
    assert_product(sp.csr_array(whole[::-1], shape=(A.shape[0], 1200)), A, B)
    for _ in range(5):
        for array, expected in zip(one_pass.multiply(left, right, 1200, work, pieces), whole, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_products_of_several_callers_do_not_share_room():
    from concurrent.futures import ThreadPoolExecutor

    factors = [random(600, 600, 0.03, 24 + i) for i in range(8)]
    expected = [multiply(A, A).data for A in factors]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            for C, data in zip(pool.map(lambda A: multiply(A, A), factors), expected, strict=True):
                np.testing.assert_array_equal(C.data, data)


def test_pieces_are_checked_apart(monkeypatch):
    """Each thread checks its rows: what one of them finds is told, whichever it is."""
    from spectile.tsparse.cpu import threads

    monkeypatch.setattr(threads, "WORTH_A_PIECE", 10)
    monkeypatch.setattr("numba.get_num_threads", lambda: 4)
    A = random(60, 50, 0.3, 32)
    B = sp.eye_array(50, format="csr")
    np.testing.assert_array_equal(multiply(A, B).data, A.data)
    for place in (0, A.nnz // 2, A.nnz - 1):
        for change, what in ((np.nan, "nan"), (np.inf, "inf")):
            wrong = A.copy()
            wrong.data[place] = change
            with pytest.raises(ValueError, match=f"A holds {what}"):
                multiply(wrong, B)
        wrong = A.copy()
        wrong.indices[place] = 50
        with pytest.raises(ValueError, match="column index outside"):
            multiply(wrong, B)
    for row in (5, 30, 59):
        first = A.indptr[row]
        wrong = A.copy()
        wrong.indices[first : first + 2] = wrong.indices[first : first + 2][::-1]
        wrong.has_sorted_indices = False
        assert_product(multiply(wrong, B), wrong, B)


def test_rows_of_every_length_are_sorted():
    # Short rows, windows that are scanned, and wide rows that are sorted take different paths.
    rng = np.random.default_rng(7)
    n = 20_000
    B = sp.vstack([random(50, n, d, 8) for d in (0.0005, 0.004, 0.05)] + [sp.eye_array(200, n)], format="csr")
    A = random(300, B.shape[0], 0.03, rng)
    C = multiply(A, B)
    assert (np.diff(C.indices)[np.setdiff1d(np.arange(C.nnz - 1), C.indptr[1:-1] - 1)] > 0).all()
    expected = structural(A, B)
    np.testing.assert_array_equal(C.indices, expected.indices)
    assert abs(C - A @ B).max() < 1e-12


def test_one_pass_gives_what_counted_rows_give(monkeypatch):
    """Rows of 1 to some 300 entries in chance order, rows of a few runs far apart, and columns that meet many times."""
    from spectile.tsparse.cpu import one_pass

    rng = np.random.default_rng(12)
    lengths = np.concatenate([np.arange(1, 100), rng.integers(100, 300, 40)])
    columns = [rng.choice(5000, n, replace=False) for n in lengths]
    places = np.repeat(np.arange(len(lengths)), lengths), np.concatenate(columns)
    B = sp.csr_array((rng.standard_normal(lengths.sum()), places), shape=(len(lengths), 5000))
    one_of_each = sp.eye_array(len(lengths), format="csr")
    band = sp.diags_array(np.ones((31, 1000)), offsets=np.arange(-15, 16), shape=(1000, 1000), format="csr")
    starts = rng.choice(249, (500, 6)) * 20
    runs = sp.lil_array((500, 5000))
    for row, first in enumerate(starts):
        for column in first:
            runs[row, column : column + 17] = 1.0 + row
    runs = runs.tocsr()
    one_or_two = sp.csr_array(sp.eye_array(500) + sp.eye_array(500, k=7))
    pairs = [(one_of_each, B), (random(400, len(lengths), 0.02, rng), B), (band, band), (B, B.T.tocsr())]
    for left, right in (*pairs, (one_or_two, runs)):
        found = multiply(left, right)
        with monkeypatch.context() as patch:
            patch.setattr(one_pass, "LARGEST_RESERVE", 0)
            counted = multiply(left, right)
        expected = structural(left, right)
        for C in (found, counted):
            np.testing.assert_array_equal(C.indptr, expected.indptr)
            np.testing.assert_array_equal(C.indices, expected.indices)
        np.testing.assert_array_equal(found.data, counted.data)
        assert abs(found - left @ right).max() < 1e-11


@pytest.mark.parametrize("semiring", ["plus_times", "min_plus", "max_plus", "max_min"])
def test_a_row_of_one_entry_is_what_a_row_of_two_is(semiring):
    """One entry and one beside it that meets an empty row of B: the same terms, also where they are 0, -0 or none."""
    values = [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]
    B = sp.csr_array((np.array(values + [1.0] * 3), ([0] * 7 + [2] * 3, [*range(7), 1, 4, 5])), shape=(3, 7))
    column, ones = np.repeat([0, 2], 7), np.ones(14)
    factors = np.array(values * 2)
    alone = sp.csr_array((factors, (np.arange(14), column)), shape=(14, 3))
    places = np.concatenate([np.arange(14)] * 2), np.concatenate([column, np.ones(14, int)])
    beside = sp.csr_array((np.concatenate([factors, ones]), places), shape=(14, 3))
    for kind in (np.float32, np.float64):
        options = {"semiring": semiring, "check_finite": False}
        one, two = (multiply(A.astype(kind), B.astype(kind), **options) for A in (alone, beside))
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(one, part), getattr(two, part))
        np.testing.assert_array_equal(np.signbit(one.data), np.signbit(two.data))


@pytest.mark.parametrize("array", [True, False])
def test_a_matrix_without_a_look_is_the_one_that_scipy_makes(array, monkeypatch):
    from spectile.tsparse import matrices

    kind = sp.csr_array if array else sp.csr_matrix
    parts = np.array([0, 1, 3]), np.array([2, 0, 4], np.int32), np.array([1.0, 2.0, 3.0])
    expected = kind(parts[::-1], shape=(2, 5))
    expected.has_canonical_format = True
    fast = matrices.host_csr((2, 5), *parts, array)
    monkeypatch.setattr(matrices, "_csr", lambda array: (kind, None))
    for C in (fast, matrices.host_csr((2, 5), *parts, array)):
        assert type(C) is kind and C.shape == (2, 5) and vars(C).keys() == vars(expected).keys()
        assert C.indptr.dtype == C.indices.dtype == np.int32 and C.has_canonical_format
        np.testing.assert_array_equal((C @ C.T).toarray(), (expected @ expected.T).toarray())
        C.sum_duplicates()
        C.resize(3, 3)
        assert C.nnz == 2 and matrices.host_csr((2, 5), *parts, array).nnz == 3


def test_symbolic_product_is_reused():
    A, B = random(40, 60, 0.1, 9), random(60, 50, 0.1, 10)
    pattern = symbolic(A, B, backend="cpu")
    C = multiply(A, B)
    assert pattern.nnz == C.nnz
    assert pattern.products == np.diff(B.indptr)[A.indices].sum()
    for precision in PRECISIONS:
        for factor in (1.0, -3.0):
            scaled = sp.csr_array((A.data * factor, A.indices, A.indptr), shape=A.shape)
            again = pattern.multiply(scaled, B, precision=precision)
            once = multiply(scaled, B, precision=precision)
            np.testing.assert_array_equal(again.indices, once.indices)
            np.testing.assert_array_equal(again.data, once.data)
    with pytest.raises(ValueError, match="pattern of A differs"):
        pattern.multiply(random(40, 60, 0.1, 11), B)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numeric_gives_the_values_of_the_product(dtype):
    A, B = (random(60, 60, 0.1, seed).astype(dtype) for seed in (30, 31))
    for left, right in ((A, B), (A, A)):
        pattern = symbolic(left, right, backend="cpu")
        C = multiply(left, right, precision=np.dtype(dtype).name)
        np.testing.assert_array_equal(pattern.indices, C.indices)
        np.testing.assert_array_equal(pattern.indptr, C.indptr)
        values = pattern.numeric(left.data, right.data)
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, C.data)
        out = np.empty(pattern.nnz, dtype)
        assert pattern.numeric(-left.data, right.data, out=out) is out
        np.testing.assert_array_equal(out, -C.data)
    left.indices[:] = 0  # a pattern outlives changes of its factors
    np.testing.assert_array_equal(pattern.numeric(left.data, left.data), C.data)
    with pytest.raises(ValueError, match="pattern of A differs"):
        pattern.multiply(left, left)


def test_numeric_refuses_what_is_no_writeable_native_array():
    A = random(20, 30, 0.2, 33)
    B = sp.csr_array(A.T)
    pattern = symbolic(A, B, backend="cpu")
    frozen = np.empty(pattern.nnz)
    frozen.flags.writeable = False
    for values, out, error in (
        ((A.data.tolist(), B.data), None, TypeError),
        ((None, B.data), None, TypeError),
        ((A.data, B.data), [0.0] * pattern.nnz, TypeError),
        ((A.data.astype(">f8"), B.data.astype(">f8")), None, TypeError),
        ((A.data, B.data), frozen, ValueError),
    ):
        with pytest.raises(error, match=r"pass an array|all float32 or all float64|read-only"):
            pattern.numeric(*values, out=out)


def test_error_bound_checks_its_factors():
    A = random(20, 3000, 0.2, 34)
    with pytest.raises(ValueError, match="columns of A must be the rows of B"):
        error_bound(A, random(7, 30, 0.2, 35))  # was a segmentation fault
    with pytest.raises(TypeError, match="not a sparse matrix"):
        error_bound(A.toarray(), A.T)
    with pytest.raises(ValueError, match="choose one of"):
        error_bound(A, A.T.tocsr(), precision="quick")


@pytest.mark.parametrize("form", ["coo", "csc", "bsr"])
@pytest.mark.parametrize("index", [-3, 10**7])
def test_indices_of_every_format_are_checked(form, index):
    A = random(30, 30, 0.2, 36).asformat(form)
    (A.row if form == "coo" else A.indices)[5] = index
    with pytest.raises(ValueError, match=f"A is no valid {form} matrix"):
        spgemm(A, random(30, 30, 0.2, 37), backend="cpu")


@pytest.mark.parametrize("limit", ["1GB", float("nan"), [10]])
def test_a_memory_limit_is_a_number(limit):
    A = random(5, 5, 0.5, 38)
    with pytest.raises((TypeError, ValueError), match=r"^memory_limit .*give"):
        spgemm(A, A, memory_limit=limit, backend="cpu")


def test_numeric_refuses_other_sizes_and_types():
    A = random(20, 30, 0.2, 33)
    B = sp.csr_array(A.T)
    pattern = symbolic(A, B, backend="cpu")
    with pytest.raises(ValueError, match=r"data_b has shape .* the analysed pattern has 120 entries"):
        pattern.numeric(A.data, B.data[1:])
    with pytest.raises(TypeError, match="all float32 or all float64"):
        pattern.numeric(A.data, B.data.astype(np.float32))
    with pytest.raises(TypeError, match="all float32 or all float64"):
        pattern.numeric(A.data, B.data, out=np.empty(pattern.nnz, np.float32))
    with pytest.raises(ValueError, match="out is not contiguous"):
        pattern.numeric(A.data, B.data, out=np.empty(2 * pattern.nnz)[::2])


@pytest.mark.parametrize("exponent", [-120, -40, 0, 40, 120])
def test_float16_scales_by_powers_of_two(exponent):
    A, B = random(30, 40, 0.2, 12), random(40, 30, 0.2, 13)
    small = sp.csr_array(A * 2.0**exponent)
    inverse = sp.csr_array(B * 2.0**-exponent)
    C = multiply(small, inverse, precision="float16")
    assert_product(C, small, inverse, "float16")
    assert np.abs(C - A @ B).max() < 2e-2


def test_float16_scales_each_row_and_column():
    A, B = random(30, 40, 0.2, 14), random(40, 30, 0.2, 15)
    rng = np.random.default_rng(16)
    A = sp.csr_array(sp.diags_array(2.0 ** rng.integers(-30, 30, 30)) @ A)
    B = sp.csr_array(B @ sp.diags_array(2.0 ** rng.integers(-30, 30, 30)))
    assert_product(multiply(A, B, precision="float16"), A, B, "float16")


def test_eleven_bits_are_those_of_float16():
    """Ties to even, both signs, and the same 11 bits at exponents that float16 does not hold."""
    values = np.arange(2048, 4096, 0.25)
    values = np.concatenate((values, -values))
    expected = values.astype(np.float16).astype(np.float64)
    for power in (-60, -12, 0, 4, 40):
        np.testing.assert_array_equal(rounding.eleven_bits(np.ldexp(values, power)), np.ldexp(expected, power))


@pytest.fixture(scope="module")
def tf32_of_the_device(tmp_path_factory):
    """Return the device's rounding to tf32, compiled for the host."""
    shims = """
#include <cstring>
#define __device__
#define __forceinline__ inline
using u64 = unsigned long long;
static inline u64 __double_as_longlong(double x) { u64 bits; std::memcpy(&bits, &x, 8); return bits; }
static inline double __longlong_as_double(u64 bits) { double x; std::memcpy(&x, &bits, 8); return x; }
"""
    text = (resources.files("spectile.tsparse.cuda") / "half.cuh").read_text()
    function = text[text.index("__device__ __forceinline__ float tf32_bits") :].partition("}\n")[0] + "}\n"
    call = 'extern "C" void round_all(int n, float* x) { for (int i = 0; i < n; ++i) x[i] = tf32_bits(x[i]); }'
    library = host_library(tmp_path_factory.mktemp("tf32") / "tf32", shims + function + call)

    def rounded(values):
        out = np.array(values, np.float32)
        library.round_all(len(out), ctypes.c_void_p(out.ctypes.data))
        return out

    return rounded


@pytest.mark.parametrize("power", [0, 100, -126, -127, -130, -137])
def test_tf32_rounds_ties_away_from_zero(power, tf32_of_the_device):
    """To 11 significant bits, also where float32 has fewer than 24."""
    units = np.ldexp(np.arange(1024, 2048) * 2.0**-10, power)
    for part, up in ((0, 0), (0.25, 0), (0.5, 1), (0.75, 1)):
        moved = (units + np.ldexp(part * 2.0**-10, power)).astype(np.float32)
        expected = (units + np.ldexp(up * 2.0**-10, power)).astype(np.float32)
        for sign in (1, -1):
            np.testing.assert_array_equal(rounding.round_tf32(sign * moved), sign * expected)
            np.testing.assert_array_equal(tf32_of_the_device(sign * moved), sign * expected)


@pytest.mark.parametrize("tiny", ["rows of A", "columns of B"])
def test_float16_scales_rows_alone_and_columns_alone(tiny):
    A, B = random(30, 20, 0.3, 13), random(20, 25, 0.3, 14)
    scale = 2.0 ** np.where(np.arange(30) % 3 == 0, -80, 0)[: 30 if tiny == "rows of A" else 25]
    if tiny == "rows of A":
        left, right = sp.csr_array(sp.diags_array(scale) @ A), B
    else:
        left, right = A, sp.csr_array(B @ sp.diags_array(scale))
    plain = multiply(A, B, precision="float16").toarray().astype(np.float64)
    scaled = multiply(left, right, precision="float16").toarray().astype(np.float64)
    factor = scale[:, None] if tiny == "rows of A" else scale
    np.testing.assert_allclose(scaled, plain * factor, rtol=1e-6)


def test_float16_of_integers_is_exact():
    A = random(50, 50, 0.2, 17, "integers")
    C = multiply(A, A, precision="float16")
    np.testing.assert_array_equal(C.toarray(), A.toarray() @ A.toarray())


class TestErrors:
    A = random(6, 5, 0.5, 18)

    def test_shapes(self):
        with pytest.raises(ValueError, match="columns of A must be the rows of B"):
            multiply(self.A, self.A)

    def test_not_sparse(self):
        with pytest.raises(TypeError, match=r"^B is .* not a sparse matrix"):
            multiply(self.A, np.ones((5, 2)))

    @pytest.mark.parametrize("library", ["torch", "jax"])
    def test_matrices_of_libraries_that_have_products_of_their_own(self, library):
        if library == "torch":
            other = pytest.importorskip("torch").eye(5)
        else:
            other = pytest.importorskip("jax").numpy.eye(5)
        with pytest.raises(TypeError, match=rf"^B is .* spectile\.{library} "):
            multiply(self.A, other)

    def test_complex_in_a_precision_of_real_numbers(self):
        with pytest.raises(ValueError, match="complex ones have float64 and float32"):
            multiply(self.A.astype(complex), self.A.T, precision="tf32")

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_not_finite(self, value):
        A = sp.csr_array(np.array([[1.0, 0.0], [2.0, value]]))
        with pytest.raises(ValueError, match=r"A holds (nan|inf) at row 1, column 1"):
            multiply(A, A)

    @pytest.mark.parametrize("index", [-1, 5])
    def test_index_out_of_range(self, index):
        A = self.A.copy()
        A.indices = A.indices.copy()
        A.indices[2] = index
        with pytest.raises(ValueError, match="column index outside 0 to 4"):
            multiply(A, sp.csr_array(self.A.T))

    @pytest.mark.parametrize(("row", "pointer"), [(0, 1), (2, -3), (3, 0), (3, 10**6), (6, 10**6), (6, -1)])
    def test_row_pointer(self, row, pointer):
        A = self.A.copy()
        A.indptr = A.indptr.copy()
        A.indptr[row] = pointer
        with pytest.raises(ValueError, match="row pointer of A"):
            multiply(A, sp.csr_array(self.A.T))

    @pytest.mark.parametrize("index", [2**32 + 1, -(2**32) + 1])
    def test_index_whose_lower_half_is_in_range(self, index):
        A = self.A.copy()
        A.indices = A.indices.astype(np.int64)
        A.indices[2] = index
        with pytest.raises(ValueError, match="column index outside 0 to 4"):
            multiply(A, sp.csr_array(self.A.T))

    def test_unknown_precision(self):
        with pytest.raises(ValueError, match="precision is 'other'; choose one of"):
            spgemm(self.A, sp.csr_array(self.A.T), precision="other")

    @pytest.mark.parametrize("limit", [0, -5])
    def test_memory_limit_not_positive(self, limit):
        with pytest.raises(ValueError, match="positive number of bytes"):
            multiply(self.A, sp.csr_array(self.A.T), memory_limit=limit)

    def test_memory_limit_too_small_for_a_row(self):
        B = random(5, 1000, 0.1, 19)
        with pytest.raises(MemoryError, match=r"raise it to at least \d+"):
            multiply(self.A, B, memory_limit=100)
        assert_product(multiply(self.A, B, memory_limit=40_000), self.A, B)

    def test_range_of_float16(self):
        for small in (2.0**-60, 2.0**-100):
            rows, column = sp.csr_array([[1.0, 0], [0, small]]), sp.csr_array([[small], [0.75]])
            C = spgemm(rows, column, precision="float16", backend="cpu")
            np.testing.assert_array_equal(C.toarray(), [[small], [0.75 * small]])
        A = sp.csr_array(np.array([[1.0, 2.0**-120]]))
        assert multiply(A, sp.csr_array(A.T), precision="float16").data[0] == 1
        beyond = "an entry of A", A * 2.0**-10, sp.csr_array(A.T)
        for _, left, right in (beyond, ("an entry of B", A, sp.csr_array(np.array([[1.0], [2.0**50]])))):
            with pytest.raises(ValueError, match=r"row of A 0 holds entries further apart .*2\*\*110"):
                multiply(left, right, precision="float16")

    def test_scaled_factors_lose_nothing_small(self):
        """What A's small entries make with B's small ones counts where B's large ones are not met."""
        A = sp.csr_array(np.array([[2.0**-120, 0.0]]))
        B = sp.csr_array(np.array([[2.0**10], [2.0**118]]))
        assert multiply(A, B, precision="float16").data[0] == 2.0**-110

    def test_range_of_float32(self):
        A = sp.csr_array(np.array([[1e300]]))
        for precision in ("float32", "tf32"):
            with pytest.raises(ValueError, match="beyond the range of float32"):
                multiply(A, A, precision=precision)
        with pytest.raises(ValueError, match="an entry of C is beyond the range"):
            multiply(A, A, precision="float16")
        assert multiply(sp.csr_array([[1e100]]), sp.csr_array([[1e100]])).data[0] == pytest.approx(1e200)


@QUICK
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12), st.integers(1, 25))
def test_parts_of_a_large_product_cover_its_rows(counts, chunk, most):
    from spectile.tsparse.cuda.parts import parts

    starts = np.cumsum([0, *counts])
    covered = np.zeros(starts[-1], int)
    end = 0
    for a, b, part in parts(starts, chunk, most):
        assert end <= a < b <= a + chunk
        assert part == slice(starts[a], starts[b])
        assert b == a + 1 or starts[b] - starts[a] <= most
        covered[part] += 1
        end = b
    assert (covered == 1).all()


def test_import_is_light():
    import subprocess
    import sys

    code = "import sys, spectile.tsparse; print(sorted({'numba', 'cupy', 'pandas', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
