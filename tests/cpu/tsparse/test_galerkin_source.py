"""Products of three matrices as on a GPU: checks compiled for the host, NumPy in CuPy's place, products the CPU's."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.tsparse import spgemm, symbolic
from spectile.tsparse.cuda import factors, galerkin, plans, run, units
from spectile.tsparse.cuda.given import Given
from spectile.tsparse.cuda.shared import FLAGS, HEAD
from tests.cuda_on_host import compiled, kernels
from tests.heads import Cleared

from .test_galerkin import assert_same, grid


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    used = units.CHECK["float64", "d"], units.CHECK["complex128", "D"]
    return {one: compiled(tmp_path_factory.mktemp("check"), one) for one in used}


def csr(one):
    data = np.ones(len(one.indices)) if getattr(one, "data", None) is None else one.data
    return sp.csr_array((data, one.indices, one.indptr), shape=one.shape)


def arrays(C):
    return C.indptr, C.indices, C.data


@pytest.fixture
def product(checks, monkeypatch):
    """Return the class of such products, which lists the rows of R A that were made together."""
    made = []

    def count_rows(R, A, first, stop, *_):
        made.append(stop - first)
        return first, stop

    def compare(A, indptr, indices, counters, which):
        if not (np.array_equal(A.indptr, indptr) and np.array_equal(A.indices, indices)):
            counters.words[HEAD["FLAGS"] + which] |= FLAGS["OTHER_PATTERN"]

    device = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(**vars(np), asnumpy=np.asarray, cuda=device))
    monkeypatch.setattr(plans, "kernel", kernels(checks))
    monkeypatch.setattr(factors, "plan", lambda _, make: make())
    monkeypatch.setattr(factors, "Counters", Cleared)
    monkeypatch.setattr(units, "prepare_rows", lambda *_: None)
    monkeypatch.setattr(run, "describe", lambda: TABLE["H200"])
    for name, stand_in in {
        "one_given": lambda _, one: Given(
            one.shape, one.indptr.astype(np.int32), one.indices.astype(np.int32), one.data, one.data.shape
        ),
        "count_rows": count_rows,
        "compare": compare,
        "finish": lambda R, A, rows, _: arrays(spgemm(csr(R)[slice(*rows)], csr(A), backend="cpu")),
        "to_csr": lambda T, P, *_: arrays(spgemm(csr(T), csr(P), backend="cpu")),
        "SymbolicProduct": lambda left, right, *_, host: symbolic(csr(left), csr(right), backend="cpu"),
        "device_csr": lambda shape, *arrays: sp.csr_array(arrays[2::-1], shape=shape),
    }.items():
        monkeypatch.setattr(galerkin, name, stand_in)
    monkeypatch.setattr(run, "copied_bytes", lambda *_: 0)
    monkeypatch.setattr(galerkin.host, "check_sparse", lambda *_: True)  # as of a matrix of CuPy
    return galerkin.GalerkinProduct, made


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("block", [2**24, 400])
def test_blocks_of_rows_are_joined_and_the_pattern_is_used_again(product, dtype, block, monkeypatch):
    make, made = product
    monkeypatch.setattr(galerkin, "_BLOCK_PRODUCTS", block)
    A, P = grid(24, dtype)
    A, R = (1 + 0.5j) * A if dtype == "c16" else A, sp.csr_array(P.T)
    one = make(R, A, P, np.dtype(dtype))
    assert (len(made) > 3) == (block == 400) and sum(made) == R.shape[0]
    assert_same(one.C, spgemm(spgemm(R, A, backend="cpu"), P, backend="cpu"))
    for factor in (2.0, 3.0):
        del made[:]
        other = A.copy()
        other.data = factor * A.data * np.linspace(1, 2, A.nnz)
        assert_same(one.numeric(other), spgemm(spgemm(R, other, backend="cpu"), P, backend="cpu"))
        assert bool(made) == (block == 400), "of few products the pattern of both is kept"
    assert repr(one).startswith("GalerkinProduct(")


def test_a_limit_makes_blocks_and_is_told_where_it_is_too_small(product):
    make, made = product
    A, P = grid(24)
    R = sp.csr_array(P.T)
    assert_same(make(R, A, P, np.dtype(float), 10**5).C, spgemm(spgemm(R, A, backend="cpu"), P, backend="cpu"))
    assert len(made) > 1
    with pytest.raises(MemoryError, match="memory_limit is 5000 bytes beside copies, and the first"):
        make(R, A, P, np.dtype(float), 5000)


def test_rows_out_of_order_and_other_patterns(product):
    make, _ = product
    A, P = grid(6)
    R = sp.csr_array(P.T)
    known = make(R, A, P, np.dtype(float))
    for which in range(3):
        given = [R.copy(), A.copy(), P.copy()]
        one = given[which]
        for first, last in zip(one.indptr, one.indptr[1:], strict=False):
            one.indices[first:last], one.data[first:last] = one.indices[first:last][::-1], one.data[first:last][::-1]
        assert_same(make(*given, np.dtype(float)).C, known.C)
        given[which].indices[0] = 10**6
        with pytest.raises(ValueError, match=rf"^{'RAP'[which]} holds a column index outside"):
            make(*given, np.dtype(float))
    assert_same(known.numeric(A), known.C)
    moved = A.copy()
    moved.indices[A.indptr[20] : A.indptr[21]] += 1
    for other in (moved, sp.csr_array(sp.eye_array(36))):
        with pytest.raises(ValueError, match=r"pattern of A differs .* call galerkin\(\) again"):
            known.numeric(other)
    with pytest.raises(TypeError, match="make another product"):
        known.numeric(1j * A)
    with pytest.raises(ValueError, match=r"^A holds"):
        known.numeric(np.nan * A)
