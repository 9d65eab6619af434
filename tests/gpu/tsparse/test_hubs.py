"""Hub rows on the GPU: the pattern, the bits and the bound, whichever way their products go."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm, spmm, symbolic
from spectile.tsparse.cuda import choose, plans
from spectile_study.cases.tsparse.device import peak_bytes

from .test_spgemm import check, on_gpu, poisoned, random  # noqa: F401  # the fixture fills idle memory

pytestmark = pytest.mark.gpu


@functools.cache
def factors(kind):
    """Return two factors of which some rows of the product are hub rows, and rows of A meet long rows of B."""
    rng = np.random.default_rng(len(kind))
    if kind == "wide":  # bitmaps beyond shared memory
        return random(3, 20_000, 0.3, rng), random(20_000, 2_500_000, 2e-6, rng)
    few, square = random(19_997, 20_000, 0.0003, rng), kind == "square"
    A = sp.csr_array(sp.vstack([few[:100], random(3, 20_000, 0.3, rng), few[100:]]))
    if square:
        return A, A
    places = 2 * np.arange(10_000), np.full(10_000, 7)
    column = sp.csr_array((rng.uniform(1, 2, 10_000), places), shape=(20_000, 40_000))
    wide = sp.vstack([random(2, 40_000, 0.5, rng), random(19_998, 40_000, 0.0001, rng)])
    return A, sp.csr_array(wide + column)  # one entry has thousands of products


def by(way, monkeypatch):
    """Let hub rows go one way; plans that were made before know another."""
    real = choose.hub_ways

    def ways(*arguments):
        listed = real(*arguments)
        return [
            one if one.seconds is None else one._replace(seconds=float(number != way))
            for number, one in enumerate(listed)
        ]

    monkeypatch.setattr(choose, "hub_ways", ways)
    monkeypatch.setattr(plans, "_kept", plans._Kept())


@pytest.mark.parametrize("kind", ["square", "column", "wide"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_both_ways_have_the_same_bits(kind, precision, monkeypatch):
    A, B = factors(kind)
    left, right = on_gpu(A), on_gpu(B)
    known = spgemm(left, right, precision=precision)
    check(known, A, B, precision)
    for way in (0, 1):
        by(way, monkeypatch)
        for _ in range(2):
            C = spgemm(left, right, precision=precision)
            for name in ("indptr", "indices", "data"):
                assert getattr(C, name).tobytes() == getattr(known, name).tobytes(), (way, name)


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("kind", ["f", "d", "F", "D"])
def test_a_pattern_with_hub_rows_is_reused(kind, way, monkeypatch):
    by(way, monkeypatch)
    A, B = (x.astype(kind) * (1 + 0.5j if kind in "FD" else 1) for x in factors("column"))
    left, right = (sp.csr_array(x).astype(kind) for x in (A, B))
    G, H = (complex_on_gpu(x) for x in (left, right))
    whole = spgemm(G, H)
    pattern = symbolic(G, H)
    assert pattern.indices.tobytes() == whole.indices.tobytes()
    for _ in range(2):
        assert pattern.numeric(G.data, H.data).tobytes() == whole.data.tobytes()
        assert pattern.multiply(G, H).data.tobytes() == whole.data.tobytes()


def complex_on_gpu(A):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(tuple(cupy.asarray(x) for x in (A.data, A.indices, A.indptr)), shape=A.shape)


def test_a_product_with_its_adjoint_is_hermitian_to_the_bit(monkeypatch):
    A = factors("square")[0]
    A = sp.csr_array(A + 1j * A.power(2))
    for way in (0, 1):
        by(way, monkeypatch)
        C = spgemm(complex_on_gpu(A), complex_on_gpu(sp.csr_array(A.conj().T))).get()
        assert (C != C.conj().T).nnz == 0


def test_a_limit_holds_with_hub_rows_and_changes_no_bit(monkeypatch):
    by(1, monkeypatch)
    A, B = factors("column")
    left, right = on_gpu(A), on_gpu(B)
    whole = spgemm(left, right)
    size = sum(part.nbytes for part in (whole.indptr, whole.indices, whole.data))
    limit = 2_000_000
    kept = []
    peak = peak_bytes(lambda: kept.append(spgemm(left, right, memory_limit=limit)))
    assert peak <= size + limit + 16 * 512
    for name in ("indptr", "indices", "data"):
        assert getattr(kept[0], name).tobytes() == getattr(whole, name).tobytes()


def test_products_of_the_same_sizes_with_other_hub_rows(monkeypatch):
    """Some have hub rows, some have none: what the product before had is no promise."""
    columns = np.arange(6000) * 2 % 11_999
    few = sp.csr_array((np.ones(6000), columns, np.arange(0, 6001, 20)), shape=(300, 12_000))
    pointer = np.append([0], 5701 + np.arange(300))
    hub = sp.csr_array((np.ones(6000), columns, pointer), shape=(300, 12_000))
    for A in (few, hub):
        A.sort_indices()
    B = random(12_000, 90_000, 4 / 90_000, np.random.default_rng(3))
    right = on_gpu(B)
    for ways in ((1,), (0,), (1, 0, 1)):
        for way in ways:
            by(way, monkeypatch)
            for A in (few, hub, few, hub, hub):
                check(spgemm(on_gpu(A), right), A, B, "float64")


@pytest.mark.parametrize("columns", [1, 3, 8, 33, 100])
@pytest.mark.parametrize("kind", ["f", "d", "D"])
def test_pieces_of_long_rows_meet_a_dense_matrix(kind, columns, monkeypatch):
    import cupy

    rng = np.random.default_rng(columns)
    lengths = [255, 256, 257, 0, 1023, 1024, 1025, 2049, 5000, 3]
    A = sp.csr_array(
        (
            rng.uniform(0.5, 1, sum(lengths)).astype(kind),
            np.concatenate([np.sort(rng.permutation(5000)[:n]) for n in lengths]),
            np.append(0, np.cumsum(lengths)),
        ),
        shape=(10, 5000),
    )
    G, X = complex_on_gpu(A), rng.standard_normal((5000, columns)).astype(kind)
    exact, size = A.astype("D") @ X.astype("D"), abs(A).astype("d") @ abs(X).astype("d")
    known = spmm(G, cupy.asarray(X)).get()
    assert (abs(known - exact) <= 5000 * np.finfo(kind).eps * size).all()
    monkeypatch.setattr(choose, "_SUM_BYTES", 1)  # columns by 32
    size = known.nbytes
    stale = cupy.full(size, 0xFF, "uint8")  # the memory of the first result, which the second may get
    del stale
    np.testing.assert_array_equal(spmm(G, cupy.asarray(X)).get(), known)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("product", ["A A", "A At"])
def test_boolean_factors_in_csr(twice, product):
    """Entries that are stored twice, or False, count as in the host's product."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    rng = np.random.default_rng(5)
    A = sp.csr_array(random(300, 300, 0.02, rng).astype(bool))
    A.data[::17] = False
    if twice:
        indptr = A.indptr.copy()
        indptr[-1] += 2
        A = sp.csr_array((np.append(A.data, [True, True]), np.append(A.indices, [5, 5]), indptr), shape=A.shape)
    G = csr_matrix(tuple(cupy.asarray(x) for x in (A.data, A.indices, A.indptr)), shape=A.shape)
    B, H = (A, G) if product == "A A" else (sp.csr_array(A.T), G.T.tocsr())
    for precision in (None, "float64"):
        C, known = spgemm(G, H, precision=precision), spgemm(A, B, precision=precision, backend="cpu")
        assert C.dtype == known.dtype
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(C, name).get(), getattr(known, name))
