"""Entries of a sparse matrix at one place are summed alike by every system, whatever the format and the type."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm.operators.stored import StoredMatrix
from spectile.tiles import TileMatrix
from spectile.tsparse import galerkin, spgemm, spmm, symbolic

EYE = sp.eye_array(4, format="csr")
SUMS = {
    "from_sparse": lambda a: TileMatrix.from_sparse(a, 2).to_dense(),
    "kpm": lambda a: StoredMatrix(a).csr(np.dtype(np.float64)).toarray(),
    "kpm, float32": lambda a: StoredMatrix(a).csr(np.dtype(np.float32)).toarray(),
    "spgemm": lambda a: spgemm(a, EYE, backend="cpu").toarray(),
    "spmm": lambda a: spmm(a, np.eye(4)),
    "galerkin": lambda a: galerkin(EYE, a, EYE).C.toarray(),
}
VALUES = [(np.float32, 0.1), (np.float64, 1e30), (bool, True), (np.int8, 100), (np.uint8, 200), (np.int32, 2**31 - 1)]
#: Galerkin's products are of floats.
CASES = [(name, *one) for name in SUMS for one in (VALUES[:2] if name == "galerkin" else VALUES)]


def in_format(form, value, dtype):
    """Return a matrix that holds a value at (1, 2) three times, and at (3, 0) once."""
    values = np.full(4, value, dtype)
    if form == "coo":
        return sp.coo_array((values, ([1, 1, 3, 1], [2, 2, 0, 2])), shape=(4, 4))
    if form == "bsr":
        blocks = np.zeros((4, 2, 2), dtype)
        blocks[:3, 1, 0], blocks[3, 1, 0] = value, value
        return sp.bsr_array((blocks, [1, 1, 1, 0], [0, 3, 4]), shape=(4, 4))
    rows, pointer = ([2, 2, 2, 0], [0, 0, 3, 3, 4]) if form == "csr" else ([3, 1, 1, 1], [0, 1, 1, 4, 4])
    return getattr(sp, f"{form}_array")((values, rows, pointer), shape=(4, 4))


@pytest.mark.parametrize(("name", "dtype", "value"), CASES)
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
def test_sums_of_entries_neither_wrap_nor_depend_on_the_format(name, form, dtype, value):
    matrix = in_format(form, value, dtype)
    before = matrix.data.copy(), matrix.nnz
    made = SUMS[name](matrix)
    wanted = np.zeros((4, 4))
    wanted[1, 2], wanted[3, 0] = (1 if dtype is bool else 3) * float(dtype(value)), float(dtype(value))
    np.testing.assert_allclose(made, wanted, rtol=1e-6 if dtype is np.float32 or "32" in name else 1e-15)
    assert np.array_equal(matrix.data, before[0]) and matrix.nnz == before[1]


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
def test_large_integers_that_wrap_to_zero_are_refused(form):
    a = in_format(form, 2**62, np.int64)
    with pytest.raises(ValueError, match="a has integers beyond"):
        TileMatrix.from_sparse(a, 2)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
def test_sums_of_integers_in_tiles_are_exact_or_refused(form, dtype):
    """Also where each addend is held by float64 and a sum on the way, or the last one, is not."""
    for value, fits in (
        (2**51 + 1, True), (2**53 // 3, True), (2**53 // 3 + 1, False), (2**52 + 1, False), (2**53 - 1, False),
    ):  # fmt: skip
        a = in_format(form, value, dtype)
        if fits:
            assert int(TileMatrix.from_sparse(a, 2).to_dense()[1, 2]) == 3 * value
        else:
            with pytest.raises(ValueError, match="a has integers beyond"):
                TileMatrix.from_sparse(a, 2)
    many = sp.coo_array((np.full(3000, 2**53), (np.zeros(3000, int), np.zeros(3000, int))), shape=(4, 4))
    with pytest.raises(ValueError, match="a has integers beyond"):
        TileMatrix.from_sparse(many.astype(dtype), 2)


def test_integers_whose_sum_float64_holds_and_not_the_sums_on_the_way():
    values, row, column = np.array([2**53, 1, -(2**53)]), [1, 1, 1], [2, 2, 2]
    for a in (
        sp.coo_array((values, (row, column)), shape=(4, 4)),
        sp.csr_array((values, column, [0, 0, 3, 3, 3]), shape=(4, 4)),
        sp.csc_array((values, row, [0, 0, 0, 3, 3]), shape=(4, 4)),
    ):
        assert TileMatrix.from_sparse(a, 2).to_dense()[1, 2] == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("forms", [("csr", "csc"), ("csc", "csr"), ("csc", "csc"), ("coo", "csc"), ("csr", "csr")])
def test_every_way_of_a_product_sums_them_in_one_order(forms, seed):
    """By rows, by columns, with a limit and on a kept pattern: terms of one entry differ in size and in last bits."""
    rng = np.random.default_rng(seed)
    for m, k, n in rng.integers(1, 30, (60, 3)):
        factors = []
        for form, shape in zip(forms, ((m, k), (k, n)), strict=True):
            count = rng.integers(0, 150)
            places = tuple(rng.integers(0, side, count) for side in shape)
            major = np.argsort(places[form == "csc"], kind="stable")  # within it in any order
            values, (row, column) = rng.standard_normal(count), (one[major] for one in places)
            if form == "coo":
                factors.append(sp.coo_array((values, (row, column)), shape=shape))
                continue
            side, minor = (shape[0], column) if form == "csr" else (shape[1], row)
            ends = np.cumsum(np.bincount(places[form == "csc"], minlength=side))
            factors.append(getattr(sp, f"{form}_array")((values, minor, np.append(0, ends)), shape=shape))
        C, kept = spgemm(*factors, backend="cpu"), symbolic(*factors, backend="cpu")
        for other in (
            spgemm(*factors, backend="cpu", memory_limit=10**9),
            spgemm(*factors, backend="cpu", format="csc").tocsr(),
            kept.multiply(*factors),
        ):
            assert C.data.tobytes() == other.data.tobytes() and np.array_equal(C.indices, other.indices)
        assert C.data.tobytes() == kept.numeric(*(one.data for one in factors)).tobytes()
