"""Semirings, masks, sums and selections on the GPU: the entries of the CPU."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile.tsparse.cuda import wanted as gpu_wanted
from spectile.tsparse.semirings import SEMIRINGS

from .test_spgemm import peak_bytes, random

pytestmark = pytest.mark.gpu

INTEGRAL = ("or_and", "any_pair", "plus_pair")


def on_gpu(A):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (cupy.asarray(x) for x in (A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)))
    return csr_matrix(tuple(arrays), shape=A.shape)


def host_of(array):
    return array.get() if hasattr(array, "get") else array


def assert_same(found, C, rtol=1e-13):
    found = found if sp.issparse(found) else found.get()
    assert found.shape == C.shape
    np.testing.assert_array_equal(found.indptr, C.indptr)
    np.testing.assert_array_equal(found.indices, C.indices)
    np.testing.assert_allclose(found.data.astype(C.dtype), C.data, rtol=rtol, atol=max(rtol, 1e-13))


def factors(kind, seed=1):
    rng = np.random.default_rng(seed)
    if kind == "hub":
        A, B = random(300, 400, 0.01, rng).tolil(), random(400, 350, 0.01, rng).tolil()
        A[7], B[:, 9] = 1.5, -0.5
        return sp.csr_array(A), sp.csr_array(B)
    return random(300, 400, 0.05, rng), random(400, 350, 0.05, rng)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("kind", ["random", "hub"])
@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_products_over_semirings(semiring, kind, where, monkeypatch):
    A, B = factors(kind)
    mask = sp.random_array((300, 350), density=0.1, rng=2, format="csr")
    mask.data[::4] = 0
    given = [on_gpu(x) if where == "device" else x for x in (A, B, mask)]
    for most in (2**24, 3000):
        monkeypatch.setattr(gpu_wanted, "_BLOCK_ENTRIES", most)
        for options in ({}, {"mask": mask}, {"mask": mask, "complement": True}):
            C = spgemm(A, B, semiring=semiring, backend="cpu", **options)
            if options:
                options = {**options, "mask": given[2]}
            found = spgemm(given[0], given[1], semiring=semiring, backend="cuda", **options)
            assert_same(found, C)
            if where == "host":
                assert found.dtype == C.dtype


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D"])
def test_masked_entries_have_the_bits_of_the_whole_product(dtype):
    A, B = (x.astype(dtype) for x in factors("random"))
    mask = sp.random_array((300, 350), density=0.1, rng=3, format="csr")
    whole = spgemm(A, B, backend="cuda").tocsr()
    part = spgemm(A, B, mask=mask, backend="cuda").tocoo()
    np.testing.assert_array_equal(part.data, whole.toarray()[part.row, part.col])


@pytest.mark.parametrize("semiring", ["or_and", "any_pair", "plus_times"])
def test_entries_that_are_true_are_alike_in_a_selection(semiring):
    A = sp.csr_array(np.ones((2, 3), bool))
    B = sp.csr_array(np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]], bool))
    for options in ({"top_n": 1}, {"top_n": 2}, {"prune": 1}, {"prune": 2}):
        wanted = spgemm(A, B, semiring=semiring, backend="cpu", **options)
        assert_same(spgemm(A, B, semiring=semiring, backend="cuda", **options), wanted)


@pytest.mark.parametrize("dtype", ["f4", "F"])
def test_the_smallest_numbers_are_not_zero(dtype):
    A = sp.csr_array(np.array([[1e-42, -1e-42, 1e-20, 0]], dtype))
    A.data[2] = 0
    one = sp.csr_array(np.ones((1, 1), dtype))
    for mask in (A, on_gpu(A)):
        left, right = (one, sp.csr_array(np.ones((1, 4), dtype)))
        if mask is not A:
            left, right = on_gpu(left), on_gpu(right)
        found = spgemm(left, right, mask=mask, backend="cuda")
        assert found.indices.tolist() == [0, 1]
        assert host_of(spgemm(left, mask, semiring="or_and", backend="cuda").data).tolist() == [True, True, False]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("semiring", ["plus_times", "min_plus", "max_plus", "max_min"])
def test_what_is_no_number_stays_whatever_comes_after(semiring, masked):
    """An entry has three products, of which one is no number: the first, the second or the last."""
    rng = np.random.default_rng(6)
    A = sp.csr_array(rng.uniform(1, 2, (60, 3)))
    for place in range(60):
        A[place, place % 3] = np.nan if place % 2 else np.inf
    B = sp.csr_array(rng.uniform(-2, -1, (3, 40)))
    B[1] = -np.inf
    options = {"semiring": semiring, "check_finite": False}
    options |= {"mask": sp.csr_array(np.ones((60, 40)))} if masked else {}
    wanted = spgemm(A, B, backend="cpu", **options).toarray()
    assert np.isnan(wanted).sum() > 0 and (semiring == "plus_times" or not np.isnan(wanted).all())
    np.testing.assert_allclose(spgemm(A, B, backend="cuda", **options).toarray(), wanted, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D"])
def test_masks_with_hubs_and_long_rows(dtype):
    rng = np.random.default_rng(5)
    A, B = (sp.lil_array(random(700, 700, 0.02, rng)) for _ in range(2))
    A[3], B[11], B[:, 5] = 1.0, 2.0, -1.0
    A, B = (sp.csr_array(x).astype(dtype) for x in (A, B))
    mask = sp.lil_array(sp.random_array((700, 700), density=0.02, rng=rng))
    mask[3, :3], mask[9], mask[40] = 1, 1, 1
    mask = sp.csr_array(mask)
    C = spgemm(A, B, mask=mask, backend="cpu")
    found = spgemm(on_gpu(A), on_gpu(B), mask=on_gpu(mask), backend="cuda")
    assert_same(found, C, rtol=1e-4 if dtype in ("f4", "F") else 1e-12)
    whole = spgemm(on_gpu(A), on_gpu(B)).get()
    part = found.get().tocoo()
    np.testing.assert_array_equal(part.data, np.asarray(whole[part.row, part.col]).ravel())


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("semiring", ["plus_pair", "any_pair", "or_and", "plus_times", "min_plus"])
def test_a_mask_that_is_a_factor(semiring, complement):
    """Unsorted, with duplicates and zeros, of which a sum may be one: looked at once, as A, B or both."""
    A = random(200, 200, 0.05, np.random.default_rng(7)).tocoo()
    again = np.arange(0, A.nnz, 3)
    data = np.concatenate([np.where(np.arange(A.nnz) % 7 == 0, 0, A.data), -A.data[again]])
    row, column = (np.concatenate([x, x[again]]) for x in A.coords)
    order = np.lexsort((np.random.default_rng(8).random(len(row)), row))
    indptr = np.searchsorted(row[order], np.arange(201)).astype(np.int32)
    A = sp.csr_array((data[order], column[order].astype(np.int32), indptr), shape=A.shape)
    B = random(200, 200, 0.05, np.random.default_rng(9))
    for left, right, mask in ((A, A, A), (A, B, A), (B, A, A)):
        C = spgemm(left, right, semiring=semiring, mask=mask, complement=complement, backend="cpu")
        there = {id(one): on_gpu(one) for one in (A, B)}
        for given in (lambda one: one, lambda one, there=there: there[id(one)]):
            options = {"semiring": semiring, "mask": given(mask), "complement": complement, "backend": "cuda"}
            assert_same(spgemm(given(left), given(right), **options), C)
    broken = on_gpu(B)
    broken.indices[50] = 10**6
    with pytest.raises(ValueError, match="column"):
        spgemm(broken, broken, semiring=semiring, mask=broken, complement=complement)


def test_a_mask_keeps_a_limit_and_takes_what_it_counts():
    from spectile.tsparse.cuda import masked

    A = random(5000, 5000, 0.004, np.random.default_rng(10))
    G = on_gpu(A)
    whole = spgemm(G, G, mask=G)
    size, copies = sum(one.nbytes for one in (whole.indptr, whole.indices, whole.data)), 3 * 4096
    counted = A.nnz * 26 + 8 * 5000
    enough = counted + masked._PIECES + copies
    for limit in (counted * 7 // 10 + copies, enough, 10 * enough):
        peak = peak_bytes(lambda limit=limit: spgemm(G, G, mask=G, memory_limit=limit))
        assert peak <= size + limit + 16 * 512
        if limit >= enough:
            assert 0.9 * counted <= peak
        found = spgemm(G, G, mask=G, memory_limit=limit)
        assert (found.indptr == whole.indptr).all() and (found.indices == whole.indices).all()
        assert found.data.tobytes() == whole.data.tobytes()
    with pytest.raises(MemoryError, match="raise it by at least"):
        spgemm(G, G, mask=G, memory_limit=copies + 12 * A.nnz)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("dtype", ["f8", "D"])
def test_sums_and_selections(dtype, where, monkeypatch):
    A, B = (x.astype(dtype) for x in factors("random"))
    added = sp.random_array((300, 350), density=0.1, rng=4, format="csr").astype(dtype)
    monkeypatch.setattr(gpu_wanted, "_BLOCK_ENTRIES", 5000)
    given = [on_gpu(x) if where == "device" else x for x in (A, B, added)]
    for options in ({"prune": 0.3}, {"top_n": 5}, {"alpha": -2, "beta": 0.5, "C": added}, {"alpha": 3.0, "top_n": 2}):
        C = spgemm(A, B, backend="cpu", **options)
        if "C" in options:
            options = {**options, "C": given[2]}
        assert_same(spgemm(given[0], given[1], backend="cuda", **options), C, rtol=1e-12)


def test_integers_and_empty_rows():
    A = sp.csr_array((np.array([3, -4]), ([1, 4], [0, 2])), shape=(6, 3))
    B = sp.csr_array((np.array([5, 7]), ([0, 2], [1, 1])), shape=(3, 2))
    for semiring in ("plus_times", "min_plus", "plus_pair"):
        found = spgemm(A, B, semiring=semiring, top_n=1, backend="cuda")
        assert_same(found, spgemm(A, B, semiring=semiring, top_n=1, backend="cpu"))
        assert found.dtype == np.int64
    with pytest.raises(ValueError, match="sums of integers"):
        spgemm(2**52 * A, 2**52 * B, semiring="min_plus", backend="cuda")
    with pytest.raises(ValueError, match="mask has shape"):
        spgemm(A, B, mask=A, backend="cuda")
    empty = sp.csr_array((6, 3))
    assert spgemm(empty, B, mask=sp.csr_array(np.ones((6, 2))), backend="cuda").nnz == 0
