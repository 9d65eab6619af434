"""Small products that are made at once: the bits and the errors of the other ways, whatever is met or not."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile.tsparse.cpu import at_once

DTYPES = ("float32", "float64", "complex64", "complex128", "bool")


@pytest.fixture
def made(monkeypatch):
    """Whether each call was made at once."""
    found, multiply = [], at_once.multiply

    def noted(*arguments):
        product = multiply(*arguments)
        found.append(product is not None)
        return product

    monkeypatch.setattr(at_once, "multiply", noted)
    return found


def matrix(rows, columns, density, dtype, seed):
    A = sp.random_array((rows, columns), density=density, rng=np.random.default_rng(seed), format="csr")
    if np.dtype(dtype).kind == "c":
        A = A + 1j * A
    A = A.astype(dtype)
    A.sort_indices()
    return A


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def assert_same_bits(C, D):
    assert C.shape == D.shape and C.dtype == D.dtype and type(C) is type(D)
    for part in ("indptr", "indices", "data"):
        one, other = getattr(C, part), getattr(D, part)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "density"),
    [
        (1, 1, 1, 1),
        (0, 5, 3, 0.5),
        (7, 0, 4, 0.5),
        (5, 4, 0, 0.5),
        (60, 80, 70, 0.1),
        (5, 3000, 400, 0.01),
        (300, 9, 2, 0.2),
    ],
)
def test_the_bits_are_those_of_counted_rows(made, dtype, rows, inner, columns, density):
    A, B = matrix(rows, inner, density, dtype, 1), matrix(inner, columns, density, dtype, 2)
    for left, right in ((A, B), (B.T.tocsr(), A.T.tocsr())):
        at_once_, counted = multiply(left, right), multiply(left, right, memory_limit=10**8)
        assert_same_bits(at_once_, counted)
    turned = multiply(A.tocsc(), B.tocsc(), format="csc")
    assert_same_bits(turned.tocsr(), multiply(A, B))
    square = matrix(rows, rows, density, dtype, 3)
    assert_same_bits(multiply(square, square), multiply(square, square.copy(), memory_limit=10**8))
    assert made == [True] * 4 + [rows < 300]


def faulty(B, fault, row):
    """Return a copy of a matrix, a row of which is not as it has to be; it has two entries at least."""
    B = B.copy()
    place = B.indptr[row]
    if fault == "nan":
        B.data[place] = np.nan
    elif fault == "infinite":
        B.data[place + 1] = -np.inf
    elif fault == "beyond":
        B.indices[B.indptr[row + 1] - 1] = B.shape[1]
    elif fault == "negative":
        B.indices[place] = -1
    elif fault == "falls":
        B.indptr[row] = B.indptr[row + 1] + 1
    elif fault == "leaves":
        B.indptr[row + 1 :] = len(B.indices) + 7
    elif fault == "unsorted":
        B.indices[place : place + 2] = B.indices[place : place + 2][::-1].copy()
        B.data[place : place + 2] = B.data[place : place + 2][::-1].copy()
    else:
        B.indices[place + 1] = B.indices[place]
    return B


def left_factor(inner):
    """Return a matrix that meets rows 2, 3, 7, 11 and 19 of the other."""
    places = np.array([2, 3, 7, 7, 11, 19], np.int32), np.array([0, 3, 3, 6], np.int32)
    return sp.csr_array((np.arange(1.0, 7.0), *places), shape=(3, inner))


FAULTS = ("nan", "infinite", "beyond", "negative", "falls", "leaves", "unsorted", "twice")


@pytest.mark.parametrize(("fault", "inner"), list(itertools.product(FAULTS, (20, 5000))))
def test_a_fault_that_a_product_meets_is_told_as_by_the_other_ways(fault, inner):
    """In A, in a small B, and in the rows that A meets of a B which is far larger than the product."""
    A, B = left_factor(inner), sp.csr_array(np.ones((inner, 4)))
    for left, right in ((A, faulty(B, fault, 7)), (faulty(A, fault, 0), B)):
        outcomes = []
        for options in ({}, {"memory_limit": 10**8}):
            try:
                outcomes.append(multiply(left, right, **options).toarray().tolist())
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        assert isinstance(outcomes[0], str) == (fault not in ("unsorted", "twice"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_a_product_does_not_meet_changes_nothing_or_is_told(fault):
    A, B = left_factor(5000), sp.csr_array(np.arange(20_000.0).reshape(5000, 4) + 1)
    whole = multiply(A, B)
    try:
        C = multiply(A, faulty(B, fault, 40))
    except ValueError:
        assert fault == "leaves"
    else:
        assert_same_bits(C, whole)


def test_values_that_are_not_finite_pass_where_the_caller_says_so(made):
    A = sp.csr_array(np.eye(4))
    B = faulty(sp.csr_array(np.ones((4, 4))), "nan", 2)
    C = multiply(A, B, check_finite=False)
    assert made == [True] and np.isnan(C.toarray()).sum() == 1


def test_memory_that_is_read_only_or_of_another_byte_order_is_read():
    A = matrix(40, 40, 0.2, "float64", 4)
    expected = multiply(A, A)
    frozen, swapped = A.copy(), A.copy()
    for part in ("indptr", "indices", "data"):
        getattr(frozen, part).flags.writeable = False
    swapped.data = swapped.data.astype(swapped.data.dtype.newbyteorder())
    for other in (frozen, swapped):
        assert_same_bits(multiply(other, other), expected)


@pytest.mark.parametrize("options", [{"precision": "float16"}, {"precision": "tf32"}, {"precision": "float64"}])
def test_what_has_to_be_rounded_or_converted_goes_another_way(made, options):
    A = matrix(20, 20, 0.2, "float32", 5)
    multiply(A, A, **options)
    multiply(A, A.astype("int32"))
    assert made == [False, False]
