"""Kinds of values: what comes back, and what is refused because it would change in silence."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm, symbolic


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def random(m, n, dtype, seed=1):
    A = sp.random_array((m, n), density=0.2, rng=np.random.default_rng(seed), format="csr")
    A.data = (9 * A.data + 1).astype(dtype)
    return sp.csr_array((A.data, A.indices, A.indptr), shape=A.shape)


@pytest.mark.parametrize("reserve", [2**31, 0])
@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_a_boolean_product_of_many_terms_is_no_count_of_them(form, reserve, monkeypatch):
    """Of 256 terms and of 512, a sum in bytes would be 0."""
    from spectile.tsparse.cpu import one_pass

    monkeypatch.setattr(one_pass, "LARGEST_RESERVE", reserve)
    for terms in (1, 255, 256, 512):
        A, B = sp.csr_array(np.ones((3, terms), bool)), sp.csr_array(np.ones((terms, 4), bool))
        A.data[:terms] = False
        for C in (multiply(A, B, format=form), multiply(A, B, format=form, memory_limit=2**20)):
            dense = C if form == "dense" else C.toarray()
            assert dense.dtype == np.bool_ and dense[1:].all() and not dense[0].any()
            assert form == "dense" or C.nnz == 12
        assert multiply(A, A.T, format=form).sum() == 4


def test_float32_comes_back_as_float32():
    A, B = random(20, 30, np.float32), random(30, 10, np.float32)
    C = multiply(A, B)
    assert C.dtype == np.float32
    np.testing.assert_array_equal(C.data, multiply(A, B, precision="float32").data)
    assert multiply(A, B.astype(np.float64)).dtype == np.float64
    assert multiply(A, B, precision="float64").dtype == np.float64
    assert multiply(A, B.astype(np.int8)).dtype == np.float32
    pattern = symbolic(A, B, backend="cpu")
    assert pattern.multiply(A, B).dtype == np.float32
    assert pattern.multiply(A, B, precision="float64").dtype == np.float64


def test_boolean_factors_give_a_boolean_product():
    A, B = random(20, 30, np.bool_), random(30, 10, np.bool_)
    A.data[3] = False
    C = multiply(A, B)
    assert C.dtype == np.bool_
    np.testing.assert_array_equal(C.toarray(), (A @ B).toarray())
    assert C.nnz == multiply(A, B, precision="float64").nnz, "a stored False is an entry"
    assert symbolic(A, B, backend="cpu").multiply(A, B).dtype == np.bool_
    counts = multiply(A, B, precision="float64")
    np.testing.assert_array_equal(counts.toarray(), A.toarray().astype(int) @ B.toarray().astype(int))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_are_exact_or_refused(dtype):
    near = sp.csr_array(np.array([[2**26, 2**26 - 1]], dtype))
    C = multiply(near, sp.csr_array(near.T))
    assert C.dtype == np.int64
    assert int(C.data[0]) == 2**52 + (2**26 - 1) ** 2
    beyond = sp.csr_array(np.array([[2**31, 2**31]], dtype))
    for A, B in ((beyond, sp.csr_array(beyond.T)), (sp.csr_array(np.array([[2**53 + 1]], dtype)),) * 2):
        with pytest.raises(ValueError, match=f"sums of integers may exceed {2**63 - 1}"):
            multiply(A, B)
        assert multiply(A, B, precision="float64").dtype == np.float64
    if dtype is np.int64:
        cancelling = sp.csr_array(np.array([[2**31, 2**31]])), sp.csr_array(np.array([[2**31], [-(2**31)]]))
        with pytest.raises(ValueError, match="sums of integers"):
            multiply(*cancelling)


@pytest.mark.parametrize(
    ("types", "kind"), [("ii", "i"), ("bh", "i"), ("?H", "i"), ("iI", "q"), ("LI", "q"), ("?q", "q")]
)
def test_integers_keep_a_type_that_holds_both(types, kind):
    A, B = random(20, 30, types[0]), random(30, 10, types[1])
    C = multiply(A, B)
    assert C.dtype == kind
    np.testing.assert_array_equal(C.toarray(), A.toarray().astype("q") @ B.toarray().astype("q"))
    assert symbolic(A, B, backend="cpu").multiply(A, B).dtype == kind
    assert not error_bound(A, B).data.any()


def test_sums_beyond_32_bits_are_refused_and_not_wrapped():
    A = sp.csr_array(np.array([[2**16, 2**15]], np.int32))
    B = sp.csr_array(np.array([[2**14], [2**15]], np.int32))
    with pytest.raises(ValueError, match=f"sums of integers may exceed {2**31 - 1}.*convert the factors to int64"):
        multiply(A, B)
    assert multiply(A.astype(np.int64), B).data[0] == 2**31
    B.data -= 1
    for product in (multiply, lambda A, B: symbolic(A, B, backend="cpu").multiply(A, B)):
        C = product(A, B)
        assert C.dtype == np.int32 and C.data[0] == 2**31 - 2**16 - 2**15


def test_duplicates_count_in_the_bound_of_integers():
    indptr, zeros = np.array([0, 2]), np.zeros(2, np.int32)
    twice = sp.csr_array((np.array([2**31, 2**31]), zeros, indptr), shape=(1, 1))
    with pytest.raises(ValueError, match="sums of integers"):
        multiply(twice, twice)


def test_masked_arrays_are_refused():
    A = random(5, 5, np.float64)
    A.data = np.ma.masked_array(A.data, np.arange(len(A.data)) == 1)
    for left, right, name in ((A, A.copy(), "A"), (random(5, 5, np.float64), A, "B")):
        with pytest.raises(TypeError, match=f"{name} holds a masked array"):
            multiply(left, right)
    with pytest.raises(TypeError, match="not a sparse matrix"):
        multiply(np.ma.masked_array(np.eye(3), np.eye(3) == 0), np.eye(3))


@pytest.mark.parametrize(("word", "short"), [("float64", "fp64"), ("float32", "fp32"), ("float16", "fp16")])
def test_both_spellings_of_a_precision(word, short):
    A = random(20, 20, np.float64)
    C, same = multiply(A, A, precision=word), multiply(A, A, precision=short)
    assert C.dtype == same.dtype
    np.testing.assert_array_equal(C.data, same.data)


@pytest.mark.parametrize("word", ["tf32x3", "float16c16", "double", 64, [1]])
def test_words_that_are_not_offered(word):
    A = random(3, 3, np.float64)
    with pytest.raises(ValueError, match="choose one of float64, float32, tf32, float16"):
        multiply(A, A, precision=word)
