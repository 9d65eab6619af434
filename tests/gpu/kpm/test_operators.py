"""KPM on the GPU of any operator and of matrices of every shape and type: as on the CPU."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import SpectralDensity, bounds, kpm_dos, ldos
from spectile.kpm.operators.lattices import graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float64", "complex64", "complex128")


def test_operators_get_arrays_of_their_own_kind():
    import cupy
    from cupyx.scipy.sparse import csr_matrix
    from cupyx.scipy.sparse.linalg import aslinearoperator

    matrix = graphene(9, 8)
    on_gpu = csr_matrix(matrix)
    kinds = []

    class Mine:
        shape, dtype = matrix.shape, matrix.dtype

        def matmat(self, block, out):
            kinds.append(type(block))
            out[...] = (on_gpu if isinstance(block, cupy.ndarray) else matrix) @ block

        def bounds(self):
            return -3.0, 3.0

        def memory_bytes(self, num_vectors):
            return 0

    exact = kpm_dos(matrix, 40, 3, rng=1, backend="cpu", bounds=(-3.1, 3.1)).moments
    for operator, backend, kind in (
        (aslinearoperator(on_gpu), "auto", None),
        (Mine(), "cuda", cupy.ndarray),
        (Mine(), "auto", np.ndarray),
    ):
        kinds.clear()
        density = kpm_dos(operator, 40, 3, rng=1, backend=backend, bounds=(-3.1, 3.1))
        np.testing.assert_allclose(density.moments, exact, atol=1e-11)
        assert not kinds or set(kinds) == {kind}
        assert kpm_dos(operator, 40, 3, rng=1, backend=backend).integrate() == pytest.approx(144, rel=1e-12)
        np.testing.assert_allclose(ldos(operator, [2], 16, backend=backend).integrate(), 1, rtol=1e-12)
    with pytest.raises(ValueError, match='use backend="auto"'):
        kpm_dos(aslinearoperator(on_gpu), 8, 1, backend="cpu")


def test_a_state_of_an_operator_is_saved_and_goes_on(tmp_path):
    from cupyx.scipy.sparse import csr_matrix
    from cupyx.scipy.sparse.linalg import aslinearoperator

    operator = aslinearoperator(csr_matrix(graphene(9, 8)))
    part = SpectralDensity(operator, 20, 3, rng=1, bounds=(-3.1, 3.1))
    part.save(tmp_path / "state.npz")
    resumed = SpectralDensity.load(tmp_path / "state.npz", operator)
    part.add_moments(21)
    resumed.add_moments(21)
    np.testing.assert_array_equal(resumed.moments, part.moments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_entry_without_its_partner_is_seen(dtype):
    from cupyx.scipy.sparse import csr_matrix

    matrix = csr_matrix(graphene(200, 200).astype(dtype))
    for at, by in ((matrix.nnz // 2, 1), (5, 1e-3)):
        wrong = matrix.copy()
        wrong.data[at] += by
        with pytest.raises(ValueError, match="not Hermitian"):
            kpm_dos(wrong, 8, 1)
    matrix.data[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        kpm_dos(matrix, 8, 1)


@pytest.mark.parametrize("unit", [1e-18, 1e18])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_unit_of_energy_does_not_matter(unit, dtype):
    matrix = graphene(9, 8).astype(dtype)
    ours, other = (kpm_dos(H, 64, 4, rng=3, backend="cuda") for H in (matrix, (matrix * unit).astype(dtype)))
    width = ours.bounds[1] - ours.bounds[0]
    np.testing.assert_allclose(np.array(other.bounds) / unit, ours.bounds, atol=1e-4 * width)
    assert other.integrate() == pytest.approx(144, rel=1e-5)


def random_matrix(size, per_row, dtype, rng):
    """Return a random Hermitian matrix with empty rows and a longer one, in COO form with duplicates."""
    entries = int(per_row * size)
    row, column = rng.integers(0, max(1, 3 * size // 4), (2, entries))
    row, column = np.append(row, np.zeros(size // 2, int)), np.append(column, np.arange(size // 2))
    values = rng.normal(size=row.size)
    values = values + 1j * rng.normal(size=row.size) if np.dtype(dtype).kind == "c" else values
    both = np.r_[values, values.conj()], (np.r_[row, column], np.r_[column, row])
    return sp.coo_array(both, shape=(size, size)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "num_vectors"), itertools.product(DTYPES, (1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 70))
)
def test_matrices_of_every_shape(dtype, num_vectors):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    single = dtype in ("float32", "complex64")
    for size, per_row in ((1, 1), (2, 0), (31, 1), (32, 0.2), (33, 3), (127, 40), (1031, 2.5)):
        matrix = random_matrix(size, per_row, dtype, rng)
        wide = matrix.tocsr()
        wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
        on_cpu = kpm_dos(matrix, 24, num_vectors, rng=4, backend="cpu")
        # A step rounds numbers as large as the energies over half the width that is scaled to 1: a million of it for
        # a single energy.  12 steps on each side, and a moment is twice a product of two such vectors.
        energy, half = max(map(abs, on_cpu.bounds)), bounds.FILL / bounds.scaling(on_cpu.bounds)[0]
        rounding = 4 * 24 * np.finfo(dtype).eps * energy / half
        for H in (matrix, wide):
            on_gpu = kpm_dos(H, 24, num_vectors, rng=4, backend="cuda", bounds=on_cpu.bounds)
            error = np.abs(on_gpu.moments - on_cpu.moments).max() / size
            assert error < max(2e-3 if single else 1e-9, rounding), (size, per_row, seed)
        found = kpm_dos(matrix, 24, num_vectors, rng=4, backend="cuda")
        assert found.integrate() == pytest.approx(size, rel=1e-3 if single else 1e-9), (size, per_row, seed)


@pytest.mark.parametrize("dims", [(5, 7, 100), (3, 3, 300), (3, 3, 1200)])
def test_a_sample_too_high_for_a_block_takes_one_step_or_is_stored(dims):
    sample = TopologicalInsulator(*dims)
    on_gpu = kpm_dos(sample, 20, 2, rng=1, backend="cuda", bounds=(-9, 9))
    on_cpu = kpm_dos(sample, 20, 2, rng=1, backend="cpu", bounds=(-9, 9))
    np.testing.assert_allclose(on_gpu.moments, on_cpu.moments, atol=1e-11 * sample.shape[0])
