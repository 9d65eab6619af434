"""KPM on the GPU: stored and matrix-free recurrences against the float64 reference, fresh seeds, poisoned outputs."""

import numpy as np
import pytest

from spectile.kpm import SpectralDensity, kpm_dos, ldos, reference
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.cases.kpm import stages

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
A, B = 0.11, 0.05


def expected(sample, num_vectors, steps, seed):
    start = reference.random_phases(seed, sample.shape[0], num_vectors)
    return stages.etas_blocked(sample.matrix(), start, 2 * steps, A, B)


@pytest.mark.parametrize("num_vectors", [1, 2, 3, 8, 17, 32, 45, 64, 130])
@pytest.mark.parametrize("kernel", ["csr", "sliced"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("complex128", 1e-13), ("complex64", 2e-5)])
def test_stored_matrix(num_vectors, kernel, dtype, tolerance):
    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.sliced.launch import SlicedOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    sample = TopologicalInsulator(5, 4, 7)
    operator = {"csr": CsrOperator, "sliced": SlicedOperator}[kernel](sample.matrix().astype(dtype))
    recursion = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors))
    recursion.w.fill(7.0)
    etas = recursion.advance(9)
    error = np.abs(etas - expected(sample, num_vectors, 9, SEED)).max() / sample.shape[0]
    assert error < tolerance, f"seed {SEED}"


@pytest.mark.parametrize("dims", [(3, 3, 1), (4, 5, 6), (6, 25, 40), (5, 7, 100), (7, 13, 8)])
@pytest.mark.parametrize("num_vectors", [1, 5, 32])
@pytest.mark.parametrize("steps_a_sweep", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("complex128", 1e-12), ("complex64", 2e-5)])
def test_matrix_free(dims, num_vectors, steps_a_sweep, dtype, tolerance):
    from spectile.kpm.cuda.stencil.launch import StencilOperator, StencilRecursion

    sample = TopologicalInsulator(*dims)
    operator = StencilOperator(sample, dtype)
    try:
        operator.tile(steps_a_sweep)
    except MemoryError:
        assert dims == (5, 7, 100)  # every other sample fits a block of 99 KB
        pytest.skip("this device's blocks hold no line of the sample for two steps: kpm_dos takes one, or stores H")
    recursion = StencilRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors), steps_a_sweep)
    recursion.w.fill(7.0)
    if steps_a_sweep == 2:
        recursion.v_out, recursion.w_out = (operator.empty(num_vectors) for _ in range(2))
        recursion.v_out.fill(np.nan)
        recursion.w_out.fill(np.nan)
    etas = np.concatenate([recursion.advance(4), recursion.advance(5)])
    error = np.abs(etas - expected(sample, num_vectors, 9, SEED)).max() / sample.shape[0]
    assert error < tolerance, f"seed {SEED}"


def test_bitwise_repeatable_and_independent_of_how_steps_are_asked_for():
    whole = SpectralDensity(TopologicalInsulator(8, 9, 10), 61, 6, rng=SEED, backend="cuda", bounds=(-9, 9))
    parts = SpectralDensity(TopologicalInsulator(8, 9, 10), 24, 6, rng=SEED, backend="cuda", bounds=(-9, 9))
    parts.add_moments(37)
    np.testing.assert_array_equal(whole.moments, parts.moments)


@pytest.mark.parametrize("H", [TopologicalInsulator(6, 5, 8), graphene(9, 8), anderson(7, disorder=3, rng=1)])
def test_public_functions_equal_the_cpu(H, tmp_path):
    on_cpu = kpm_dos(H, 64, 5, rng=3, backend="cpu", bounds=(-12, 12))
    on_gpu = kpm_dos(H, 64, 5, rng=3, backend="cuda", bounds=(-12, 12))
    np.testing.assert_allclose(on_gpu.moments, on_cpu.moments, atol=1e-11 * H.shape[0])
    on_gpu.add_vectors(4)  # which are others than the first
    nine = kpm_dos(H, 64, 9, rng=3, backend="cpu", bounds=(-12, 12))
    np.testing.assert_allclose(on_gpu.moments, nine.moments, atol=1e-11 * H.shape[0])
    found = kpm_dos(H, 64, 5, rng=3, backend="cuda")
    assert found.integrate() == pytest.approx(H.shape[0], rel=1e-12)
    np.testing.assert_allclose(ldos(H, [0, 3], 32, backend="cuda").integrate(), 1, rtol=1e-12)
    on_gpu.save(tmp_path / "state.npz")
    resumed = SpectralDensity.load(tmp_path / "state.npz", H, backend="cuda")
    on_gpu.add_moments(21)
    resumed.add_moments(21)
    np.testing.assert_array_equal(resumed.moments, on_gpu.moments)


def test_a_matrix_on_the_device_stays_there():
    import cupy

    matrix = TopologicalInsulator(5, 4, 7).matrix(xp=cupy)
    assert SpectralDensity(matrix, 32, 2, rng=1)._engine.name == "cuda"


def test_bad_input_is_worded():
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    with pytest.raises(ValueError, match="not Hermitian"):
        kpm_dos(csr_matrix(cupy.triu(cupy.ones((8, 8)))), 16, 2)
    with pytest.raises(ValueError, match="leaves the given bounds"):
        kpm_dos(TopologicalInsulator(5, 4, 7), 64, 2, bounds=(-2, 2), backend="cuda")
