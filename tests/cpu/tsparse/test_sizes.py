"""Sparse products beyond usual sizes on the CPU: many columns, one full row, cancelling sums, failing allocations."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm, symbolic


def random(rows, columns, per_row, seed):
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(rows), per_row), rng.integers(0, columns, rows * per_row)
    A = sp.coo_array((rng.uniform(0.5, 2, rows * per_row), places), shape=(rows, columns)).tocsr()
    A.sort_indices()
    return A


def check(C, A, B):
    """C is SciPy's product of positive factors, made with the columns that are met alone."""
    columns, places = np.unique(B.indices, return_inverse=True)
    narrow = sp.csr_array((B.data, places, B.indptr), shape=(B.shape[0], len(columns)))
    expected = sp.csr_array(A) @ narrow
    expected.sort_indices()
    np.testing.assert_array_equal(C.indptr, expected.indptr)
    np.testing.assert_array_equal(C.indices, columns[expected.indices])
    np.testing.assert_allclose(C.data, expected.data, rtol=1e-13)


@pytest.mark.parametrize("columns", [2**16 - 1, 2**16 + 1, 10**8, 2**31 + 5])
def test_many_columns(columns):
    A, B = random(40, 60, 5, 1), random(60, columns, 30, 2)
    C = spgemm(A, B, backend="cpu")
    assert C.shape == (40, columns)
    check(C, A, B)
    assert C.indices.dtype == (np.int64 if columns > 2**31 else np.int32)
    pattern = symbolic(A, B, backend="cpu")
    for other in (pattern, pattern.multiply(A, B), error_bound(A, B)):
        np.testing.assert_array_equal(other.indices, C.indices)


def test_one_full_row_and_empty_ones():
    n = 3000
    A = sp.vstack([sp.csr_array((5, n)), sp.csr_array(np.ones((1, n))), random(n - 6, n, 2, 3)], format="csr")
    check(spgemm(A, A, backend="cpu"), A, A)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16"])
def test_sums_that_cancel_are_zero_and_stored(precision):
    n = 50
    A = sp.csr_array(np.hstack([np.ones((n, n)), -np.ones((n, n))]))
    B = sp.csr_array(np.vstack([np.eye(n), np.eye(n)]))
    C = spgemm(A, B, precision=precision, backend="cpu")
    assert C.nnz == n * n
    assert (C.data == 0).all()


class Failing:
    """NumPy whose n-th allocation fails."""

    def __init__(self, after):
        self.left = after

    def __getattr__(self, name):
        function = getattr(np, name)
        if name not in ("empty", "zeros"):
            return function

        def allocate(*arguments, **more):
            self.left -= 1
            if self.left == 0:
                raise MemoryError(f"Unable to allocate {arguments[0]} bytes")
            return function(*arguments, **more)

        return allocate


@pytest.mark.parametrize("chunked", [False, True])
def test_the_call_after_a_failed_allocation_is_right(chunked, monkeypatch):
    from spectile.tsparse.cpu import one_pass, phases, work

    if chunked:
        monkeypatch.setattr(work, "WORTH_A_CHUNK", 500)
        monkeypatch.setattr(one_pass, "LARGEST_KEPT", 0)
    A = random(600, 600, 10, 4)
    whole = spgemm(A, A, backend="cpu")
    failed = 0
    for number in range(1, 60):
        monkeypatch.setattr(one_pass, "_kept", one_pass._Kept())
        with monkeypatch.context() as patch:
            failing = Failing(number)
            for module in (one_pass, phases):
                patch.setattr(module, "np", failing)
            try:
                spgemm(A, A, backend="cpu")
                symbolic(A, A, backend="cpu").multiply(A, A)
            except MemoryError as error:
                assert "bytes" in str(error)
                failed += 1
            else:
                break
        again = spgemm(A, A, backend="cpu")
        np.testing.assert_array_equal(again.indices, whole.indices)
        np.testing.assert_array_equal(again.data, whole.data)
    assert 8 <= failed < 59
