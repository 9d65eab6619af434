"""Rows that share columns, on tensor cores: equal to the float64 reference for every type, width and size of group."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import kpm_dos, reference
from spectile_study.inputs.hamiltonians import hamiltonian

from ...blocks import block_matrix

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DTYPES = ("float32", "float64", "complex64", "complex128")
A, B = 0.11, 0.05


@pytest.mark.parametrize("num_vectors", [8, 16, 24, 32, 40, 64, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_every_size(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.core.device import describe
    from spectile.kpm.cuda.choose import groups
    from spectile.kpm.cuda.grouped import GroupedOperator, groups_of
    from spectile.kpm.cuda.stored import StoredRecursion

    if not groups(num_vectors, dtype, 63, describe()):
        pytest.skip("this width, or a device with slow float64, takes other kernels")
    rng = np.random.default_rng(SEED)
    for cells in (1, 2, 37, 300):
        H = block_matrix(cells, 20, 3, dtype, rng)
        on_gpu = csr_matrix(H)
        edges = groups_of(on_gpu).get()
        assert edges[0] == 0 and edges[-1] == H.shape[0] and np.diff(edges).min() >= 1 and np.diff(edges).max() <= 8
        operator = GroupedOperator(on_gpu)
        etas = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors)).advance(7)
        start = reference.random_phases(SEED, H.shape[0], num_vectors, real=np.dtype(dtype).kind != "c")
        expected = reference.etas_blocked(H.astype(np.result_type(dtype, np.float64)), start, 14, A, B)
        limit = 1e-12 if np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 8 else 1e-5
        assert np.abs(etas - expected).max() / max(1.0, np.abs(expected).max()) < limit, f"seed {SEED}, {cells} cells"


@pytest.mark.parametrize("num_vectors", [16, 32, 64, 96])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_blocks_of_every_size_in_three_parts(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.choose import GroupedShape
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    rng = np.random.default_rng(SEED)
    shapes = [GroupedShape(columns, unroll, 256, 1, 1) for columns in (16, 32) for unroll in (1, 2, 4)]
    for cells in (1, 2, 37, 300):
        H = block_matrix(cells, 20, 3, dtype, rng)
        start = reference.random_phases(SEED, H.shape[0], num_vectors, real=dtype == "float32")
        expected = reference.etas_blocked(H.astype(np.result_type(dtype, np.float64)), start, 14, A, B)
        for shape in shapes:
            if num_vectors % shape.columns:
                continue
            operator = GroupedOperator(csr_matrix(H), tuning=shape)
            etas = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors)).advance(7)
            error = np.abs(etas - expected).max() / max(1.0, np.abs(expected).max())
            assert error < 1e-5, f"seed {SEED}, {cells} cells, {shape}"


def test_modes_without_dots_and_without_the_recurrence():
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.choose import groups
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.cuda.units import NO_DOTS, PLAIN

    if not groups(32, "float64", 63, describe()):
        pytest.skip("a device with slow float64 takes other kernels")
    matrix = hamiltonian("wannier", 3000, np.float64, cupy)
    operator = GroupedOperator(matrix)
    v = operator.random_block(SEED, 0, 32)
    w = cupy.full_like(v, np.nan)
    operator.launcher(32, PLAIN)(v, w, 1.0, 0.0, 0.0, None)
    cupy.testing.assert_allclose(w, matrix @ v, atol=1e-12)
    before = w.copy()
    operator.launcher(32, NO_DOTS)(v, w, 2.0, 0.5, 1.0, None)
    cupy.testing.assert_allclose(w, 2 * (matrix @ v) + 0.5 * v - before, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_vectors", [8, 32])
def test_kpm_dos_takes_them_and_repeats_to_the_bit(dtype, num_vectors):
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.boxed import BoxedOperator
    from spectile.kpm.cuda.choose import boxes
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.moments import make_engine

    matrix = hamiltonian("wannier", 20000, dtype, cupy)
    expected = BoxedOperator if boxes(num_vectors, dtype, 63, describe()) else GroupedOperator
    taken = isinstance(make_engine(matrix)._format(num_vectors), expected)
    assert taken == describe().fast_fp64
    runs = [kpm_dos(matrix, 60, num_vectors, rng=3).moments for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    # Bounds that are found with rounded values differ from those of the CPU, and moments with them.
    on_cpu = kpm_dos(hamiltonian("wannier", 20000, dtype), 60, num_vectors, rng=3, backend="cpu")
    same = kpm_dos(matrix, 60, num_vectors, rng=3, bounds=on_cpu.bounds)
    limit = 1e-9 if dtype in ("float64", "complex128") else 1e-3
    np.testing.assert_allclose(same.moments, on_cpu.moments, rtol=0, atol=limit * matrix.shape[0])


def lanczos_bounds(alphas, betas):
    ritz, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas[:-1], -1))
    residual = betas[-1] * np.abs(vectors[-1])
    return np.array([ritz[0] - residual[0], ritz[-1] + residual[-1]])


@pytest.mark.parametrize("unit", [1.0, 1e-20])
@pytest.mark.parametrize("shift", [0, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lanczos_steps_on_packed_values_find_the_same_bounds(dtype, shift, unit, monkeypatch):
    from spectile.kpm.cuda import engine as engine_module
    from spectile.kpm.cuda import packed
    from spectile.kpm.moments import make_engine

    matrix = hamiltonian("wannier", 20000, np.result_type(dtype, np.float64))
    H = sp.csr_matrix((matrix + shift * sp.identity(matrix.shape[0])) * unit).astype(dtype)
    engine = make_engine(H, "cuda")
    found = packed.tridiagonalize(engine.matrix, engine._groups, engine.bounds(), engine.seen.longest, 48)
    assert found is not None
    np.testing.assert_array_equal(engine.tridiagonalize(48), found)  # the engine takes them, and they repeat
    monkeypatch.setattr(engine_module, "packs", lambda longest: False)
    wanted = lanczos_bounds(*engine.tridiagonalize(48))
    moved = np.abs(lanczos_bounds(*found) - wanted).max() / (wanted[1] - wanted[0]) * 2
    assert moved < packed.MOST_MOVED


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_products_of_groups_of_every_size(dtype, monkeypatch):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda import packed
    from spectile.kpm.cuda.grouped import groups_of
    from spectile.kpm.cuda.inspection import inspect

    errors, rng = [], np.random.default_rng(SEED)

    def spy(product, blocks, step, start, steps):
        shifted = H.astype(np.complex128)
        if (H.diagonal() != 0).all():  # every row has an entry there, and center leaves the half width
            center, half = sum(seen.bounds) / 2, (seen.bounds[1] - seen.bounds[0]) / 2
            shifted = shifted - center * sp.identity(H.shape[0])
        else:
            half = max(abs(bound) for bound in seen.bounds)
        shifted = shifted / 2.0 ** np.ceil(np.log2(half))
        v = cupy.asarray(rng.normal(size=start.shape), start.dtype)
        u, dots = cupy.full_like(v, np.nan), cupy.full(blocks, np.nan)
        product(v, u, dots)
        v, u = v.get().astype(np.complex128), u.get().astype(np.complex128)
        # Rounding moves each term by 2^-11 of itself, however much of their sum cancels.
        moved = np.linalg.norm(u - shifted @ v) / np.linalg.norm(abs(shifted) @ abs(v))
        dot = abs(float(dots.sum()) - np.vdot(v, u).real) / np.linalg.norm(v) / np.linalg.norm(u)
        errors.append((moved, dot))
        return np.full(2, np.nan), np.ones(2)

    monkeypatch.setattr(packed, "steps_of", spy)
    cases = [(cells, diagonal) for cells in (3, 37, 300) for diagonal in (0, 3)]
    for cells, diagonal in cases:
        H = block_matrix(cells, 20, 3, dtype, rng)
        if diagonal:
            H = (H + diagonal * sp.identity(H.shape[0], dtype)).tocsr()
        on_gpu = csr_matrix(H)
        seen = inspect(on_gpu)
        assert packed.tridiagonalize(on_gpu, groups_of(on_gpu), seen.bounds, seen.longest, 2) is None
        moved, dot = errors[-1]
        assert moved < 6e-4 and dot < 1e-9, f"seed {SEED}, {cells} cells, {diagonal} on the diagonal"
    assert len(errors) == len(cases)


@pytest.mark.parametrize("dtype", ["complex64", "float32"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_steps_whose_vectors_keep_their_length_are_lanczos_steps(dtype, steps):
    import cupy

    from spectile.core.launch import kernel
    from spectile.kpm import bounds
    from spectile.kpm.cuda import packed
    from spectile.kpm.cuda.units import packed_unit

    rng = np.random.default_rng(SEED)
    n = 3000
    diagonal, start = rng.normal(size=n), 5 * rng.normal(size=n).astype(dtype)
    if np.dtype(dtype).kind == "c":
        start = start + 1j * rng.normal(size=n).astype("float32")
    shifts = cupy.asarray(diagonal)

    def product(v, u, dots):
        u[...] = shifts[:, None] * v + cupy.roll(v, 1, axis=0) + cupy.roll(v, -1, axis=0)
        dots[...] = 0
        dots[1] = cupy.vdot(v.astype("complex128"), u.astype("complex128")).real

    def apply(v):
        return diagonal * v + np.roll(v, 1) + np.roll(v, -1)

    step = kernel(packed_unit(dtype), "packed_step")
    found = packed.steps_of(product, 3, step, cupy.asarray(start.astype(dtype)).reshape(-1, 1), steps)
    wanted = bounds.tridiagonalize(apply, start.astype(np.result_type(dtype, np.float64)), steps)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_without_entries_is_not_packed(dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda import packed
    from spectile.kpm.cuda.grouped import groups_of
    from spectile.kpm.cuda.inspection import inspect

    empty = csr_matrix(sp.csr_matrix((40, 40), dtype=dtype))
    seen = inspect(empty)
    assert seen.bounds == (0, 0) and seen.longest == 0
    assert packed.tridiagonalize(empty, groups_of(empty), seen.bounds, seen.longest, 2) is None


def test_packed_values_are_not_used_where_rounding_moves_the_ends_of_the_spectrum():
    from spectile.kpm.bounds import given_or_found, scaling
    from spectile.kpm.cuda import packed
    from spectile.kpm.moments import make_engine

    # Circles twenty times as wide as the spectrum.
    dense = np.random.default_rng(SEED).choice([-1.0, 1.0], (2000, 2000))
    H = np.triu(dense) + np.triu(dense, 1).T
    engine = make_engine(sp.csr_matrix(H), "cuda")
    assert packed.tridiagonalize(engine.matrix, engine._groups, engine.bounds(), engine.seen.longest, 48) is None
    a, b = scaling(given_or_found(engine, None))
    assert np.abs(a * (np.linalg.eigvalsh(H) - b)).max() <= 1, f"seed {SEED}"


def test_groups_and_adjoints_are_found():
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.grouped import groups_of
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
