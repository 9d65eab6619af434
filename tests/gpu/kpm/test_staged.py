"""KPM on a stored matrix staged through shared memory: against the float64 reference, fresh seeds, poisoned outputs."""

import numpy as np
import pytest

from spectile.kpm import kpm_dos, reference
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.cases.kpm import stages

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
A, B = 0.11, 0.05
STEPS = 8
# 560 pages a plane: enough for the inspector to walk in waves; and few rows, the last page not whole.
SAMPLES = {
    "planes": (TopologicalInsulator(4, 28, 20).matrix(), False),
    "small": (TopologicalInsulator(5, 4, 7).matrix(), False),
    "graphene": (graphene(9, 7).tocsr(), True),
    "anderson": (anderson(9, disorder=2, rng=1).tocsr(), True),
}


@pytest.fixture
def bulk_copies():
    """Skip where the device has no bulk copies, and where it is described as one that has none."""
    from spectile.core.device import describe

    if describe().compute_capability < (9, 0):
        pytest.skip("V is staged by bulk copies, which begin with compute capability 9.0")


def run(matrix, num_vectors, dtype, real):
    from spectile.kpm.cuda.staged.launch import StagedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    start = reference.random_phases(SEED, matrix.shape[0], num_vectors, real=real)
    expected = stages.etas_blocked(matrix, start, 2 * STEPS, A, B)
    operator = StagedOperator(matrix.astype(dtype))
    recursion = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors))
    recursion.w.fill(7.0)
    return np.abs(recursion.advance(STEPS) - expected).max() / matrix.shape[0]


@pytest.mark.parametrize(
    ("name", "num_vectors", "dtype", "tolerance"),
    [
        ("planes", 32, "complex128", 1e-13),
        ("planes", 45, "complex128", 1e-13),
        ("planes", 128, "complex128", 1e-13),
        ("planes", 64, "complex64", 2e-5),
        ("small", 8, "complex128", 1e-13),
        ("small", 1, "complex128", 1e-13),
        ("graphene", 40, "float64", 1e-13),
        ("graphene", 64, "float32", 2e-5),
        ("anderson", 8, "float64", 1e-13),
        ("anderson", 130, "float64", 1e-13),
    ],
)
@pytest.mark.usefixtures("bulk_copies")
def test_staged_matrix(name, num_vectors, dtype, tolerance):
    assert run(SAMPLES[name][0], num_vectors, dtype, SAMPLES[name][1]) < tolerance, f"seed {SEED}"


@pytest.mark.usefixtures("bulk_copies")
def test_many_steps_are_bitwise_repeatable():
    import cupy

    from spectile.kpm.cuda.staged.launch import StagedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    operator = StagedOperator(TopologicalInsulator(20, 100, 40).matrix(xp=cupy))
    found = []
    for _ in range(2):
        recursion = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, 32))
        found.append(recursion.advance(60))
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()


@pytest.mark.usefixtures("bulk_copies")
def test_modes_without_dots_and_without_the_recurrence():
    import cupy

    from spectile.kpm.cuda.common import FULL, NO_DOTS, PLAIN
    from spectile.kpm.cuda.staged.launch import StagedOperator

    matrix = SAMPLES["planes"][0]
    operator = StagedOperator(matrix)
    v, w = operator.random_block(SEED, 0, 32), operator.random_block(SEED, 32, 32)
    etas, results = cupy.empty((2, 32)), {}
    for mode in (FULL, NO_DOTS, PLAIN):
        results[mode] = w.copy()
        operator.launcher(32, mode)(v, results[mode], 0.3, 0.1, 1.0, etas)
    cupy.testing.assert_array_equal(results[FULL], results[NO_DOTS])
    np.testing.assert_allclose(results[PLAIN].get(), matrix @ v.get(), atol=1e-13)


def test_rows_too_long_for_shared_memory_go_through_the_caches():
    rng = np.random.default_rng(SEED)
    dense = rng.normal(size=(600, 600))
    dense = (dense + dense.T) / 100
    on_gpu = kpm_dos(dense, 32, 32, rng=3, backend="cuda", bounds=(-2, 2))
    on_cpu = kpm_dos(dense, 32, 32, rng=3, backend="cpu", bounds=(-2, 2))
    np.testing.assert_allclose(on_gpu.moments, on_cpu.moments, atol=1e-9)


@pytest.mark.parametrize("num_vectors", [32, 64])
@pytest.mark.usefixtures("bulk_copies")
def test_kpm_dos_stages_wide_blocks(num_vectors, monkeypatch):
    from spectile.kpm.cuda import engine
    from spectile.kpm.cuda.choose import Part
    from spectile.kpm.cuda.staged.launch import StagedOperator

    widths, launcher = [], StagedOperator.launcher

    def spy(self, width, *args, **kwargs):
        widths.append(width)
        return launcher(self, width, *args, **kwargs)

    monkeypatch.setattr(StagedOperator, "launcher", spy)
    monkeypatch.setattr(engine, "choose", lambda problem, *_: (Part("staged", problem.vectors, problem.vectors),))
    H = TopologicalInsulator(8, 100, 40).matrix()  # planes of the paper's sample
    found = kpm_dos(H, 24, num_vectors, rng=3, backend="cuda", bounds=(-12, 12))
    assert widths == [num_vectors]
    expected = kpm_dos(H, 24, num_vectors, rng=3, backend="cpu", bounds=(-12, 12))
    np.testing.assert_allclose(found.moments, expected.moments, atol=1e-11 * H.shape[0])


def test_rows_of_seven_entries_anywhere_are_gathered(bulk_copies):
    from cupyx.scipy.sparse import csr_matrix
    from scipy.sparse import csr_array

    from spectile.kpm.moments import make_engine

    # A ring whose sites are numbered at random, each coupled to itself and the three nearest on either side.
    n, rng = 20_000, np.random.default_rng(SEED)
    place = rng.permutation(n)
    near = (np.arange(n)[:, None] + np.arange(-3, 4)) % n
    H = csr_array((np.ones(7 * n, np.complex128), (np.repeat(place, 7), place[near].ravel())), shape=(n, n))
    engine = make_engine(csr_matrix(H))
    assert engine.seen.longest == 7 and all(part.kernel != "staged" for part in engine._parts(32))


def test_no_plan_is_a_value(bulk_copies):
    """Rows that need more of V than shared memory holds, and memory that ends: an engine goes on without."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.staged.launch import StagedOperator

    dense = csr_matrix(cupy.asarray(np.random.default_rng(SEED).normal(size=(3000, 3000))))
    operator = StagedOperator(dense)
    assert operator.planned(32) is None and operator.beyond(32) is None
    with pytest.raises(MemoryError, match="shared memory"):
        operator.launcher(32)
