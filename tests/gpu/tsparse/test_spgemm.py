"""Sparse products on the GPU: every way to gather a row, against SciPy's pattern and the bound on each entry."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm, symbolic
from spectile_study.cases.tsparse.device import peak_bytes
from tests.modules import module_at

pytestmark = pytest.mark.gpu

PRECISIONS = ("float64", "float32", "tf32", "float16")


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def poisoned():
    """Fill the idle memory pool with NaN patterns: an entry that nothing writes shows."""
    import cupy

    for size in (1 << 12, 1 << 18, 1 << 24):
        block = cupy.full(size, 0xFF, cupy.uint8)
        del block


def random(m, n, density, rng):
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    A.data = rng.uniform(0.1, 2, A.nnz) * rng.choice([-1.0, 1.0], A.nnz)
    return A


def on_gpu(A, dtype=np.float64):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
    return csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)


def check(C, A, B, precision):
    """Pattern equal to the CPU's, every entry within its bound of the float64 product."""
    exact = spgemm(A, B, backend="cpu")
    C = C if sp.issparse(C) else C.get()
    np.testing.assert_array_equal(C.indptr, exact.indptr)
    np.testing.assert_array_equal(C.indices, exact.indices)
    bound = error_bound(A, B, precision=precision).data
    # The reference is itself rounded: the bound of float64 covers it.
    bound = bound + error_bound(A, B).data
    error = np.abs(C.data.astype(np.float64) - exact.data)
    assert (error <= bound).all(), float((error / bound).max())


def matrices(rng):
    """Pairs that reach each bin of rows: short, window, hash, block, long rows, empty rows, rectangular."""
    band = sp.diags_array([rng.uniform(0.1, 2, 3000) for _ in range(41)], offsets=range(-20, 21), shape=(3000, 3000))
    yield "band", sp.csr_array(band), sp.csr_array(band)
    yield "odd_sizes", random(1003, 517, 0.03, rng), random(517, 711, 0.03, rng)
    wide_band = random(1500, 1500, 0.02, rng)
    yield "window", wide_band, wide_band
    yield "dense_window", random(100, 300, 0.5, rng), random(300, 6000, 0.4, rng)
    yield "short", random(5000, 5000, 0.0006, rng), random(5000, 5000, 0.0006, rng)
    yield "hash", random(2000, 200_000, 0.00005, rng), random(200_000, 90_000, 0.00009, rng)
    yield "hash_full", random(500, 20_000, 0.002, rng), random(20_000, 500_000, 0.00002, rng)
    yield "block", random(80, 3000, 0.05, rng), random(3000, 100_000, 0.001, rng)
    yield "block_by_long_rows", random(60, 2000, 0.01, rng), random(2000, 100_000, 0.004, rng)
    hub = sp.vstack([random(3, 4000, 0.9, rng), random(3997, 4000, 0.001, rng)], format="csr")
    yield "hub", hub, hub
    i, zeros = np.arange(2000), np.zeros(2000, int)
    places = np.concatenate([i, i, zeros]), np.concatenate([i, zeros, i])
    arrow = sp.coo_array((np.ones(6000), places), shape=(2000, 2000)).tocsr()
    arrow.data[:] = rng.uniform(0.1, 2, arrow.nnz)
    yield "arrow", arrow, arrow  # one entry of 2,000 products among entries of two
    yield "tall", random(1500, 7, 0.3, rng), random(7, 1500, 0.3, rng)
    yield "flat", random(7, 4000, 0.3, rng), random(4000, 9, 0.3, rng)
    yield "empty", sp.csr_array((50, 60)), random(60, 70, 0.1, rng)
    yield "one", sp.csr_array([[2.0]]), sp.csr_array([[3.0]])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kind_of_row(precision, rng):
    for name, A, B in matrices(rng):
        print(name)
        check(spgemm(on_gpu(A), on_gpu(B), precision=precision), A, B, precision)
        dtype = np.float64 if precision == "float64" else np.float32
        again = [spgemm(on_gpu(A), on_gpu(B), precision=precision) for _ in range(2)]
        assert again[0].dtype == dtype
        assert again[0].data.tobytes() == again[1].data.tobytes(), "the same call must give the same bits"


class Guarded:
    """An allocator that keeps every array between guard words, and says afterwards whether they stand."""

    def __init__(self):
        self.blocks = []

    def __call__(self, size):
        import cupy

        memory = cupy.cuda.memory.Memory(size + 1024)
        whole = cupy.ndarray(size + 1024, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        whole.fill(0xA5)
        self.blocks.append((whole, size))
        return cupy.cuda.MemoryPointer(memory, 512)

    def stand(self):
        return all((w[:512] == 0xA5).all() and (w[512 + size :] == 0xA5).all() for w, size in self.blocks)


@pytest.mark.parametrize("precision", ["float64", "float16"])
def test_nothing_is_written_beyond_an_array(precision, rng):
    import cupy

    for name, A, B in matrices(rng):
        left, right = on_gpu(A), on_gpu(B)
        print(name)
        guarded = Guarded()
        with cupy.cuda.using_allocator(guarded):
            C = spgemm(left, right, precision=precision)
        check(C, A, B, precision)
        assert len(guarded.blocks) >= 5 or not C.nnz
        assert guarded.stand()


@pytest.mark.parametrize("columns", [60_000, 2_500_000])
def test_rows_for_blocks_after_products_of_the_same_sizes_without(columns, rng):
    """The kernel for such rows is left out after the first product, and the third is counted again."""
    few = sp.csr_array((np.ones(1000), np.arange(1000) * 2, np.arange(0, 1001, 10)), shape=(100, 2000))
    pointer = np.append([0], 901 + np.arange(100))
    hub = sp.csr_array((np.ones(1000), np.arange(1000) * 2, pointer), shape=(100, 2000))
    B = random(2000, columns, 5 / columns, rng)
    right = on_gpu(B)
    for A in (few, few, hub, few, hub):
        check(spgemm(on_gpu(A), right), A, B, "float64")


def keep_words(monkeypatch, words):
    """Keep so many words of bitmaps; plans that were made before know another number."""
    from spectile.tsparse.cuda import choose, plans

    monkeypatch.setattr(choose, "kept_words", lambda rows, nnz: words)
    monkeypatch.setattr(plans, "_kept", plans._Kept())


def test_bitmaps_without_room_are_made_again(rng, monkeypatch):
    pairs = [(name, A, B) for name, A, B in matrices(rng) if name in ("band", "window", "dense_window", "odd_sizes")]
    whole = [spgemm(on_gpu(A), on_gpu(B)) for _, A, B in pairs]
    for words in (1, 5000):
        keep_words(monkeypatch, words)
        for expected, (_, A, B) in zip(whole, pairs, strict=True):
            C = spgemm(on_gpu(A), on_gpu(B))
            check(C, A, B, "float64")
            assert C.data.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize("columns", [1_200_000, 2_500_000])
def test_bitmap_wider_than_shared_memory(columns, rng):
    A, B = random(6, 60, 0.9, rng), random(60, columns, 3000 / columns, rng)
    check(spgemm(on_gpu(A), on_gpu(B)), A, B, "float64")


def test_sums_beyond_shared_memory(rng):
    A, B = random(6, 3000, 0.9, rng), random(3000, 60_000, 0.01, rng)
    check(spgemm(on_gpu(A), on_gpu(B)), A, B, "float64")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_float16_and_host_matrices(precision, rng):
    A, B = random(300, 400, 0.05, rng), random(400, 300, 0.05, rng)
    A = sp.csr_array(sp.diags_array(2.0 ** rng.integers(-25, 25, 300)) @ A)
    C = spgemm(A, B, precision=precision, backend="cuda")
    assert isinstance(C, sp.csr_array)
    check(C, A, B, precision)


def test_chunks_of_rows_give_the_same_bits(rng):
    A = random(5000, 5000, 0.002, rng)
    whole = spgemm(on_gpu(A), on_gpu(A))
    size = sum(part.nbytes for part in (whole.indptr, whole.indices, whole.data))
    for limit in (300_000, 2_000_000):
        G = on_gpu(A)
        peak = peak_bytes(lambda G=G, limit=limit: spgemm(G, G, memory_limit=limit))
        assert size <= peak <= size + limit + 16 * 512, "the pool hands out pieces of 512 bytes"
        parts = spgemm(on_gpu(A), on_gpu(A), memory_limit=limit)
        assert (parts.indptr == whole.indptr).all()
        assert (parts.indices == whole.indices).all()
        assert parts.data.tobytes() == whole.data.tobytes()
    # Copies of host matrices count.
    host = spgemm(A, A, memory_limit=2_000_000, backend="cuda")
    np.testing.assert_array_equal(host.data, whole.data.get())
    with pytest.raises(MemoryError, match="raise it to at least"):
        spgemm(on_gpu(A), on_gpu(A), memory_limit=100)


def test_a_product_that_the_device_does_not_hold_is_gathered_on_the_host(rng, monkeypatch):
    from spectile.core import memory

    A = random(2000, 2000, 0.003, rng)
    A.data[:5] *= 1e-30  # float16 scales
    for precision in PRECISIONS:
        whole = spgemm(A, A, backend="cuda", precision=precision)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "free_bytes", lambda: 40_000)
            parts = spgemm(A, A, backend="cuda", precision=precision)
            np.testing.assert_array_equal(parts.indptr, whole.indptr)
            np.testing.assert_array_equal(parts.indices, whole.indices)
            assert parts.data.tobytes() == whole.data.tobytes()


def test_a_product_beyond_32_bit_offsets(rng, monkeypatch):
    """With offsets that reach 3,000 entries; tests/gpu/tsparse/test_collection.py has one beyond 2^31."""
    from spectile.tsparse.cuda import parts, run

    A = random(400, 300, 0.01, rng)
    whole = spgemm(A, sp.csr_array(A.T), backend="cuda")
    assert whole.nnz > 3000
    monkeypatch.setattr(parts, "MOST_ENTRIES", 3000)
    monkeypatch.setattr(run, "index_type", lambda count: np.int32 if count <= 3000 else np.int64)
    monkeypatch.setattr(parts, "PART_ENTRIES", 2000)
    host = spgemm(A, sp.csr_array(A.T), backend="cuda")
    on_device = spgemm(on_gpu(A), on_gpu(sp.csr_array(A.T)))
    assert on_device.indices.dtype == on_device.indptr.dtype == np.int64
    for C in (host, on_device.get()):
        np.testing.assert_array_equal(C.indptr, whole.indptr)
        np.testing.assert_array_equal(C.indices, whole.indices)
        assert C.data.tobytes() == whole.data.tobytes()
    monkeypatch.setattr(parts, "MOST_ENTRIES", 20)
    with pytest.raises(MemoryError, match=r"row \d+ of C has"):
        spgemm(A, sp.csr_array(A.T), backend="cuda")
    with pytest.raises(MemoryError, match="fewer than 2"):
        symbolic(on_gpu(A), on_gpu(sp.csr_array(A.T)))


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("entries", [20, 300])
def test_wide_rows_of_some_products(entries, precision, rng):
    """Rows of C that a block counts by a table and fills part by part, and of more products than a table holds."""
    A, columns = random(90, 500, 0.1, rng), 3_000_000
    row = np.repeat(np.arange(500), entries)
    B = sp.csr_array((rng.uniform(0.1, 2, len(row)), (row, rng.integers(0, columns, len(row)))), shape=(500, columns))
    B.sum_duplicates()
    check(spgemm(on_gpu(A), on_gpu(B), precision=precision), A, B, precision)
    pattern = symbolic(on_gpu(A), on_gpu(B))
    check(pattern.multiply(on_gpu(2 * A), on_gpu(B), precision=precision), 2 * A, B, precision)


def test_limit_covers_bitmaps_of_wide_rows(rng):
    A, B = random(6, 60, 0.9, rng), random(60, 2_500_000, 0.001, rng)
    whole = spgemm(on_gpu(A), on_gpu(B))
    parts = spgemm(on_gpu(A), on_gpu(B), memory_limit=700_000)
    assert parts.data.tobytes() == whole.data.tobytes()
    with pytest.raises(MemoryError, match="raise it to at least"):
        spgemm(on_gpu(A), on_gpu(B), memory_limit=600_000)


def test_symbolic_product_is_reused(rng):
    A, B = random(400, 500, 0.02, rng), random(500, 300, 0.02, rng)
    pattern = symbolic(on_gpu(A), on_gpu(B))
    assert pattern.nnz == spgemm(A, B, backend="cpu").nnz
    for precision in PRECISIONS:
        A.data = rng.standard_normal(A.nnz)
        check(pattern.multiply(on_gpu(A), on_gpu(B), precision=precision), A, B, precision)
    with pytest.raises(ValueError, match="pattern of A differs"):
        pattern.multiply(on_gpu(random(400, 500, 0.02, rng)), on_gpu(B))
    left, right = on_gpu(A), on_gpu(B)
    limit = 300_000
    kept = []
    assert peak_bytes(lambda: kept.append(symbolic(left, right, memory_limit=limit))) <= limit + 16 * 512
    assert kept[0].nnz == pattern.nnz
    with pytest.raises(MemoryError, match="the kept pattern of 400 rows takes"):
        symbolic(left, right, memory_limit=100_000)


def test_unsorted_and_duplicate_entries(rng):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    indptr, indices = [0, 4, 4, 6], [2, 0, 2, 1, 2, 0]
    data = np.arange(1.0, 7.0)
    A = csr_matrix((cupy.asarray(data), cupy.asarray(indices, np.int32), cupy.asarray(indptr, np.int32)), shape=(3, 3))
    dense = sp.csr_array((data, indices, indptr), shape=(3, 3)).toarray()
    np.testing.assert_allclose(spgemm(A, A).get().toarray(), dense @ dense)


def test_products_of_scipy_and_cupy():
    """The cases of tests/cpu/tsparse/test_products.py."""
    from cupyx.scipy import sparse

    products = module_at(Path(__file__).resolve().parents[2] / "cpu/tsparse/test_products.py")
    for name, A, B in products.pairs():
        print(name)
        products.check(spgemm(sp.csr_array(A), sp.csr_array(B), backend="cuda"), A, B)
        for left, right in (("csr", "csr"), ("csc", "coo"), ("coo", "csc")) if A.size and B.size else ():
            factors = (sparse.csr_matrix(sp.csr_matrix(x)).asformat(f) for x, f in ((A, left), (B, right)))
            products.check(spgemm(*factors).get(), A, B)


def test_bad_input(rng):
    A = random(30, 30, 0.2, rng)
    nan = on_gpu(A)
    nan.data[7] = np.nan
    with pytest.raises(ValueError, match="holds nan at row"):
        spgemm(nan, nan)
    outside = on_gpu(A)
    outside.indices[3] = 99
    with pytest.raises(ValueError, match="column index outside 0 to 29"):
        spgemm(on_gpu(A), outside)
    with pytest.raises(ValueError, match='backend is "cpu"'):
        spgemm(on_gpu(A), on_gpu(A), backend="cpu")
    with pytest.raises(ValueError, match="beyond the range of float32"):
        spgemm(on_gpu(A * 1e200), on_gpu(A), precision="float32")
    for position, value in ((0, 1), (3, -4), (5, 10**6), (30, A.nnz + 2)):
        pointer = on_gpu(A)
        pointer.indptr[position] = value
        for factors in ((pointer, pointer), (on_gpu(A), pointer)):
            with pytest.raises(ValueError, match=r"the row pointer of [AB] does not increase"):
                spgemm(*factors)
    far = sp.csr_array(A)
    far.indices = far.indices.astype(np.int64)
    far.indices[4] += 2**32  # in range if its upper half were dropped
    with pytest.raises(ValueError, match="column index outside 0 to 29"):
        spgemm(far, A, backend="cuda")
    unsorted = on_gpu(A)
    unsorted.indices[:] = unsorted.indices[::-1].copy()
    unsorted.indices[5] = 2**30
    with pytest.raises(ValueError, match="column index outside"):
        spgemm(unsorted, unsorted)
    assert spgemm(on_gpu(A), on_gpu(A)).nnz, "bad input must leave the device in order"


def test_entries_outside_float16(rng):
    for spread in (60, 100):
        A = random(300, 300, 0.03, rng)
        A.data *= 2.0 ** rng.integers(-spread, 1, A.nnz)
        check(spgemm(on_gpu(A), on_gpu(A), precision="float16"), A, A, "float16")
        B = A * 2.0**150
        check(spgemm(on_gpu(B), on_gpu(A * 2.0**-150), precision="float16"), B, A * 2.0**-150, "float16")
    wider = sp.csr_array(np.array([[1.0, 2.0**-120]]))
    assert spgemm(on_gpu(wider), on_gpu(sp.csr_array(wider.T)), precision="float16").data[0] == 1
    beyond = wider * 2.0**-10, sp.csr_array(wider.T)
    for A, B in (beyond, (wider, sp.csr_array(np.array([[1.0], [2.0**50]])))):
        with pytest.raises(ValueError, match="row of A 0 holds entries further apart"):
            spgemm(on_gpu(A), on_gpu(B), precision="float16")
    with pytest.raises(ValueError, match="column of B 0 holds entries further apart"):
        spgemm(on_gpu(sp.csr_array([[2.0**60, 1.0]])), on_gpu(sp.csr_array(wider.T)), precision="float16")
    # What A's small entries make with B's small ones counts where B's large ones are not met.
    A, B = sp.csr_array([[2.0**-120, 0.0]]), sp.csr_array([[2.0**10], [2.0**118]])
    for left, right in ((A, B), (on_gpu(A), on_gpu(B))):
        assert spgemm(left, right, precision="float16", backend="cuda").data[0] == 2.0**-110


def same_bits(x, y):
    """Whether two arrays of finite values without negative zeros agree in every bit."""
    return x.dtype == y.dtype and x.shape == y.shape and bool((x == y).all())


@pytest.mark.parametrize("listed", ["words of 32 bits", "words of 64 bits", "not at all"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numeric_gives_the_values_of_the_product(dtype, listed, rng, monkeypatch):
    """Every kind of row, products listed or columns known alone, with `out` and without; the bits of spgemm."""
    import cupy

    from spectile.tsparse.cuda.rows import lists

    if listed == "not at all":
        monkeypatch.setattr(lists, "make", lambda *arguments: None)
    elif listed == "words of 64 bits":
        monkeypatch.setattr(lists, "_WORD_BITS", -1)
    for name, A, B in matrices(rng):
        print(name)
        left, right = on_gpu(A, dtype), on_gpu(B, dtype)
        pattern = symbolic(left, right)
        whole = spgemm(left, right, precision=dtype)
        for _ in range(2):
            values = pattern.numeric(left.data, right.data)
            assert values.dtype == dtype
            assert same_bits(values, whole.data)
        assert bool((pattern.indices == whole.indices).all()) and bool((pattern.indptr == whole.indptr).all())
        out = cupy.full(pattern.nnz, np.nan, dtype)
        assert pattern.numeric(2 * left.data, right.data, out=out) is out
        assert same_bits(out, (2 * whole.data))
        again = pattern.multiply(left, right, precision=dtype)
        assert same_bits(again.data, whole.data)
        again.indices[:] = 0  # the caller's own
        assert same_bits(pattern.numeric(left.data, right.data), whole.data)


@pytest.mark.parametrize("word_bits", [32, -1])
@pytest.mark.parametrize("length", [255, 256, 257, 5000, 20_000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numeric_of_an_entry_with_many_products(dtype, length, word_bits, rng, monkeypatch):
    """A list of `length` products, which a thread or a warp sorts, beside lists of one or two."""
    import cupy

    from spectile.tsparse.cuda.rows import lists

    monkeypatch.setattr(lists, "_WORD_BITS", word_bits)
    A, B = sp.eye_array(length, format="lil"), sp.eye_array(length, format="lil")
    A[length // 2] = rng.uniform(0.5, 2, length)
    B[:, [length // 3]] = rng.uniform(0.5, 2, (length, 1))
    left, right = on_gpu(sp.csr_array(A), dtype), on_gpu(sp.csr_array(B), dtype)
    pattern, whole = symbolic(left, right), spgemm(left, right, precision=dtype)
    out = cupy.full(pattern.nnz, np.nan, dtype)
    assert same_bits(pattern.numeric(left.data, right.data, out=out), whole.data)
    assert pattern._lists.is_packed == (word_bits == 32)


def test_numeric_again_for_the_same_arrays_and_for_others(rng):
    """A launch is repeated for the very same arrays alone: not for others, nor for those that are gone."""
    import cupy

    A = on_gpu(random(300, 300, 0.03, rng))
    pattern, data = symbolic(A, A), A.data.copy()
    out = cupy.full(pattern.nnz, np.nan)
    for factor in (1, 2):
        data[:] = factor * A.data
        for _ in range(2):
            out.fill(np.nan)
            assert pattern.numeric(data, A.data, out=out) is out
            assert same_bits(out, factor * spgemm(A, A).data)
    other = cupy.full(pattern.nnz, np.nan)
    pattern.numeric(data, A.data, out=other)
    assert same_bits(other, out)
    single = pattern.numeric(data.astype("f4"), A.data.astype("f4"))
    assert single.dtype == np.float32
    out.fill(np.nan)
    pattern.numeric(data, A.data, out=out)
    assert same_bits(other, out)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for record in (False, True):  # the same arrays on another stream, and in a graph
        with stream:
            out.fill(np.nan)
            if record:
                stream.begin_capture()
            pattern.numeric(data, A.data, out=out)
            if record:
                graph = stream.end_capture()
                data *= 4
                graph.launch(stream)
        stream.synchronize()
        assert same_bits(out, (4 if record else 1) * other)
    data[:] = 2 * A.data
    del out, other
    assert same_bits(pattern.numeric(data, A.data), 2 * spgemm(A, A).data)
    with pytest.raises(TypeError, match="is None"):
        pattern.numeric(data, None)


def test_numeric_of_bitmaps_without_room(rng, monkeypatch):
    from spectile.tsparse.cuda.rows import lists

    monkeypatch.setattr(lists, "make", lambda *arguments: None)
    keep_words(monkeypatch, 1)
    for name, A, B in matrices(rng):
        if name in ("band", "window", "dense_window", "odd_sizes"):
            left, right = on_gpu(A), on_gpu(B)
            pattern = symbolic(left, right)
            for _ in range(2):
                assert same_bits(pattern.numeric(left.data, right.data), spgemm(left, right).data)


def test_numeric_where_lists_are_too_long_or_memory_too_small(rng, monkeypatch):
    """Many products an entry, long rows of A, little free memory, a caller's limit: the same bits without lists."""
    from spectile.tsparse.cuda.rows import lists

    dense = on_gpu(random(200, 200, 0.5, rng))
    pattern = symbolic(dense, dense)
    assert pattern.products > 12 * pattern.nnz
    assert same_bits(pattern.numeric(dense.data, dense.data), spgemm(dense, dense).data)
    assert pattern._lists is False
    for length in (2**16 - 1, 2**16):
        row, column = sp.csr_array(rng.uniform(1, 2, (1, length))), sp.csr_array(sp.eye_array(length))
        left, right = on_gpu(row), on_gpu(column)
        pattern = symbolic(left, right)
        assert same_bits(pattern.numeric(left.data, right.data), spgemm(left, right).data)
        assert (pattern._lists is False) == (length == 2**16)
    A = on_gpu(random(300, 300, 0.03, rng))
    limited = symbolic(A, A, memory_limit=10**8)
    monkeypatch.setattr(lists.memory, "free_bytes", lambda: 1000)
    for pattern in (limited, symbolic(A, A)):
        assert same_bits(pattern.numeric(A.data, A.data), spgemm(A, A).data)
        assert pattern._lists is False


@pytest.mark.parametrize("columns", [3, 60, 5000, 10**6, 2**25 - 1, 2**25, 2**30])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_of_every_number_of_products(columns, dtype, rng):
    """From none to beyond the largest that is sorted, the first and the last column met, empty rows of B between."""
    import cupy

    lengths = np.append(np.arange(20), np.zeros(5, int))
    rows = [np.unique(np.r_[rng.integers(0, columns, n), np.array([0, columns - 1])[: n // 2]]) for n in lengths]
    sizes = np.array([len(row) for row in rows])
    data = rng.uniform(0.5, 2, sizes.sum()) * rng.choice([-1.0, 1.0], sizes.sum())
    B = sp.csr_array((data, np.concatenate(rows), np.cumsum([0, *sizes])), shape=(len(rows), columns))
    A = random(3000, len(rows), 0.3, rng)
    A.data[::5] = -0.0
    left, right = on_gpu(A, dtype), on_gpu(B, dtype)
    C = spgemm(left, right, precision=dtype)
    met, places = np.unique(B.indices, return_inverse=True)
    narrow = sp.csr_array((B.data.astype(dtype), places, B.indptr), shape=(len(rows), len(met)))
    wide = A.astype(dtype)
    exact = spgemm(wide, narrow, precision="float64", backend="cpu")
    np.testing.assert_array_equal(C.indptr.get(), exact.indptr)
    np.testing.assert_array_equal(C.indices.get(), met[exact.indices])
    bound = error_bound(wide, narrow, precision=dtype).data + error_bound(wide, narrow).data
    assert (np.abs(C.data.get() - exact.data) <= bound).all()
    pattern = symbolic(left, right)
    assert same_bits(pattern.numeric(left.data, right.data), C.data)
    out = cupy.full(pattern.nnz + 1, np.nan, dtype)[1:]  # not aligned to more than its type
    assert same_bits(pattern.numeric(left.data, right.data, out=out), C.data)


def test_views_of_odd_offsets_and_sums_that_cancel(rng):
    """Arrays that begin anywhere; an entry whose terms cancel is stored as 0."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    A = random(400, 300, 0.05, rng)
    B = sp.csr_array(sp.vstack([random(150, 200, 0.1, rng)] * 2))
    A = sp.csr_array(sp.hstack([A[:, :150], -A[:, :150]]))
    for dtype in ("float64", "float32"):
        arrays = []
        for matrix in (A, B):
            for array, kind in ((matrix.data, dtype), (matrix.indices, np.int32), (matrix.indptr, np.int32)):
                moved = cupy.empty(len(array) + 1, kind)[1:]
                moved[:] = cupy.asarray(array.astype(kind))
                arrays.append(moved)
        left, right = (
            csr_matrix(tuple(arrays[i : i + 3]), shape=matrix.shape, copy=False) for i, matrix in ((0, A), (3, B))
        )
        pattern = spgemm(abs(A), abs(B), backend="cpu")
        C = spgemm(left, right)
        np.testing.assert_array_equal(C.indices.get(), pattern.indices)
        np.testing.assert_array_equal(C.indptr.get(), pattern.indptr)
        check(C, *(matrix.astype(dtype).astype(np.float64) for matrix in (A, B)), dtype)


def test_columns_of_a_symbolic_product_alone(rng):
    A = random(400, 300, 0.02, rng)
    whole = spgemm(A, sp.csr_array(A.T), backend="cpu")
    for left, right in ((on_gpu(A), on_gpu(sp.csr_array(A.T))), (A, sp.csr_array(A.T))):
        pattern = symbolic(left, right, backend="cuda")
        indices, indptr = (x if isinstance(x, np.ndarray) else x.get() for x in (pattern.indices, pattern.indptr))
        np.testing.assert_array_equal(indices, whole.indices)
        np.testing.assert_array_equal(indptr, whole.indptr)
        values = pattern.numeric(left.data, right.data)
        found = values if left is A else values.get()
        np.testing.assert_allclose(found, whole.data, rtol=1e-13, atol=1e-15 * abs(whole.data).max())
    with pytest.raises(ValueError, match="data_a has shape"):
        pattern.numeric(A.data[1:], A.data)
    with pytest.raises(TypeError, match="all float32 or all float64"):
        pattern.numeric(A.data, sp.csr_array(A.T).data.astype(np.float32))


def test_a_pattern_outlives_changes_of_its_factors(rng):
    A = random(300, 300, 0.03, rng)
    G = on_gpu(A)
    whole = spgemm(G, G)
    pattern = symbolic(G, G)
    data = G.data.copy()
    G.indices[:] = 0
    with pytest.raises(ValueError, match="pattern of A differs"):
        pattern.multiply(G, G)
    assert same_bits(pattern.numeric(data, data), whole.data)


def test_threads_and_streams_use_plans_of_their_own(rng):
    from concurrent.futures import ThreadPoolExecutor

    import cupy

    pairs = [(on_gpu(A), on_gpu(B)) for _, A, B in matrices(rng)][:6]
    whole = [spgemm(*pair).data for pair in pairs]
    cupy.cuda.runtime.deviceSynchronize()

    def work(number):
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(5):
                for pair, expected in list(zip(pairs, whole, strict=True))[number % 3 :]:
                    assert same_bits(spgemm(*pair).data, expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_a_product_copies_nothing_and_waits_for_the_current_stream_alone(rng, monkeypatch):
    """What is counted is told to the host, which waits for the stream only where that takes long."""
    import cupy

    A, B = random(300, 300, 0.01, rng), random(300, 300, 0.01, rng)
    left, right = on_gpu(A), on_gpu(B)
    spgemm(left, right)
    stream, waits, copies = cupy.cuda.Stream(non_blocking=True), [], []
    wait, runtime = cupy.cuda.runtime.streamSynchronize, cupy.cuda.runtime
    monkeypatch.setattr(runtime, "streamSynchronize", lambda pointer: waits.append(pointer) or wait(pointer))
    monkeypatch.setattr(runtime, "memcpyAsync", lambda *arguments: copies.append(arguments))
    with stream:
        C = spgemm(left, right)
    assert waits in ([], [stream.ptr]) and not copies
    stream.synchronize()
    check(C, A, B, "float64")
    with stream, pytest.raises(ValueError, match="B holds"):
        right.data[3] = np.nan
        spgemm(left, right)


def test_indices_of_64_bits(rng):
    """As they are or out of range, also where their lower half is in range."""
    A, B = random(300, 400, 0.03, rng), random(400, 300, 0.03, rng)
    whole = spgemm(on_gpu(A), on_gpu(B))
    wide = [on_gpu(A), on_gpu(B)]
    for matrix in wide:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    C = spgemm(*wide)
    assert same_bits(C.data, whole.data) and bool((C.indices == whole.indices).all())
    for value in (2**32 + 1, -1, -(2**32) + 1, 2**31, 400):
        wrong = on_gpu(A)
        wrong.indices, wrong.indptr = wrong.indices.astype(np.int64), wrong.indptr.astype(np.int64)
        wrong.indices[7] = value
        with pytest.raises(ValueError, match="A holds a column index outside 0 to 399"):
            spgemm(wrong, wide[1])
    wrong = on_gpu(A)
    wrong.indices, wrong.indptr = wrong.indices.astype(np.int64), wrong.indptr.astype(np.int64)
    wrong.indptr[3] += 2**32
    with pytest.raises(ValueError, match="the row pointer of A"):
        spgemm(wrong, wide[1])
