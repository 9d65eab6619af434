"""Groups of rows, V through shared memory: equal to the float64 reference for every type, width and size of group."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import reference
from spectile_study.cases.kpm import stages
from spectile_study.inputs.hamiltonians import hamiltonian

from ...blocks import block_matrix

pytestmark = pytest.mark.gpu
needs_boxes = pytest.mark.usefixtures("boxes")

SEED = int(np.random.SeedSequence().generate_state(1)[0])
A, B = 0.11, 0.05
#: Type, R, and a shape: columns, steps in flight, groups, tiles at work and in flight, rows of a box.
SHAPES = [
    ("complex128", 32, None), ("complex128", 32, (16, 1, 4, 2, 2, 8)), ("complex128", 32, (32, 1, 4, 1, 2, 24)),
    ("complex128", 8, None), ("complex128", 16, None), ("complex128", 96, None),
    ("complex64", 32, None), ("complex64", 32, (32, 1, 8, 1, 2, 8)), ("complex64", 8, None), ("complex64", 64, None),
    ("float64", 32, None), ("float64", 32, (32, 2, 8, 1, 2, 16)), ("float64", 16, (16, 2, 8, 1, 3, 40)),
    ("float32", 32, None), ("float32", 32, (32, 2, 16, 1, 2, 8)), ("float32", 16, (16, 1, 8, 2, 4, 24)),
]  # fmt: skip


@pytest.fixture(scope="module")
def boxes():
    """Skip where the device has no copies of boxes, and where it is described as one that has none."""
    from spectile.core.device import describe

    if describe().compute_capability < (9, 0):
        pytest.skip("boxes of V are copied by an engine that begins with compute capability 9.0")


def error_of(H, num_vectors, shape):
    """Return how far the scalar products of some steps are from the reference."""
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.boxed.launch import BoxedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    # Kernels are compiled for a length: few of them.
    longest = -(-int(np.diff(H.indptr).max()) // 32) * 32
    operator = BoxedOperator(csr_matrix(H), longest, tuning=shape)
    recursion = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors))
    recursion.w.fill(7.0)
    etas = recursion.advance(7)
    start = reference.random_phases(SEED, H.shape[0], num_vectors, real=H.dtype.kind != "c")
    expected = stages.etas_blocked(H.astype(np.result_type(H.dtype, np.float64)), start, 14, A, B)
    return np.abs(etas - expected).max() / max(1.0, np.abs(expected).max())


def limit_of(dtype):
    # Ends of the spectrum lie a little outside of [-1, 1] with A and B, so that rounding grows from step to step.
    return 1e-12 if dtype in ("float64", "complex128") else 4e-5


@needs_boxes
@pytest.mark.parametrize(("dtype", "num_vectors", "shape"), SHAPES)
def test_blocks_of_every_size(dtype, num_vectors, shape, monkeypatch):
    from spectile.kpm.cuda.boxed import when
    from spectile.kpm.cuda.boxed.when import BoxedShape, boxed_shape

    # Small boxes: columns lie here and there, and tiles may be halved until they are groups.
    monkeypatch.setattr(when, "_LEAST_FILLED", 1 / 32)
    shape = (BoxedShape(*shape) if shape else boxed_shape(num_vectors, dtype))._replace(box=8)
    rng = np.random.default_rng(SEED)
    for cells in (1, 2, 37, 300):
        H = block_matrix(cells, 10, 1, dtype, rng)
        error = error_of(H, num_vectors, shape)
        assert error < limit_of(dtype), f"seed {SEED}, {cells} cells"


@needs_boxes
@pytest.mark.parametrize(("dtype", "num_vectors", "shape"), SHAPES)
def test_lattices(dtype, num_vectors, shape):
    from spectile.kpm.cuda.boxed.when import BoxedShape, boxed_shape

    shape = BoxedShape(*shape) if shape else boxed_shape(num_vectors, dtype)
    for side in (3, 61):  # more tiles than blocks that run together, twice
        H = hamiltonian("wannier", 7 * side**2, np.dtype(dtype))
        assert error_of(H, num_vectors, shape) < limit_of(dtype), f"seed {SEED}, side {side}"


@needs_boxes
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_modes_without_dots_and_without_the_recurrence(dtype):
    import cupy

    from spectile.kpm.cuda.boxed.launch import BoxedOperator
    from spectile.kpm.cuda.common import NO_DOTS, PLAIN

    matrix = hamiltonian("wannier", 20_000, np.dtype(dtype), cupy)  # lines long enough for full tiles
    operator = BoxedOperator(matrix, 63)
    v = operator.random_block(SEED, 0, 32)
    w = cupy.full_like(v, np.nan)
    tolerance = 1e-12 if dtype == "complex128" else 2e-5
    operator.launcher(32, PLAIN)(v, w, 1.0, 0.0, 0.0, None)
    cupy.testing.assert_allclose(w, matrix @ v, atol=tolerance)
    before = w.copy()
    operator.launcher(32, NO_DOTS)(v, w, 2.0, 0.5, 1.0, None)
    cupy.testing.assert_allclose(w, 2 * (matrix @ v) + 0.5 * v - before, atol=4 * tolerance)


@needs_boxes
def test_tiles_that_need_too_many_boxes_are_halved_and_groups_refused(monkeypatch):
    from spectile.kpm.cuda.boxed import launch, when

    room = launch.boxed_room
    H = hamiltonian("wannier", 7 * 144, np.float64)
    # A group alone needs 3 to 5 boxes.  Where half of each tile's warps would be idle, others are faster.
    for slots, filled, refused in ((6, 0.25, False), (6, 0.75, True), (2, 0.01, True)):
        monkeypatch.setattr(launch, "boxed_room", lambda *about, slots=slots: room(*about)._replace(slots=slots))
        monkeypatch.setattr(when, "_LEAST_FILLED", filled)
        if refused:
            with pytest.raises(MemoryError, match="more boxes"):
                error_of(H, 32, None)
        else:
            assert error_of(H, 32, None) < 1e-12, f"seed {SEED}"


def scattered(dtype):
    """Return a Wannier-like matrix whose cells are numbered at random."""
    from cupyx.scipy.sparse import csr_matrix

    H = hamiltonian("wannier", 7 * 50**2, np.dtype(dtype))
    cells = np.random.default_rng(SEED).permutation(50**2)
    order = (7 * cells[:, None] + np.arange(7)).ravel()
    return csr_matrix(H[order][:, order].sorted_indices())


@needs_boxes
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_an_engine_takes_them_where_they_fit(dtype):
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.moments import make_engine

    engine = make_engine(hamiltonian("wannier", 200_000, np.dtype(dtype), cupy))
    for num_vectors in (16, 32):
        kernels = {part.kernel for part in engine._parts(num_vectors)}
        assert kernels == {"boxed"} or not describe().fast_fp64, num_vectors
    engine = make_engine(scattered(dtype))
    for _ in range(2):
        assert all(part.kernel != "boxed" for part in engine._parts(32))
    assert "boxed" not in engine._operators


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_scattered_cells_and_memory_that_runs_out_leave_the_same_moments(dtype, monkeypatch):
    import cupy

    from spectile import kpm_dos
    from spectile.kpm.cuda.boxed import launch
    from spectile.kpm.cuda.staged import inspector

    limit = 1e-9 if dtype == "complex128" else 1e-3
    for matrix in (scattered(dtype), hamiltonian("wannier", 20_000, np.dtype(dtype), cupy)):
        found = kpm_dos(matrix, 40, 32, rng=3, backend="cuda")
        on_cpu = kpm_dos(matrix.get(), 40, 32, rng=3, bounds=found.bounds, backend="cpu").moments
        np.testing.assert_allclose(found.moments, on_cpu, rtol=0, atol=limit * matrix.shape[0])
        with monkeypatch.context() as patch:
            for module in (launch, inspector):
                patch.setattr(module, "free_bytes", lambda: 0)
            without = kpm_dos(matrix, 40, 32, rng=3, bounds=found.bounds, backend="cuda").moments
        np.testing.assert_allclose(without, on_cpu, rtol=0, atol=limit * matrix.shape[0])


@needs_boxes
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_rows_of_2000_entries_leave_no_shared_memory(dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile import kpm_dos
    from spectile.kpm.moments import make_engine

    # 400 cells of five rows; one couples all others.
    graph = sp.lil_matrix((400, 400))
    graph[0, :] = graph[:, 0] = 1
    graph.setdiag(1)
    values = np.random.default_rng(SEED).normal(size=(2000, 2000)) / 400
    H = sp.csr_matrix(sp.kron(graph, np.ones((5, 5))).multiply(values + values.T)).astype(dtype)
    H.sort_indices()
    assert int(np.diff(H.indptr).max()) == 2000
    on_gpu = csr_matrix(H)
    assert all(part.kernel != "boxed" for part in make_engine(on_gpu)._parts(32))
    found = kpm_dos(on_gpu, 40, 32, rng=3)
    on_cpu = kpm_dos(H, 40, 32, rng=3, bounds=found.bounds, backend="cpu")
    limit = 1e-9 if dtype == "complex128" else 1e-3
    np.testing.assert_allclose(found.moments, on_cpu.moments, rtol=0, atol=limit * 2000)


@needs_boxes
def test_two_operators_on_two_streams_at_a_time():
    import cupy

    from spectile.kpm.cuda.boxed.launch import BoxedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    matrices = [hamiltonian("wannier", 50_000, np.dtype(dtype), cupy) for dtype in ("complex128", "float32")]
    operators = [BoxedOperator(matrix, 63) for matrix in matrices]
    expected = [StoredRecursion(op, A, B, op.random_block(SEED, 0, 32)).advance(20) for op in operators]
    cupy.cuda.Device().synchronize()
    streams, recursions = [cupy.cuda.Stream(non_blocking=True) for _ in operators], []
    for stream, operator in zip(streams, operators, strict=True):
        with stream:
            recursions.append(StoredRecursion(operator, A, B, operator.random_block(SEED, 0, 32)))
            recursions[-1].enqueue(20)
    for stream, recursion, one in zip(streams, recursions, expected, strict=True):
        with stream:
            np.testing.assert_array_equal(recursion.collect(), one)


@needs_boxes
def test_the_same_steps_give_the_same_bits():
    import cupy

    from spectile.kpm.cuda.boxed.launch import BoxedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    operator = BoxedOperator(hamiltonian("wannier", 100_000, np.complex128, cupy), 63)
    runs = [StoredRecursion(operator, A, B, operator.random_block(SEED, 0, 32)).advance(20) for _ in range(3)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


@needs_boxes
def test_entries_that_begin_between_multiples_of_16_bytes():
    import cupy

    from spectile.kpm.cuda.boxed.launch import BoxedOperator

    matrix = hamiltonian("wannier", 3000, np.float32, cupy)
    data = cupy.empty(matrix.nnz + 1, np.float32)[1:]
    data[...] = matrix.data
    moved = matrix.copy()
    moved.data = data
    assert moved.data.data.ptr % 16 == 4
    v, found = BoxedOperator(matrix, 63).random_block(SEED, 0, 32), []
    for each in (matrix, moved):
        w = cupy.zeros_like(v)
        BoxedOperator(each, 63).launcher(32)(v, w, 1.0, 0.0, 0.0, cupy.empty((2, 32)))
        found.append(w)
    cupy.testing.assert_array_equal(*found)
