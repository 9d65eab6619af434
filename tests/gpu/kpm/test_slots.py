"""Rows in slots, strips of a lattice and steps that overlap: equal to the float64 reference, or bit by bit."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import kpm_dos, reference
from spectile.kpm.cuda import choose
from spectile_study.inputs.hamiltonians import hamiltonian

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DTYPES = ("float32", "float64", "complex64", "complex128")
# Of all matrices here the scaled energies lie within −1 and 1.
A, B = 0.025, 0.05


def limit(dtype):
    """Return the error that steps of this type may have."""
    return 1e-12 if np.finfo(dtype).eps < 1e-10 else 1e-5


def short_rows(size, dtype, rng, most=8):
    """Return a Hermitian matrix of at most so many entries a row, some rows of which are empty."""
    pairs = sp.random(size, size, min(1, 1.5 / size), random_state=rng).tocsr()
    values = rng.normal(size=pairs.nnz) + 1j * rng.normal(size=pairs.nnz)
    pairs = sp.csr_matrix((values / 12, pairs.indices, pairs.indptr), shape=pairs.shape)
    whole = (pairs + pairs.conj().T).tocoo()
    long_rows = np.nonzero(np.bincount(whole.row, minlength=size) > most)[0]
    kept = ~(np.isin(whole.row, long_rows) | np.isin(whole.col, long_rows))
    matrix = sp.csr_matrix((whole.data[kept], (whole.row[kept], whole.col[kept])), shape=whole.shape)
    matrix.sort_indices()
    return (matrix if np.dtype(dtype).kind == "c" else matrix.real).astype(dtype)


def etas_of(operator, num_vectors, steps=9):
    """Return the scalar products of so many steps on random start vectors."""
    from spectile.kpm.cuda.stored import StoredRecursion

    return StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors)).advance(steps)


def expected_etas(matrix, num_vectors, steps=9):
    """Return them in float64."""
    start = reference.random_phases(SEED, matrix.shape[0], num_vectors, real=matrix.dtype.kind != "c")
    return reference.etas_blocked(matrix.astype(np.result_type(matrix.dtype, np.float64)), start, 2 * steps, A, B)


def assert_close(etas, expected, dtype, what):
    """Assert that scalar products are as in float64."""
    assert np.abs(etas - expected).max() / max(1.0, np.abs(expected).max()) < limit(dtype), f"seed {SEED}, {what}"


@pytest.mark.parametrize("num_vectors", [1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.core.device import describe
    from spectile.kpm.cuda.gather import SlotsOperator

    rng = np.random.default_rng(SEED)
    for size, most in ((1, 1), (31, 3), (33, 8), (1000, 5), (7001, 8)):
        matrix = short_rows(size, dtype, rng, most)
        longest = max(1, int(np.diff(matrix.indptr).max()))
        expected = expected_etas(matrix, num_vectors)
        for keep in (0, 1):
            shape = choose.slot_shape(num_vectors, dtype, longest, size, describe())._replace(keep=keep)
            operator = SlotsOperator(csr_matrix(matrix), longest, shape)
            assert_close(etas_of(operator, num_vectors), expected, dtype, f"{size} rows, keep {keep}")


@pytest.mark.parametrize(("dtype", "num_vectors"), itertools.product(DTYPES, (1, 8, 32)))
def test_steps_that_overlap_give_the_same_bits(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.gather import SlotsOperator

    matrix = hamiltonian("graphene", 30_000, np.dtype(dtype)).tocsr()
    operator = SlotsOperator(csr_matrix(matrix), 3)
    overlapping = etas_of(operator, num_vectors, 40)
    assert_close(overlapping, expected_etas(matrix, num_vectors, 40), dtype, "overlapping")
    for overlaps in (False, True, True, True, True):
        operator.overlaps = overlaps
        np.testing.assert_array_equal(etas_of(operator, num_vectors, 40), overlapping, f"seed {SEED}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strips_of_a_square_lattice(dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.core.device import describe
    from spectile.kpm.cuda.gather import GatherOperator

    # Lines that give each block a bit less than six rows; the last line is not whole.
    matrix = hamiltonian("hopping", int((11.8 * describe().multiprocessors) ** 2), np.dtype(dtype))[:-77, :-77].tocsr()
    size, line = matrix.shape[0], int(matrix.shape[0] ** 0.5) + 2
    on_gpu, item = csr_matrix(matrix), np.dtype(dtype).itemsize
    for num_vectors in (32, 64):
        strips, side_by_side = GatherOperator(on_gpu, 8, line), GatherOperator(on_gpu, 8)
        shape = choose.strip_shape(choose.gather_shape(num_vectors, dtype, 8), num_vectors, line, item, describe())
        if describe().shared_bytes > 200_000:
            assert choose.gather_launch(shape, size, num_vectors, describe(), line, item)[1] == line
            assert num_vectors > 32 or strips.unit(num_vectors) != side_by_side.unit(num_vectors)
        found, expected = etas_of(strips, num_vectors, 5), etas_of(side_by_side, num_vectors, 5)
        assert_close(found, expected, dtype, f"{num_vectors} vectors")


@pytest.mark.parametrize(("kind", "num_vectors"), [("slots", 1), ("slots", 32), ("thirds", 32)])
def test_modes_and_parts_of_the_rows(kind, num_vectors):
    import cupy

    from spectile.kpm.cuda.gather import SlotsOperator
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.cuda.units import NO_DOTS, PLAIN

    matrix = hamiltonian("wannier" if kind == "thirds" else "anderson", 5000, np.float32, cupy)
    three_parts = choose.GroupedShape(32, 2, 256, 1, 1)
    operator = GroupedOperator(matrix, tuning=three_parts) if kind == "thirds" else SlotsOperator(matrix, 7)
    v = operator.random_block(SEED, 0, num_vectors)
    w = cupy.full_like(v, np.nan)
    operator.launcher(num_vectors, PLAIN)(v, w, 1.0, 0.0, 0.0, None)
    cupy.testing.assert_allclose(w, matrix @ v, atol=1e-4)
    before = w.copy()
    operator.launcher(num_vectors, NO_DOTS)(v, w, 2.0, 0.5, 1.0, None)
    cupy.testing.assert_allclose(w, 2 * (matrix @ v) + 0.5 * v - before, atol=2e-4)
    if kind == "slots":
        # Rows 45 to 3000 alone, beside others that stay as they were.
        w[...], etas = before, cupy.full((2, num_vectors), np.nan)
        operator.launcher(num_vectors, rows=(45, 3001))(v, w, 2.0, 0.5, 1.0, etas)
        wanted = 2 * (matrix @ v) + 0.5 * v - before
        cupy.testing.assert_allclose(w[45:3001], wanted[45:3001], atol=2e-4)
        assert bool((w[:45] == before[:45]).all()) and bool((w[3001:] == before[3001:]).all())
        exact = cupy.stack([(abs(v) ** 2)[45:3001].sum(0), (wanted * v)[45:3001].sum(0)])
        cupy.testing.assert_allclose(etas, exact, rtol=0, atol=1e-2)


def test_slots_are_what_a_call_takes():
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.gather import SlotsOperator
    from spectile.kpm.moments import make_engine

    matrix = hamiltonian("anderson", 5000, np.dtype("float64")).tocsr()
    engine = make_engine(csr_matrix(matrix), "cuda")
    assert all(isinstance(engine._format(r), SlotsOperator) for r in (1, 8))
    for num_vectors in (1, 8):
        on_cpu = kpm_dos(matrix, 48, num_vectors, rng=4, backend="cpu", bounds=(-8, 8))
        on_gpu = kpm_dos(matrix, 48, num_vectors, rng=4, backend="cuda", bounds=(-8, 8))
        np.testing.assert_allclose(on_gpu.moments, on_cpu.moments, rtol=0, atol=1e-11 * matrix.shape[0])
    found = kpm_dos(matrix, 48, 8, rng=4, backend="cuda")
    assert found.integrate() == pytest.approx(matrix.shape[0], rel=1e-9)
