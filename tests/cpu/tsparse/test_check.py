"""The check of one or two factors by one launch, by the kernel compiled for the host: what is wrong, and in which."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse.cuda import factors, plans, units
from spectile.tsparse.cuda.counters import Head
from spectile.tsparse.cuda.shared import FLAGS, HEAD_WORDS, ROUNDING, UNSORTED

from ...cuda_on_host import compiled, kernels

UNIT = units.CHECK["float32", "d"]
WRONG = {
    "nothing": (lambda A: None, 0),
    "a value": (lambda A: A.data.__setitem__(5, np.inf), FLAGS["NOT_FINITE"]),
    "a large value": (lambda A: A.data.__setitem__(5, 1e60), FLAGS["FLOAT_RANGE"]),
    "a column beyond": (lambda A: A.indices.__setitem__(-1, A.shape[1]), FLAGS["BAD_INDEX"]),
    "a column below": (lambda A: A.indices.__setitem__(0, -1), FLAGS["BAD_INDEX"]),
    "an order": (lambda A: A.indices.__setitem__(slice(0, 2), A.indices[1::-1].copy()), UNSORTED),
    "a pointer that falls": (lambda A: A.indptr.__setitem__(3, A.indptr[5] + 1), FLAGS["BAD_POINTER"]),
    "a pointer beyond": (lambda A: A.indptr.__setitem__(-1, A.nnz + 1), FLAGS["BAD_POINTER"]),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("check"), UNIT)


def matrix(rows, columns, seed):
    A = sp.random_array((rows, columns), density=0.4, rng=np.random.default_rng(seed), format="csr")
    A.sort_indices()
    A.indptr, A.indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    return A


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_found_in_its_factor(library, wrong, which, monkeypatch):
    """One factor, as the second; and either of two, of which the first may take more blocks."""
    monkeypatch.setattr(plans, "kernel", kernels({UNIT: library}))
    fault, flag = WRONG[wrong]
    some = [matrix(12, 30, 1)] if which == 2 else [matrix(90, 40, 2), matrix(40, 25, 3)]
    fault(some[which % len(some)])
    given = [(A.indptr, A.indices, A.data, np.full(len(A.data), np.nan, np.float32)) for A in some]
    sizes = [(*A.shape, len(A.indices)) for A in some]
    first = 1 if which == 2 else 0
    words = np.zeros(HEAD_WORDS, np.int32)
    launch = factors._bound_check(UNIT, sizes, ROUNDING["KEEP"], first, True)
    addresses = [x.ctypes.data for arrays in given for x in arrays]
    launch(None, *addresses, *[0] * (8 - len(addresses)), words.ctypes.data)
    expected = [0, 0, 0]
    expected[1 if which == 2 else which] = flag
    found = Head(words.tobytes()).flags()
    assert [one & ~UNSORTED for one in found] == [one & ~UNSORTED for one in expected]
    assert not flag & UNSORTED or found == expected
    for arrays in given:
        finite = np.isfinite(arrays[2])
        with np.errstate(over="ignore"):
            assert np.array_equal(arrays[3][finite], arrays[2][finite].astype(np.float32)), "values are rounded"
