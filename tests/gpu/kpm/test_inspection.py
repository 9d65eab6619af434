"""One look at a matrix on the device: groups of rows that share columns, adjoints, bounds."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile_study.inputs.hamiltonians import hamiltonian

from ...blocks import block_matrix

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_blocks_of_every_size(dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.boxed.groups import groups_of

    rng = np.random.default_rng(SEED)
    for cells in (1, 2, 37, 300):
        H = block_matrix(cells, 20, 3, dtype, rng)
        edges = groups_of(csr_matrix(H)).get()
        assert edges[0] == 0 and edges[-1] == H.shape[0] and np.diff(edges).min() >= 1 and np.diff(edges).max() <= 8
        for first, last in itertools.pairwise(edges):
            rows = [H.indices[H.indptr[i] : H.indptr[i + 1]].tolist() for i in range(first, last)]
            assert all(row == rows[0] for row in rows), f"seed {SEED}"


def test_groups_and_adjoints_are_found():
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.boxed.groups import groups_of
    from spectile.kpm.cuda.inspection import inspect

    rng = np.random.default_rng(SEED)
    for most in (9, 21):  # with and without runs of more than eight rows
        sizes = rng.integers(1, most, 40)
        H = sp.block_diag([np.ones((size, size)) for size in sizes]).tocsr()
        edges = groups_of(csr_matrix(H)).get()
        assert set(np.append(0, np.cumsum(sizes))) <= set(edges.tolist()) and np.diff(edges).max() <= 8
        if most == 9:
            np.testing.assert_array_equal(edges, np.append(0, np.cumsum(sizes)))
        assert inspect(csr_matrix(H)).difference == 0
    for size, wanted in ((1, [0, 1]), (8, [0, 8]), (9, [0, 4, 9]), (33, [0, 6, 13, 19, 26, 33])):
        np.testing.assert_array_equal(groups_of(csr_matrix(sp.csr_matrix(np.ones((size, size))))).get(), wanted)
    wannier = hamiltonian("wannier", 3000, np.float64)
    row = int(rng.integers(wannier.shape[0]))
    changed = wannier.copy()
    at = wannier.indptr[row] + (0 if wannier.indices[wannier.indptr[row]] != row else 1)
    changed.data[at] += 0.25
    assert inspect(csr_matrix(changed)).difference == pytest.approx(0.25)
    for row, column in ((5, 1500), (1500, 5)):  # no partner on either side of the diagonal
        lonely = wannier.tolil()
        lonely[row, column] = 0.5
        assert inspect(csr_matrix(lonely.tocsr())).difference == pytest.approx(0.5)


@pytest.mark.parametrize("most", [0, 5, 60])  # a thread and a warp look at a row
def test_slots_and_rows_unlike_the_one_before_are_counted(most):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.boxed.groups import groups_of
    from spectile.kpm.cuda.inspection import inspect
    from spectile.kpm.cuda.sliced.layout import slice_starts

    rng = np.random.default_rng(SEED)
    for rows in (1, 31, 32, 33, 4000):
        lengths = rng.integers(0, min(rows, most) + 1, rows)
        chosen = [np.sort(rng.choice(rows, n, replace=False)) for n in lengths]
        for row in rng.integers(0, rows, rows // 2):
            chosen[row] = chosen[row - 1]
        pointer = np.append(0, np.cumsum([len(row) for row in chosen])).astype(np.int32)
        held = np.ones(pointer[-1]), np.concatenate(chosen).astype(np.int32), pointer
        H = csr_matrix(sp.csr_matrix(held, shape=(rows, rows)))
        if not H.nnz:
            continue
        seen = inspect(H)
        pairs = zip([None, *chosen], chosen, strict=False)
        unlike = sum(a is None or len(a) != len(b) or (bool(len(b)) and a[0] != b[0]) for a, b in pairs)
        assert seen.longest == np.diff(pointer).max() and seen.unlike == unlike, f"seed {SEED}"
        assert seen.slots == int(slice_starts(H.indptr, H.dtype)[-1]) and unlike <= groups_of(H).size - 1


@pytest.mark.parametrize("entries", [3, 40])  # a thread and a warp look at a row
@pytest.mark.parametrize("change", ["none", "twice", "descent"])
def test_columns_that_do_not_ascend_are_seen(change, entries):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.inspection import inspect

    rng = np.random.default_rng(SEED)
    rows = 300
    columns = np.stack([np.sort(rng.permutation(rows)[:entries]) for _ in range(rows)]).astype("int32")
    row, at = int(rng.integers(rows)), int(rng.integers(1, entries))
    if change == "twice":
        columns[row, at] = columns[row, at - 1]
    elif change == "descent":
        columns[row, [at - 1, at]] = columns[row, [at, at - 1]]
    pointer = cupy.arange(0, rows * entries + 1, entries, dtype="int32")
    H = csr_matrix((cupy.ones(rows * entries), cupy.asarray(columns.ravel()), pointer), shape=(rows, rows))
    assert inspect(H).canonical == (change == "none"), f"seed {SEED}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["wannier", "graphene"])  # a warp and a thread look at a row
def test_inspection_says_what_scipy_says(kind, dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.bounds import gershgorin
    from spectile.kpm.cuda.inspection import inspect

    rng = np.random.default_rng(SEED)
    for turn in range(8):
        H = hamiltonian(kind, 3000, np.dtype(dtype)).tolil()
        row, column = sorted(rng.choice(H.shape[0], 2, replace=False))
        for changed in ((), ((row, column),), ((column, row),), ((row, column), (column, row)))[turn % 4]:
            H[changed] = rng.uniform(0.1, 3)  # mostly where no entry was
        H = H.tocsr().astype(dtype)
        if turn >= 4:
            H.data[rng.integers(H.nnz)] += rng.uniform(0, 1)
        seen = inspect(csr_matrix(H))
        assert seen.canonical and seen.finite and seen.longest == np.diff(H.indptr).max()
        exact = H.astype(np.complex128)
        assert seen.difference == pytest.approx(abs(exact - exact.conj().T).max(), rel=1e-12, abs=0), f"seed {SEED}"
        assert seen.largest == pytest.approx(abs(exact).max(), rel=1e-12)
        np.testing.assert_allclose(seen.bounds, gershgorin(exact), rtol=1e-12)
