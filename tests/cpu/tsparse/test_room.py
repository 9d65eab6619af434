"""The arithmetic of a limit on the CPU: what it leaves, what is named where it leaves too little."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse.cpu import memory
from spectile.tsparse.cpu.threads import workspace_bytes
from spectile.tsparse.types import COMPLEX, PRECISIONS

FLOAT64 = PRECISIONS["float64"]


def random(m, n, entries, seed=1, dtype=np.float64, form="csr"):
    rng = np.random.default_rng(seed)
    places = rng.choice(m * n, entries, replace=False)
    values = rng.integers(1, 100, entries).astype(dtype)
    A = sp.coo_array((values, (places // n, places % n)), shape=(m, n)).tocsr()
    A.sort_indices()
    return A.asformat(form)


def least(A, B, precision=FLOAT64, **options):
    """Return the limit that a refusal names."""
    with pytest.raises(MemoryError, match="copies of A and B and the sums of one row take") as refused:
        memory.room(A, B, precision, 1, **options)
    take, enough = map(int, re.search(r"take (\d+); raise it to at least (\d+)", str(refused.value)).groups())
    assert take == enough and str(refused.value).startswith("memory_limit is 1 bytes")
    return enough


def of_type(A, dtype):
    """Return a matrix of another type of values, with the same indices."""
    B = A.copy()
    B.indptr, B.indices, B.data = A.indptr, A.indices, A.data.astype(dtype)
    return B


FACTORS = {
    "csr": (random(300, 200, 900), random(200, 400, 700, 2)),
    "a square": (square := random(150, 150, 600), square),
    "csc": (random(300, 200, 900, form="csc"), random(200, 400, 700, 2, form="csc")),
    "coo": (random(300, 200, 900, form="coo"), random(200, 400, 700, 2, form="coo")),
    "few entries": (random(50, 60, 40), random(60, 5000, 30, 2)),
    "int8": (random(300, 200, 900, dtype=np.int8), random(200, 400, 700, 2, dtype=np.int8)),
    "float32": (random(300, 200, 900, dtype=np.float32), random(200, 400, 700, 2, dtype=np.float32)),
    "complex": (random(300, 200, 900, dtype=np.complex128), random(200, 400, 700, 2, dtype=np.complex64)),
}


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"kept": True}, {"extra": 12_345}], ids=str)
def test_a_limit_holds_from_the_number_on_that_is_named(kind, options):
    A, B = FACTORS[kind]
    enough = least(A, B, **options)
    columns = B.shape[1] if kind != "few entries" else B.nnz
    assert memory.room(A, B, FLOAT64, enough, **options) == workspace_bytes(columns, 8)
    with pytest.raises(MemoryError):
        memory.room(A, B, FLOAT64, enough - 1, **options)
    more = memory.room(A, B, FLOAT64, enough + 777, **options)
    assert more == workspace_bytes(columns, 8) + 777
    assert memory.room(A, B, FLOAT64, None, **options) is None


@pytest.mark.parametrize("kind", FACTORS)
def test_what_is_copied_is_counted_once_and_in_its_type(kind):
    A, B = FACTORS[kind]
    stored, rows = A.nnz + (0 if A is B else B.nnz), A.shape[0] + (0 if A is B else B.shape[0])
    base = least(A, B)
    assert least(A, B, extra=1000) == base + 1000
    # A kept pattern copies columns of 32 bits and their places, and a pointer; sums of integers an integer and a float.
    assert least(A, B, kept=True) == base + 12 * stored + 8 * rows
    assert least(A, B, exact=True) == base + 16 * stored
    if A is B:
        assert least(A, A.copy()) > base


def test_each_conversion_takes_more_and_none_takes_nothing():
    A, B = FACTORS["csr"]
    wide, short, far, unsorted = (A.copy() for _ in range(4))  # a copy has indices of one type
    for each, pointer, columns in ((wide, "i8", "i4"), (short, "i4", "i4"), (far, "i8", "i8"), (unsorted, "i8", "i4")):
        each.indptr, each.indices = A.indptr.astype(pointer), A.indices.astype(columns)
    # The pointer alone is of another type than kernels read.
    assert least(short, B) - least(wide, B) == 8 * (A.shape[0] + 1)
    assert least(far, B) - least(wide, B) == 4 * A.nnz
    unsorted.indices = unsorted.indices[::-1].copy()
    unsorted.has_sorted_indices = unsorted.has_canonical_format = False
    assert least(unsorted, B) > least(wide, B) + 16 * A.nnz
    for dtype, itemsize in ((np.int8, 4), (np.int16, 4), (np.int32, 8), (np.uint32, 8), (np.int64, 8), (np.bool_, 4)):
        one = of_type(wide, dtype)
        # As floats that hold them, and in the type of the product where that is another.
        assert least(one, B) - least(wide, B) == A.nnz * (itemsize + (9 if itemsize == 4 else 0)), dtype
    narrow = of_type(wide, np.float32)
    assert least(narrow, B) - least(wide, B) == 9 * A.nnz
    assert least(narrow, B, PRECISIONS["float32"]) < least(wide, B, PRECISIONS["float32"])
    twice = of_type(wide, np.complex64)
    assert least(twice, B, COMPLEX["float64"]) > least(of_type(wide, np.complex128), B, COMPLEX["float64"])
    for rounded in ("tf32", "float16"):
        assert least(A, B, PRECISIONS[rounded]) >= least(A, B, PRECISIONS["float32"]) + 20 * (A.nnz + B.nnz)
    for form in ("coo", "csc", "bsr"):
        assert least(A.asformat(form), B) >= least(A, B) + 12 * A.nnz, form


@pytest.mark.parametrize("entries", [1, 5, 1000, 5000])
def test_columns_are_renumbered_where_there_are_far_more_than_entries(entries):
    assert not memory.renumbers(4 * entries, entries, True) and memory.renumbers(4 * entries + 1, entries, True)
    most = max(2**16, 64 * entries)
    assert not memory.renumbers(most, entries, False) and memory.renumbers(most + 1, entries, False)
    for limited in (True, False):  # whatever fits, 32 bits do not number so many
        assert memory.renumbers(2**31, 2**40, limited) and not memory.renumbers(2**31 - 1, 2**40, limited)


@pytest.mark.parametrize("form", ["coo", "csc", "csr"])
def test_rows_are_renumbered_where_no_pointer_has_their_length(form):
    for inner, many in ((2**16, False), (2**16 + 1, True), (2**31, True)):
        if form == "csr" and inner == 2**31:
            continue  # the pointer alone takes 17 GB
        B = sp.coo_array((np.ones(2), ([0, 5], [0, 1])), shape=(inner, 2)).asformat(form)
        A = sp.coo_array((np.ones(3), ([0, 1, 1], [0, 2, 3])), shape=(4, inner))
        assert memory.narrows(A, B) is (many and form != "csr")
        if memory.narrows(A, B):
            assert least(A, B) < 2**16
    full = sp.coo_array((np.ones(600), (np.arange(600), np.zeros(600, int))), shape=(64 * 1200, 1))
    left = sp.coo_array((np.ones(600), (np.zeros(600, int), np.arange(600))), shape=(1, 64 * 1200))
    assert not memory.narrows(left, full)
    assert memory.narrows(left, sp.coo_array((full.data, full.coords), shape=(64 * 1200 + 1, 1)))


def test_sums_before_they_are_boolean_fit_or_are_refused():
    work = workspace_bytes(100, 8)
    memory.require(None, 5.0, 10**9, 100)
    memory.require(10**6, None, 10**9, 100)
    memory.require(10**6, 4000.0 + work, 4000, 100)
    with pytest.raises(MemoryError, match="sums of C before they are Boolean take 4000 more") as refused:
        memory.require(10**6, 3000.0 + work, 4000, 100)
    need = int(re.search(r"at least (\d+)", str(refused.value))[1])
    assert 10**6 + 1000 <= need <= 10**6 + 1001
