"""Sparse products beyond usual sizes on the GPU: wide windows, many columns, C made by parts, failing allocations."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm

pytestmark = pytest.mark.gpu


def random(rows, columns, per_row, seed):
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(rows), per_row), rng.integers(0, columns, rows * per_row)
    A = sp.coo_matrix((rng.uniform(0.5, 2, rows * per_row), places), shape=(rows, columns)).tocsr()
    A.sort_indices()
    return A


def on_gpu(A, dtype=np.float64):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
    return csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)


def check(C, A, B):
    """C is SciPy's product of positive factors, made with the columns that are met alone."""
    columns, places = np.unique(B.indices, return_inverse=True)
    narrow = sp.csr_matrix((B.data, places, B.indptr), shape=(B.shape[0], len(columns)))
    expected = sp.csr_matrix(A) @ narrow
    expected.sort_indices()
    np.testing.assert_array_equal(C.indptr.get(), expected.indptr)
    np.testing.assert_array_equal(C.indices.get(), columns[expected.indices])
    np.testing.assert_allclose(C.data.get(), expected.data, rtol=1e-13)


def test_identity_of_two_million():
    """No row asks for a bitmap, and one of all columns would not fit in shared memory."""
    from cupyx.scipy.sparse import identity

    eye = identity(2_000_000, format="csr")
    C = spgemm(eye, eye)
    assert C.nnz == 2_000_000
    assert bool((C.data == 1).all()) and bool((C.indices == eye.indices).all()) and bool((C.indptr == eye.indptr).all())


def test_short_rows_of_wide_span():
    A, B = random(20_000, 4_000_000, 5, 1), random(4_000_000, 3_000_000, 2, 2)
    check(spgemm(on_gpu(A), on_gpu(B)), A, B)


@pytest.mark.parametrize("columns", [2**22 - 1, 2**22, 2**22 + 1, 10**8, 2**31 - 2**20])
def test_rows_of_every_length_over_all_columns(columns):
    """Tables of every size, and bitmaps in global memory of the numeric phase alone, first and last column met."""
    rng = np.random.default_rng(3)
    lengths = [1, 3, 15, 16, 17, 32, 33, 100, 128, 129, 256, 257, 500, 512, 513, 700, 768, 769, 1500]
    rows = [np.unique(np.append(rng.integers(0, columns, n), (0, columns - 1))) for n in lengths]
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.concatenate(rows)
    B = sp.csr_matrix((rng.uniform(1, 2, len(indices)), indices, indptr), shape=(len(rows), columns))
    A = sp.identity(len(rows), format="csr")
    C = spgemm(on_gpu(A), on_gpu(B))
    np.testing.assert_array_equal(C.indptr.get(), B.indptr)
    np.testing.assert_array_equal(C.indices.get(), B.indices)
    np.testing.assert_array_equal(C.data.get(), B.data)
    pairs = sp.csr_matrix(np.eye(len(rows)) + np.eye(len(rows), k=1))
    check(spgemm(on_gpu(pairs), on_gpu(B)), pairs, B)


def test_hypersparse_with_a_hundred_million_columns():
    """Most rows are empty, inner and outer sizes are huge."""
    rng = np.random.default_rng(4)
    n, nnz = 100_000_000, 50_000
    places = np.sort(rng.choice(n, nnz, replace=False)), rng.integers(0, n, nnz)
    B = sp.csr_matrix((rng.uniform(1, 2, nnz), places), shape=(n, n))
    A = sp.csr_matrix((rng.uniform(1, 2, nnz), (np.sort(rng.integers(0, 1000, nnz)), places[0])), shape=(1000, n))
    check(spgemm(on_gpu(A), on_gpu(B)), A, B)


@pytest.mark.parametrize("precision", ["float64", "float16"])
def test_one_full_row(precision):
    n = 20_000
    full = sp.vstack([sp.csr_matrix(np.ones((1, n))), sp.identity(n - 1, format="csr").dot(random(n - 1, n, 1, 5))])
    A = sp.csr_matrix(full)
    A.data[:] = 1.0
    C = spgemm(on_gpu(A), on_gpu(A), precision=precision)
    expected = A @ A
    expected.sort_indices()
    np.testing.assert_array_equal(C.indices.get(), expected.indices)
    np.testing.assert_array_equal(C.data.get(), expected.data)


def test_allocations_that_fail():
    """Each allocation in turn: MemoryError with the bytes, and the next call gives the same bits."""
    import cupy

    A = random(300, 300, 8, 7)
    G = on_gpu(A)
    whole = spgemm(G, G)
    pool = cupy.get_default_memory_pool()

    class Failing:
        def __init__(self, after):
            self.left = after

        def __call__(self, size):
            self.left -= 1
            if self.left == 0:
                raise cupy.cuda.memory.OutOfMemoryError(size, 0)
            return pool.malloc(size)

    for number in range(1, 100):
        with cupy.cuda.using_allocator(Failing(number)):
            try:
                spgemm(G, G)
            except MemoryError as error:
                assert "bytes" in str(error)
            else:
                break
        again = spgemm(G, G)
        assert bool((again.data == whole.data).all())
    assert 5 <= number < 99
