"""The paper's product by tiles: its reference in NumPy, its bound in float16, and how its task list is sorted."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spectile.core.devices import TABLE
from spectile.core.launch import Shape
from spectile.tsparse import error_bound, spgemm
from spectile_study.cases.tsparse.tiles import convert, half, reference
from spectile_study.cases.tsparse.tiles.product import sorting

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
shapes = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 70))


def random(m, n, density, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    A.data = {
        "normal": rng.standard_normal(A.nnz),
        "integers": rng.integers(-2, 3, A.nnz).astype(float),
        "tiny": rng.standard_normal(A.nnz) * 2.0 ** rng.integers(-12, 1, A.nnz) * 2.0**-30,
    }[kind]
    return A


@pytest.mark.parametrize("device", TABLE.values() if isinstance(TABLE, dict) else TABLE, ids=str)
def test_rows_that_fit_are_sorted_on_every_device(device):
    fitted = 0
    for words in (0, 1, 40, 600, 5000):
        for tasks in (1, 50, 3000, 100_000):
            for rows in (1, 1000, 100_000):
                how = sorting(words, tasks, 100, rows, tasks * rows // 2)
                if how is None:
                    continue
                for threads in (how.threads, 1024) if how.any_long else (how.threads,):
                    fitted += 1
                    shape = Shape((rows,), max(threads, 256), how.shared_bytes(threads))
                    assert shape.refusal(device) is None
                    most = tasks if threads == 1024 else min(tasks, how.most)
                    room = how.room(threads)
                    assert room >= min(most, 32 * words, 64), "tiles of C that a row takes at a time"
    assert fitted > 10


def test_rows_have_threads_after_their_tasks():
    few, many = sorting(10, 1000, 100, 1000, 50_000), sorting(10, 1000, 100, 1000, 500_000)
    assert (few.threads, many.threads) == (32, 256) and not few.any_long and not many.any_long
    hub, long = sorting(10, 30_000, 100, 1000, 50_000), sorting(10, 30_000, 100, 1000, 500_000)
    assert (hub.threads, long.threads) == (32, 256) and hub.any_long and long.any_long
    assert hub.room(32) <= 1024 and long.room(1024) == 320, "room for what a row may have"


def test_what_rows_do_not_hold_is_sorted_by_keys():
    assert sorting(10, 10_000, 5000, 1000, 100_000) is not None
    assert sorting(10, 100_000, 2**16, 1000, 100_000) is None, "tasks of a tile of C are counted in 16 bits"
    assert sorting(50_000, 10_000, 100, 1000, 100_000) is None, "shared memory does not hold the window"
    assert sorting(10, 2**20, 30_000, 1000, 2**21) is None, "one block would sort half of all tasks"
    assert sorting(10, 2**20, 30_000, 1000, 2**23) is not None


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
@pytest.mark.parametrize("items", [1, 2**20, 2**31 - 2**20])
def test_launches_fit_every_device(items, device, monkeypatch):
    """With as many rows, tiles or entries as 32-bit loops walk, and the most lanes for each."""
    shapes = []
    monkeypatch.setattr(convert, "kernel", lambda unit, name: lambda shape, *arguments: shapes.append(shape))
    for lanes, threads in ((1, 256), (8, 256), (32, 256), (32, 128)):
        convert.launch(None, "kernel", lanes * items, threads)
    assert len(shapes) == 4
    for shape in shapes:
        assert shape.refusal(device) is None


@QUICK
@given(shapes, st.floats(0, 0.6), st.integers(0, 10**6))
def test_bitmap_format_returns_the_matrix(shape, density, seed):
    A = random(shape[0], shape[2], density, seed)
    M = reference.to_bitmap(A)
    back = reference.to_csr(M)
    A.sort_indices()
    np.testing.assert_array_equal(back.indptr, A.indptr)
    np.testing.assert_array_equal(back.indices, A.indices)
    np.testing.assert_array_equal(back.data, A.data)
    assert np.bitwise_count(M.bitmaps).sum() == A.nnz
    assert (np.diff(M.index) == np.bitwise_count(M.bitmaps)).all()
    assert (np.diff(M.index) > 0).all()


@QUICK
@given(shapes, st.floats(0, 0.3), st.integers(0, 10**6))
def test_filter_drops_only_empty_products(shape, density, seed):
    m, k, n = shape
    A, B = (reference.to_bitmap(random(*s, density, seed + i)) for i, s in enumerate(((m, k), (k, n))))
    a, b = reference.expand(A, B)
    kept = set(zip(*(x.tolist() for x in reference.filter_tasks(A, B, a, b)), strict=True))
    pattern_a, pattern_b = A.dense_tiles() != 0, B.dense_tiles() != 0
    for task in zip(a.tolist(), b.tolist(), strict=True):
        product = pattern_a[task[0]].astype(int) @ pattern_b[task[1]].astype(int)
        assert (task in kept) == bool(product.any())


def test_reference_counts_of_a_tridiagonal_matrix():
    n = 64
    A = sp.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1], format="csr")
    counts = reference.table1(A)
    assert counts["nnz_c"] == 5 * n - 6
    assert counts["products"] == 9 * n - 10
    assert counts["tiles_a"] == 8 + 14
    assert counts["tiles_c"] == 8 + 14
    # Diagonal tiles meet diagonal ones, and off-diagonal ones on both sides; two off-diagonals meet on the diagonal.
    assert counts["tile_products"] == 8 + 14 * 2 + 14


@QUICK
@given(shapes, st.floats(0, 0.5), st.integers(0, 10**6))
def test_the_reference_multiplies(shape, density, seed):
    m, k, n = shape
    A, B = random(m, k, density, seed, "integers"), random(k, n, density, seed + 1, "integers")
    expected = spgemm(A, B, backend="cpu")
    C = reference.to_csr(reference.spgemm(*map(reference.to_bitmap, (A, B)), np.float64))
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(expected, name))


@QUICK
@given(shapes, st.floats(0, 0.5), st.integers(0, 10**6), st.sampled_from(["normal", "tiny"]))
def test_a_product_in_float16_is_within_its_bound(shape, density, seed, kind):
    """Whether its rows and columns need powers of two or not."""
    m, k, n = shape
    A, B = random(m, k, density, seed, kind).astype(np.float32), random(k, n, density, seed + 1).astype(np.float32)
    a, b, exponents = half.scaled(A, B)
    assert (exponents is None) <= (kind == "normal" or not A.nnz)
    left, right = (
        reference.to_bitmap(sp.csr_array((x.astype(np.float16).astype(np.float32), M.indices, M.indptr), shape=M.shape))
        for x, M in ((a, A), (b, B))
    )
    C = reference.to_csr(reference.spgemm(left, right))
    C.data = half.unscale(C.data, C.indptr, C.indices, exponents, 0, np)
    exact, bound = spgemm(A, B, precision="float64", backend="cpu"), half.error_bound(A, B)
    np.testing.assert_array_equal(C.indices, exact.indices)
    error = np.abs(C.data - exact.data)
    assert (error <= bound.data + error_bound(A, B, precision="float64").data).all()
    if kind == "normal" and exponents is None:
        np.testing.assert_array_equal(bound.data, error_bound(A, B, precision="float16").data)


def test_rows_beyond_the_range_of_float16_are_refused():
    A = sp.csr_array(np.array([[1.0, 2.0**-60]]))
    with pytest.raises(ValueError, match=r"row of A 0 holds entries further apart .*2\*\*39"):
        half.scaled(A, sp.csr_array(A.T))


def test_a_scaled_back_entry_beyond_float32_is_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="beyond the range of float32"):
        half.unscale(one, np.array([0, 1]), np.array([0]), (np.array([100]), np.array([100])), 0, np)
