"""Entries of a sparse matrix at one place are summed alike by every system, whatever the format and the type."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm.operators.stored import StoredMatrix
from spectile.tiles import TileMatrix
from spectile.tsparse import galerkin, spgemm, spmm

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
