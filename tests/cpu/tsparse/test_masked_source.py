"""The kernels of masked products, compiled for the host."""

import ctypes
import dataclasses
import sys
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.tsparse import spgemm
from spectile.tsparse.cuda import factors, masked, plans, units, wanted
from spectile.tsparse.cuda.counters import Invalid
from spectile.tsparse.cuda.given import Given
from spectile.tsparse.cuda.shared import CONSTANTS, FLAGS, HEAD
from spectile.tsparse.semirings import SEMIRINGS
from spectile.tsparse.types import Factor, lookup
from tests.cuda_on_host import compiled, kernels
from tests.heads import Cleared


@pytest.fixture(scope="module", params=["plus_times", "min_plus", "max_plus", "max_min"])
def library(request, tmp_path_factory):
    sources = [units.MASKED["float64", code] for code in (SEMIRINGS[request.param].code, 4)]
    header = sources[0].preamble.replace("MASK_BLOCK = 1024", "MASK_BLOCK = 128")
    header = header.replace("MASK_BLOCK_PRODUCTS = 262144", "MASK_BLOCK_PRODUCTS = 300")
    header = header.replace("MASK_LEAST = 1024", "MASK_LEAST = 40")
    assert len(header) == len(sources[0].preamble) - 1 - 3 - 2
    folder = tmp_path_factory.mktemp
    made = {one: compiled(folder(request.param), dataclasses.replace(one, preamble=header)) for one in sources}
    return request.param, made


class Memory:
    """Memory that is not cleared, and 64 bytes behind it that nothing writes to."""

    held: ClassVar[list] = []

    def __init__(self, size):
        self.array = np.full(size + 64, 0xAB, np.uint8)
        self.ptr = self.array.ctypes.data
        self.held.append(self)


@pytest.fixture
def product(library, monkeypatch):
    """Return what makes the entries of a product that a mask has, and tells the pieces of warps and of blocks."""
    name, functions = library
    runtime = SimpleNamespace(
        getDevice=lambda: 0, memsetAsync=lambda at, value, size, _: ctypes.memset(at, value, size)
    )
    device = SimpleNamespace(runtime=runtime, alloc=Memory)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(**vars(np), asnumpy=np.asarray, cuda=device))
    monkeypatch.setattr(masked, "kernel", kernels(functions))
    for module in (masked, factors):
        monkeypatch.setattr(module, "plan", lambda _, make: make())
    monkeypatch.setattr(masked, "describe", lambda: dataclasses.replace(TABLE["H200"], multiprocessors=1))

    def made(A, B, mask, held=None, first=0, ones=False, counters=None):
        counters = Cleared() if counters is None else counters
        left, right = (Factor(one.shape, one.indptr, one.indices, one.data) for one in (A, B))
        of = masked.MaskedProduct(left, right, lookup("float64"), SEMIRINGS[name].code, ones and name == "plus_times")
        C = of.rows((mask.indptr, mask.indices, held), first, counters)
        assert counters.reads == 1 and all((one.array[-64:] == 0xAB).all() for one in Memory.held)
        Memory.held.clear()
        pieces = counters.words[HEAD["MASK_PIECES"] :][:2].tolist()
        return sp.csr_array(C[::-1], shape=mask.shape), pieces

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
    "more entries than a block counts": lambda: (
        matrix(50, 60, 0.1, 15),
        matrix(60, 120, 0.1, 16),
        matrix(50, 120, 0.9, 17),
    ),
    "nothing": lambda: (matrix(4, 5, 0.5, 13), sp.csr_array((5, 6)), matrix(4, 6, 0.5, 14)),
}


@pytest.mark.parametrize("kind", FACTORS)
def test_entries_are_those_of_the_cpu(product, kind):
    name, made = product
    A, B, mask = FACTORS[kind]()
    held = np.arange(mask.nnz) % 5 > 0
    mask.data = held.astype(float)
    found, _ = made(A, B, mask, held)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))


def test_some_rows_and_all_of_a_mask(product):
    name, made = product
    A, B, mask = FACTORS["short rows"]()
    mask.data[:] = 1
    found, _ = made(A, B, mask[7:], first=7)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu")[7:])


@pytest.mark.parametrize("ones", [False, True])
def test_pieces_are_searched_for_in_far_longer_rows(product, ones):
    """Of A's row, among rows of B of 700 and 1,100 entries, short ones: sums that round, of exact products."""
    name, made = product
    rng = np.random.default_rng(30)

    def numbers(*shape):
        return np.ldexp(rng.integers(-9, 10, shape) + 0.5, rng.integers(-25, 25, shape))

    A, B, mask = numbers(5, 50), np.zeros((50, 1200)), np.zeros((5, 1200))
    for row, many in enumerate(rng.choice([3, 40, 700, 1100], 50)):
        B[row, rng.choice(1200, many, replace=False)] = numbers(many)
    for row, many in enumerate((3, 20, 33, 64, 400)):
        mask[row, rng.choice(1200, many, replace=False)] = 1
    A[1, ::3] = 0
    A, B, mask = (sp.csr_array(one) for one in (A, B, mask))
    if ones:
        A.data[:], B.data[:] = 1, 1
    held = np.arange(mask.nnz) % 7 > 0
    mask.data = held.astype(float)
    found, (_, blocks) = made(A, B, mask, held, ones=ones)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))
    assert (blocks > 0) == (ones and name == "plus_times")


@pytest.mark.parametrize("held", [False, True])
def test_blocks_count_larger_pieces(product, held):
    """Rows of more entries than a warp takes, in pieces of columns and of A's entries, where all values are 1."""
    name, made = product
    rng = np.random.default_rng(20)
    A, B, mask = (
        sp.lil_array(matrix(*size, 0.05, 21 + n)) for n, size in enumerate(((40, 90), (90, 2500), (40, 2500)))
    )
    A[3], A[4, :70], mask[3], mask[4, :65], mask[5, 0], A[5] = 1, 1, 1, 1, 1, 1
    A, B, mask = (sp.csr_array(one) for one in (A, B, mask))
    which = rng.random(mask.nnz) < 0.7 if held else None
    for one in (A, B, mask):
        one.data[:] = 1
    mask.data[:] = 1 if which is None else which
    found, (_, blocks) = made(A, B, mask, which, ones=True)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))
    assert (blocks > 0) == (name == "plus_times")


@pytest.mark.parametrize("kind", ["?", "f", "d", "F", "D"])
def test_entries_count_that_are_not_0(product, kind):
    """Of the least size, of either sign, in either part, and numbers that are none."""
    name, made = product
    A, B, mask = FACTORS["mask in pieces"]()
    values = np.zeros(mask.nnz, kind)
    parts = values if kind == "?" else values.view(values.real.dtype)
    least = 1 if kind == "?" else np.nextafter(parts.dtype.type(0), parts.dtype.type(1))
    for place, one in enumerate([0] if kind == "?" else [0, 3, 5, 8]):
        parts[one::11] = (least, -least, np.nan, -1)[place]
    if kind != "?":
        parts[10::11] = -0.0
    mask.data = (values != 0).astype(float)
    found, _ = made(A, B, mask, values)
    assert 0 < mask.sum() < mask.nnz
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))


def test_work_is_cut_into_a_piece_for_each_warp(product):
    """One row of many products is not one warp's."""
    name, made = product
    A, B, mask = matrix(3, 20, 0.5, 40), matrix(20, 2000, 0.9, 41), matrix(3, 2000, 0.1, 42)
    found, (warps, _) = made(A, B, mask, mask.data)
    assert_same(found, spgemm(A, B, semiring=name, mask=mask, backend="cpu"))
    assert warps > 2 * (2000 * 0.1 // CONSTANTS["MASK_PIECE"] + 1) * 2


def test_values_that_are_all_one_are_not_read(product):
    name, made = product
    if name != "plus_times":
        pytest.skip("products of ones are counted where they are summed")
    A, B, mask = FACTORS["short rows"]()
    ones = [sp.csr_array((np.ones(one.nnz), one.indices, one.indptr), shape=one.shape) for one in (A, B, mask)]
    assert_same(made(A, B, mask, ones=True)[0], spgemm(*ones[:2], semiring=name, mask=ones[2], backend="cpu"))


def test_few_entries_of_many_products_are_searched_for(product):
    """Rows of B of 90 entries, of which the mask has one or two of each row."""
    name, made = product
    A, B = np.ones((3, 40)), np.ones((40, 90))
    B[:, 1:31] = 2
    B[5:, 0] = 0
    mask = np.zeros((3, 90))
    mask[0, 0] = mask[1, 89] = mask[2, 4] = mask[2, 60] = 1
    A, B, mask = (sp.csr_array(one) for one in (A, B, mask))
    assert_same(made(A, B, mask)[0], spgemm(A, B, semiring=name, mask=mask, backend="cpu"))


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    codes = {units.CHECK_PATTERN, units.CHECK["float64", "d"]}
    return {one: compiled(tmp_path_factory.mktemp("check"), one) for one in codes}


@pytest.fixture
def call(product, checks, monkeypatch):
    """Return what calls `wanted.spgemm` with factors and a mask on the device, and counts its waits."""
    name, _ = product
    waits = []

    class Counted(Cleared):
        def __init__(self, rows):
            super().__init__(rows)
            waits.append(self)

    monkeypatch.setattr(plans, "kernel", kernels(checks))
    monkeypatch.setattr(units, "prepare_rows", lambda *_: None)
    monkeypatch.setattr(wanted, "device_csr", lambda shape, *arrays: sp.csr_array(arrays[2::-1], shape=shape))
    monkeypatch.setattr(wanted, "is_array", lambda *_: True)
    monkeypatch.setattr(factors, "Counters", Counted)

    def called(*matrices):
        del waits[:]
        on_device = {id(one): Given(one.shape, one.indptr, one.indices, one.data, one.data.shape) for one in matrices}
        A, B, mask = (on_device[id(one)] for one in matrices)
        asked = wanted.Wanted(SEMIRINGS[name], mask)
        C = wanted.spgemm(A, B, lookup("float64"), None, asked, False)
        return C, sum(one.reads for one in waits)

    return name, called


def test_a_call_waits_once(call):
    """Whichever of the factors the mask is, or neither."""
    name, called = call
    A, B, mask = matrix(40, 40, 0.2, 51), matrix(40, 40, 0.2, 52), matrix(40, 40, 0.3, 53)
    for given in ((A, B, mask), (A, B, A), (A, B, B), (A, A, A)):
        C, waits = called(*given)
        assert_same(C, spgemm(*given[:2], semiring=name, mask=given[2], backend="cpu"))
        assert waits == 1


@pytest.mark.parametrize("which", range(3))
def test_rows_out_of_order_are_brought_in_order(call, which):
    name, called = call
    given = [matrix(40, 40, 0.2, 54 + n) for n in range(3)]
    known = spgemm(*given[:2], semiring=name, mask=given[2], backend="cpu")
    one = given[which] = given[which].copy()
    for first, last in zip(one.indptr, one.indptr[1:], strict=False):
        one.indices[first:last], one.data[first:last] = one.indices[first:last][::-1], one.data[first:last][::-1]
    assert_same(called(*given)[0], known)


@pytest.mark.parametrize("which", range(3))
def test_columns_out_of_range_are_refused(call, which):
    given = [matrix(40, 40, 0.2, 54 + n) for n in range(3)]
    given[which].indices[-1] = 10**6
    with pytest.raises(ValueError, match=f"^{('A', 'B', 'mask')[which]} holds a column index outside 0 to 39"):
        call[1](*given)


def test_what_the_check_refused_is_not_followed(product):
    """Flags of the factors are read with what is counted: columns beyond B's rows lead nowhere until then."""
    _, made = product
    A, B, mask = FACTORS["short rows"]()
    A.indices[:] = 2**30
    counters = Cleared()
    counters.words[HEAD["FLAGS"]] = FLAGS["BAD_INDEX"]
    with pytest.raises(Invalid):
        made(A, B, mask, counters=counters)
