"""The kernels of masked products, compiled for the host."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile.tsparse.cuda import masked, units
from spectile.tsparse.semirings import SEMIRINGS
from spectile.tsparse.types import Factor, lookup
from tests.cuda_on_host import compiled, launch


@pytest.fixture(scope="module", params=["plus_times", "min_plus", "max_plus", "max_min"])
def library(request, tmp_path_factory):
    unit = units.MASKED["float64", SEMIRINGS[request.param].code]
    return request.param, compiled(tmp_path_factory.mktemp(request.param), unit)


@pytest.fixture
def product(library, monkeypatch):
    """Return what makes the entries of a product that a mask has, and lists the kernels that it launches."""
    name, functions = library
    launched = []

    def kernel(_, kernel):
        launched.append(kernel)
        return lambda shape, *arguments: launch(functions, kernel, shape, *arguments)

    def turned(indptr, indices, columns):
        T = sp.csr_array((np.arange(len(indices)), indices, indptr), shape=(len(indptr) - 1, columns)).tocsc()
        return T.indptr, T.indices, T.data

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(**vars(np), asnumpy=np.asarray))
    monkeypatch.setattr(masked, "kernel", kernel)
    monkeypatch.setattr(masked, "turned", turned)

    def made(A, B, mask, held=None, first=0, ones=False):
        del launched[:]
        left, right = (Factor(one.shape, one.indptr, one.indices, one.data) for one in (A, B))
        of = masked.MaskedProduct(left, right, lookup("float64"), SEMIRINGS[name].code, ones)
        return sp.csr_array(of.rows((mask.indptr, mask.indices, held), first)[::-1], shape=mask.shape), launched

    return name, made


def matrix(m, n, density, seed):
    """Return a matrix of small integers with an empty row, whose sums and sizes are exact."""
    A = sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format="lil")
    A[m // 2] = 0
    A = sp.csr_array(A)
    A.data = np.round(9 * A.data - 4)
    return A


def hub(m, n, rows, seed):
    """Return a matrix with full rows."""
    A = matrix(m, n, 0.02, seed).tolil()
    A[:rows] = 1.5 + np.arange(n) % 7
    return sp.csr_array(A)


def assert_same(found, known):
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name))


FACTORS = {
    "short rows": lambda: (matrix(20, 200, 0.1, 1), matrix(200, 50, 0.02, 2), matrix(20, 50, 0.3, 3)),
    "long rows": lambda: (matrix(6, 20, 0.3, 4), matrix(20, 300, 0.4, 5), matrix(6, 300, 0.2, 6)),
    "mask in pieces": lambda: (matrix(3, 40, 0.5, 7), matrix(40, 700, 0.05, 8), matrix(3, 700, 0.9, 9)),
    "hubs": lambda: (hub(6, 300, 2, 10), matrix(300, 40, 0.1, 11), matrix(6, 40, 0.2, 12)),
    "nothing": lambda: (matrix(4, 5, 0.5, 13), sp.csr_array((5, 6)), matrix(4, 6, 0.5, 14)),
}


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("kind", FACTORS)
def test_entries_are_those_of_the_cpu(product, kind, by_columns, monkeypatch):
    name, made = product
    A, B, mask = FACTORS[kind]()
    held = np.arange(mask.nnz) % 5 > 0
    mask.data = held.astype(float)
    if by_columns:
        monkeypatch.setattr(masked, "_SLOW", -1)
    found, launched = made(A, B, mask, held)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))
    assert ("by_columns" in launched) == (by_columns and B.nnz > 0)


def test_some_rows_and_all_of_a_mask(product):
    name, made = product
    A, B, mask = FACTORS["short rows"]()
    mask.data[:] = 1
    found, _ = made(A, B, mask[7:], first=7)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu")[7:])


@pytest.mark.parametrize("by_columns", [False, True])
def test_values_that_are_all_one_are_not_read(product, by_columns, monkeypatch):
    name, made = product
    A, B, mask = FACTORS["short rows"]()
    if by_columns:
        monkeypatch.setattr(masked, "_SLOW", -1)
    ones = [sp.csr_array((np.ones(one.nnz), one.indices, one.indptr), shape=one.shape) for one in (A, B, mask)]
    assert_same(made(A, B, mask, ones=True)[0], spgemm(*ones[:2], semiring=name, mask=ones[2], backend="cpu"))


def test_a_hub_row_with_few_entries_in_the_mask_goes_by_columns(product, monkeypatch):
    name, made = product
    monkeypatch.setattr(masked, "_TURN_COST", 0)
    A, B = np.ones((1, 400)), np.zeros((400, 90))
    B[:, 1:31] = B[:5, 0] = 1
    found, launched = made(sp.csr_array(A), sp.csr_array(B), sp.csr_array(np.eye(1, 90)))
    assert "by_columns" in launched
    assert found.data == {"plus_times": 5, "min_plus": 2, "max_plus": 2, "max_min": 1}[name]
