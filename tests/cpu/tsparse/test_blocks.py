"""Products block of rows by block: the rows of the whole, and no more than a block of them in memory."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from spectile import tsparse
from spectile.tsparse import spgemm
from spectile.tsparse.cpu import wanted


def row_blocks(A, B, **options):
    return tsparse.row_blocks(A, B, backend="cpu", **options)


def random(m, n, density, seed=1, dtype=np.float64):
    A = sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format="csr")
    return sp.csr_array(((9 * A.data + 1).astype(dtype), A.indices, A.indptr), shape=A.shape)


OPTIONS = [
    {},
    {"semiring": "max_plus"},
    {"semiring": "any_pair"},
    {"prune": 60.0},
    {"top_n": 3, "alpha": -2.0},
    {"precision": "float16"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("limit", [None, 200_000])
def test_the_blocks_are_the_rows_of_the_product(options, limit, monkeypatch):
    monkeypatch.setattr(wanted, "_BLOCK_PRODUCTS", 500)
    A, B = random(300, 80, 0.05), random(80, 200, 0.05, seed=2)
    whole = spgemm(A, B, backend="cpu", **options)
    end, parts = 0, []
    for rows, part in row_blocks(A, B, memory_limit=limit, **options):
        assert rows.start == end and rows.step is None and part.shape == (rows.stop - rows.start, 200)
        part.check_format()
        assert part.has_canonical_format and part.dtype == whole.dtype and isinstance(part, sp.csr_array)
        end, parts = rows.stop, [*parts, part]
    assert end == 300 and len(parts) > 3
    C = sp.vstack(parts, format="csr")
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(C, name), getattr(whole, name))
    np.testing.assert_allclose(C.data, whole.data, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32])
def test_matrices_and_other_types(dtype, monkeypatch):
    monkeypatch.setattr(wanted, "_BLOCK_PRODUCTS", 300)
    A = sp.csr_matrix(random(100, 100, 0.05, dtype=dtype))
    parts = [part for _, part in row_blocks(A, A)]
    assert all(isinstance(part, sp.csr_matrix) and part.dtype == dtype for part in parts) and len(parts) > 2
    np.testing.assert_array_equal(sp.vstack(parts).toarray(), (A @ A).toarray())


def test_masks_and_sums(monkeypatch):
    monkeypatch.setattr(wanted, "_BLOCK_PRODUCTS", 300)
    A, C, mask = random(90, 90, 0.05), random(90, 90, 0.1, 2), random(90, 90, 0.2, 3)
    for options in ({"mask": mask}, {"mask": mask, "complement": True}, {"C": C, "beta": 2.0}):
        parts = [part for _, part in row_blocks(A, A, **options)]
        whole = spgemm(A, A, backend="cpu", **options).toarray()
        np.testing.assert_allclose(sp.vstack(parts).toarray(), whole, rtol=1e-12)


def test_no_more_than_a_block_is_held():
    A, B = random(4000, 60, 0.2), random(60, 3000, 0.2, seed=2)
    limit = 4 * 2**20
    size = 0
    for _ in row_blocks(A, B, memory_limit=limit):
        pass
    tracemalloc.start()
    for _, part in row_blocks(A, B, memory_limit=limit):
        size += part.data.nbytes + part.indices.nbytes
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.1 * limit < size / 4


def test_wrong_input_is_refused_before_the_first_block():
    A = random(20, 30, 0.2)
    for options, said in (
        ({"memory_limit": -1}, "positive number of bytes"),
        ({"semiring": "nonsense"}, "choose 'plus_times'"),
        ({"beta": 2}, "beta is given without C"),
    ):
        with pytest.raises(ValueError, match=said):
            row_blocks(A, A.T, **options)
    with pytest.raises(ValueError, match="columns of A must be the rows of B"):
        row_blocks(A, A)
    with pytest.raises(TypeError, match="unexpected keyword"):
        row_blocks(A, A.T, format="csr")
    A.data[3] = np.nan
    with pytest.raises(ValueError, match="A holds nan"):
        next(row_blocks(A, A.T))


def test_no_rows():
    A, B = sp.csr_array((0, 3)), sp.csr_array((3, 5))
    ((rows, part),) = row_blocks(A, B)
    assert (rows, part.shape) == (slice(0, 0), (0, 5))
    for options in ({}, {"top_n": 2}, {"mask": sp.csr_array((0, 5)), "complement": True}, {"semiring": "min_plus"}):
        for form in ("csr", "csc", "coo", "dense"):
            assert spgemm(A, B, format=form, backend="cpu", **options).shape == (0, 5)
