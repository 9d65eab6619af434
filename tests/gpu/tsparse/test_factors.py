"""Factors of every format, order, type and kind on the GPU: exact, or refused in one sentence."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.cupy_parts import csr_matrix, has_wide_indices
from spectile.tsparse import row_blocks, spgemm, symbolic
from spectile_study.cases.tsparse.device import peak_bytes

pytestmark = pytest.mark.gpu


def random(m, n, density, seed):
    A = sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format="csr")
    A.sort_indices()
    return A


def in_chance_order(A, seed, form):
    """Return a matrix with its entries in chance order, one of them stored twice."""
    rng = np.random.default_rng(seed)
    A = A.tocoo()
    order = np.append(rng.permutation(A.nnz), 0)
    row, column, data = A.row[order], A.col[order], A.data[order]
    if form == "coo":
        return sp.coo_array((data, (row, column)), shape=A.shape)
    major, minor, length = (row, column, A.shape[0]) if form == "csr" else (column, row, A.shape[1])
    by = np.argsort(major, kind="stable")
    indptr = np.searchsorted(major[by], np.arange(length + 1))
    make = sp.csr_array if form == "csr" else sp.csc_array
    return make((data[by], minor[by], indptr), shape=A.shape)


def on_gpu(A, kind="matrix"):
    """Return a matrix of CuPy of the same format with the very same arrays."""
    import cupy
    from cupyx.scipy import sparse

    make = getattr(sparse, f"{A.format}_{kind}")
    if A.format == "coo":
        row, column = (cupy.asarray(x, np.int32) for x in (A.row, A.col))
        return make((cupy.asarray(A.data), (row, column)), shape=A.shape)
    indices, indptr = (cupy.asarray(x, np.int32) for x in (A.indices, A.indptr))
    return make((cupy.asarray(A.data), indices, indptr), shape=A.shape)


def host(x):
    return x if isinstance(x, np.ndarray) else x.get()


def same(C, D, **tolerance):
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(host(getattr(C, name)), host(getattr(D, name)))
    np.testing.assert_allclose(host(C.data), host(D.data), **tolerance)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_])
def test_columns_beyond_32_bits(where, dtype):
    import cupy

    n = 2**31 + 10
    indices = np.array([3, 2**31 + 5, 7, 2**31 + 9])
    B = sp.csr_array((np.array([1, 2, 3, 4], dtype), indices, np.array([0, 2, 4])), shape=(2, n))
    A = sp.csr_array(np.array([[1, 2], [0, 3]], dtype))
    expected = spgemm(A, B, backend="cpu")
    left, right = A, B
    if where == "device":
        if not has_wide_indices():
            pytest.skip("this CuPy has no matrices with indices of 64 bits")
        arrays = (cupy.asarray(x) for x in (B.indptr.astype(np.int64), B.indices.astype(np.int64), B.data))
        left, right = on_gpu(A), csr_matrix(B.shape, *arrays)
    pattern = symbolic(left, right, backend="cuda")
    np.testing.assert_array_equal(host(pattern.indices), expected.indices)
    for C in (
        spgemm(left, right, backend="cuda"),
        pattern.multiply(left, right),
        *([spgemm(left, right, memory_limit=10**6, backend="cuda")] if where == "host" else []),
    ):
        assert C.shape == (2, n) and C.dtype == dtype
        same(C, expected)
    if dtype != np.bool_:
        np.testing.assert_array_equal(host(pattern.numeric(left.data, right.data)), expected.data)
    for rows, part in row_blocks(left, right, backend="cuda", **({"memory_limit": 10**6} if where == "host" else {})):
        assert part.shape == (rows.stop - rows.start, n) and part.dtype == dtype
        same(part, expected[rows])
    same(spgemm(left, right, backend="cuda", devices=1), expected)
    if where == "device":
        right.indices[1] = n
        with pytest.raises(ValueError, match="B holds a column index outside"):
            spgemm(left, right)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_values_are_taken_where_the_matrix_stores_them(form, where):
    A, B = (in_chance_order(random(300, 300, 0.02, seed), seed, form) for seed in (1, 2))
    expected = spgemm(A, B, backend="cpu")
    left, right = (A, B) if where == "host" else (on_gpu(A), on_gpu(B))
    same(spgemm(left, right, backend="cuda"), expected, rtol=1e-12)
    pattern = symbolic(left, right, backend="cuda")
    same(pattern.multiply(left, right), expected, rtol=1e-12)
    for _ in range(2):
        np.testing.assert_allclose(host(pattern.numeric(left.data, right.data)), expected.data, rtol=1e-12)
    twice = pattern.numeric(left.data * 2, right.data)
    np.testing.assert_allclose(host(twice), 2 * expected.data, rtol=1e-12)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 4, 0), (5, 4, 3)])
def test_factors_without_entries(shape, form):
    m, k, n = shape
    A, B = (sp.csr_array(size).asformat(form) for size in ((m, k), (k, n)))
    for left, right in ((A, B), (on_gpu(A), on_gpu(B))):
        pattern = symbolic(left, right, backend="cuda")
        for C in (spgemm(left, right, backend="cuda"), pattern.multiply(left, right)):
            assert C.shape == (m, n) and C.nnz == pattern.nnz == 0


def test_blocks_on_the_host():
    A = random(40, 40, 0.1, 3).tobsr((2, 4))
    pattern = symbolic(A, A, backend="cuda")
    np.testing.assert_allclose(pattern.numeric(A.data, A.data), spgemm(A, A, backend="cpu").data, rtol=1e-12)


@pytest.mark.parametrize("where", ["host", "device"])
def test_integers_are_exact_or_refused(where):
    edge = 2**53
    cases = [
        ([[edge - 1]], [[1]]),
        ([[edge + 1]], [[1]]),
        ([[edge // 2, edge // 2, 1]], [[1], [1], [1]]),
        ([[edge // 2, edge // 2 - 1]], [[1], [1]]),
        ([[2**60 + 1]], [[1]]),
        ([[2**27 - 1]], [[2**26]]),
    ]
    for left, right in cases:
        A, B = sp.csr_array(np.array(left, np.int64)), sp.csr_array(np.array(right, np.int64))
        exact = sum(a * b[0] for a, b in zip(left[0], right, strict=True))
        if where == "device":
            try:
                A, B = on_gpu(A), on_gpu(B)
            except (TypeError, ValueError):
                pytest.skip("this CuPy has no sparse matrices of integers")
        for run in (lambda A, B: spgemm(A, B, backend="cuda"), symbolic(A, B, backend="cuda").multiply):
            try:
                C = run(A, B)
            except ValueError as error:
                assert "sums of integers" in str(error)
                assert exact >= edge
            else:
                assert int(host(C.data)[0]) == exact
    zeros = np.zeros(2, int)
    twice = sp.coo_array((np.array([100, 100], np.int8), (zeros, zeros)), shape=(1, 1))
    twice = on_gpu(twice) if where == "device" else twice
    assert int(host(spgemm(twice, twice, backend="cuda").data)[0]) == 40_000


@pytest.mark.parametrize("where", ["host", "device"])
def test_duplicates_are_summed_in_float64(where):
    A = sp.csr_array((np.array([1, 3e-8], np.float32), np.zeros(2, int), np.array([0, 2])), shape=(1, 1))
    B = sp.csr_array([[1.0]])
    if where == "device":
        A, B = on_gpu(A), on_gpu(B)
    C = spgemm(A, B, precision="float64", backend="cuda")
    assert abs(float(host(C.data)[0]) - (1 + float(np.float32(3e-8)))) < 1e-15
    huge = sp.csr_array((np.full(2, 1.7e308), np.zeros(2, int), np.array([0, 2])), shape=(1, 1))
    with pytest.raises(ValueError, match="A holds inf"):
        spgemm(on_gpu(huge) if where == "device" else huge, B, backend="cuda")


@pytest.mark.parametrize("left", ["matrix", "array"])
@pytest.mark.parametrize("right", ["matrix", "array"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_arrays_give_an_array(left, right, form):
    from cupyx.scipy import sparse

    if not hasattr(sparse, "csr_array"):
        pytest.skip("this CuPy has no sparse arrays")
    A = random(60, 60, 0.1, 4)
    G, H = on_gpu(A.asformat(form), left), on_gpu(A.asformat(form), right)
    wanted = sparse.csr_array if "array" in (left, right) else sparse.csr_matrix
    pattern = symbolic(G, H)
    for C in (spgemm(G, H), pattern.multiply(G, H)):
        assert type(C) is wanted
        np.testing.assert_allclose(C.toarray().get(), (A @ A).toarray(), rtol=1e-12)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_unchecked_values_are_passed_on(precision, where):
    A = sp.csr_array(np.array([[1.0, 0, 2], [0, np.nan, 0], [np.inf, 1, 0], [3, 0, 1]]))
    B = sp.csr_array(np.array([[2.0, 0], [1, 4], [0, -np.inf]]))
    small = sp.csr_array(np.array([[2.0**-140, np.inf], [2.0**-141, 0]])), sp.csr_array(np.eye(2))
    expected = np.array([[2, -np.inf], [np.nan, np.nan], [np.inf, 4], [6, -np.inf]])
    if where == "device":
        A, B, *small = (on_gpu(x) for x in (A, B, *small))
    pattern = symbolic(A, B, backend="cuda")
    options = {"precision": precision, "check_finite": False}
    for C in (spgemm(A, B, backend="cuda", **options), pattern.multiply(A, B, **options)):
        np.testing.assert_array_equal(host(C.toarray()), expected)
    with pytest.raises(ValueError, match="A holds nan at row 1, column 1"):
        spgemm(A, B, precision=precision, backend="cuda")
    C = spgemm(*small, precision="float16", backend="cuda", check_finite=False)
    np.testing.assert_array_equal(host(C.toarray()), [[2.0**-140, np.inf], [2.0**-141, 0]])


def test_values_may_overlap_what_is_written():
    import cupy

    A = random(200, 200, 0.05, 5)
    one = sp.eye_array(200, format="csr")
    pairs = ((on_gpu(A), on_gpu(one)), (on_gpu(one), on_gpu(A)))
    for (left, right), number in zip(pairs, range(2), strict=True):
        pattern = symbolic(left, right)
        expected = pattern.numeric(left.data, right.data).get()
        room = cupy.empty(A.nnz + 3)
        for shift in (0, 3):
            data = room[:-3]
            data[:] = cupy.asarray(A.data)
            values = (data, right.data) if number == 0 else (left.data, data)
            out = room[shift : len(room) - 3 + shift]
            np.testing.assert_array_equal(pattern.numeric(*values, out=out).get(), expected)
            data[:] = cupy.asarray(A.data)
            np.testing.assert_array_equal(pattern.numeric(*values, out=out).get(), expected)


def test_what_kernels_cannot_read_is_refused_or_copied():
    import cupy

    A = random(100, 100, 0.1, 6)
    whole = spgemm(on_gpu(A), on_gpu(A))
    for name in ("data", "indices", "indptr"):
        G = on_gpu(A)
        setattr(G, name, cupy.repeat(getattr(G, name), 2)[::2])
        same(spgemm(G, G), whole)
    for name in ("data", "indices", "indptr"):
        G = on_gpu(A)
        setattr(G, name, getattr(G, name)[:-2])
        for run in (spgemm, symbolic):
            with pytest.raises(ValueError, match=r"of A|A holds"):
                run(G, on_gpu(A))
    pattern = symbolic(on_gpu(A), on_gpu(A))
    data = cupy.asarray(A.data)
    unaligned = cupy.empty(8 * A.nnz + 4, np.uint8)[4:].view(np.float32)[: 2 * A.nnz].view(np.uint8).view(np.float64)
    for wrong in (A.data, cupy.repeat(data, 2)[::2], unaligned):
        with pytest.raises((TypeError, ValueError), match="data_b is"):
            pattern.numeric(data, wrong)
    np.testing.assert_array_equal(pattern.numeric(data, data).get(), whole.data.get())


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_limit_counts_copies(form, precision):
    A = in_chance_order(random(3000, 3000, 0.003, 7), 8, form)
    expected = spgemm(A, A, precision=precision, backend="cpu")
    size = sum(getattr(expected, name).nbytes for name in ("indptr", "indices", "data"))
    with pytest.raises(MemoryError, match="raise it to at least") as refused:
        spgemm(on_gpu(A), on_gpu(A), precision=precision, memory_limit=10_000)
    limit = int(re.search(r"raise it to at least (\d+)", str(refused.value))[1])
    G = on_gpu(A)
    C = spgemm(G, G, precision=precision, memory_limit=2 * limit)
    same(C, expected, rtol=1e-4 if precision == "float32" else 1e-12)
    peak = peak_bytes(lambda: spgemm(on_gpu(A), on_gpu(A), precision=precision, memory_limit=2 * limit))
    given = 2 * sum(x.nbytes for x in (A.data, *((A.row, A.col) if form == "coo" else (A.indices, A.indptr))))
    assert peak is not None and peak <= size + given + 1.1 * 2 * limit


def test_another_device_is_named():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    A = random(200, 200, 0.05, 9)
    G = on_gpu(A)
    pattern = symbolic(G, G)
    expected = pattern.numeric(G.data, G.data)
    out = cupy.empty_like(expected)
    pattern.numeric(G.data, G.data, out=out)
    with cupy.cuda.Device(1):
        for run in (
            lambda: pattern.numeric(G.data, G.data),
            lambda: pattern.numeric(G.data, G.data, out=out),
            lambda: pattern.multiply(G, G),
            lambda: pattern.indices,
        ):
            with pytest.raises(ValueError, match="made on device 0 and device 1 is current"):
                run()
        with pytest.raises(ValueError, match="A is on device 0"):
            spgemm(G, G)
        other = on_gpu(A)
        same(spgemm(other, other), spgemm(A, A, backend="cpu"), rtol=1e-12)
    with pytest.raises(ValueError, match="data_b is on device 1"):
        pattern.numeric(G.data, other.data)
    np.testing.assert_array_equal(pattern.numeric(G.data, G.data, out=out).get(), expected.get())
