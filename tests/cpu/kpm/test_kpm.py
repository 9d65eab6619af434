"""KPM on the CPU: moments against dense eigenvalues, exact cases, Kwant's properties, resume, and worded errors."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile.kpm import SpectralDensity, bounds, kpm_dos, ldos, reference, spectral_function
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import GAMMA_1, GAMMA_HOP, MASS, TopologicalInsulator
from spectile_study.cases.kpm import stages
from spectile_study.cases.kpm.sell import sell_operator

SAMPLE = TopologicalInsulator(4, 5, 3)


def dense_moments(matrix, start, num_moments, a, b):
    energies, states = np.linalg.eigh(matrix.toarray())
    overlap = np.abs(states.conj().T @ start) ** 2
    return np.cos(np.arange(num_moments)[:, None] * np.arccos(a * (energies - b))) @ overlap


def bulk_energies(sample):
    """Return the exact energies of the clean crystal that is periodic in z too, each twice degenerate, ascending.

    E(k) = ± sqrt((2 − t Σ cos k_j)² + t² Σ sin² k_j).
    """
    k = [2 * np.pi * np.arange(n) / n for n in (sample.nx, sample.ny, sample.nz)]
    grid = np.meshgrid(*k, indexing="ij")
    mass = MASS - sample.hopping * sum(np.cos(q) for q in grid)
    energy = np.sqrt(mass**2 + sample.hopping**2 * sum(np.sin(q) ** 2 for q in grid)).ravel()
    return np.sort(np.concatenate([energy, energy, -energy, -energy]))


def scaled(matrix):
    return bounds.scaling(bounds.gershgorin(matrix))


# ---- the Hamiltonians


def test_topological_insulator_has_the_papers_entries():
    matrix = SAMPLE.matrix()
    assert matrix.nnz == SAMPLE.nnz
    assert abs(matrix - matrix.conj().T).max() == 0
    assert TopologicalInsulator(200, 100, 40).nnz == pytest.approx(12.9 * 3.2e6, rel=1e-12)


def test_topological_insulator_closed_in_z_has_the_bulk_bands():
    sample = TopologicalInsulator(4, 5, 3, potential=np.zeros((4, 5, 3)))
    matrix = sample.matrix().toarray()
    hop = -(GAMMA_1 - 1j * GAMMA_HOP[2]) / 2
    for x in range(4):
        for y in range(5):
            bottom, top = sample.row(x, y, 0), sample.row(x, y, 2)
            matrix[bottom : bottom + 4, top : top + 4] += hop
            matrix[top : top + 4, bottom : bottom + 4] += hop.conj().T
    np.testing.assert_allclose(np.linalg.eigvalsh(matrix), bulk_energies(sample), atol=1e-13)


def test_gershgorin_of_the_stencil_is_that_of_its_matrix():
    np.testing.assert_allclose(SAMPLE.bounds(), bounds.gershgorin(SAMPLE.matrix()), rtol=1e-14)


# ---- the three stages against dense eigenvalues


@pytest.mark.parametrize("num_vectors", [1, 3, 45])
@pytest.mark.parametrize("layout", ["csr", "sell", "sell_padded", "stencil"])
def test_moments_equal_chebyshev_polynomials_of_the_eigenvalues(layout, num_vectors):
    matrix = SAMPLE.matrix()
    a, b = scaled(matrix)
    operator = {
        "csr": lambda: CpuOperator.from_csr(matrix),
        "sell": lambda: sell_operator(matrix, 8),
        "sell_padded": lambda: sell_operator(matrix, 7),
        "stencil": lambda: CpuOperator.from_topological_insulator(SAMPLE),
    }[layout]()
    start = reference.random_phases(3, matrix.shape[0], num_vectors)
    etas = CpuRecursion(operator, a, b, operator.random_block(3, 0, num_vectors)).advance(30)
    exact = dense_moments(matrix, start, 60, a, b)
    np.testing.assert_allclose(reference.moments_from_etas(etas) / len(start), exact / len(start), atol=1e-12)
    np.testing.assert_array_equal(operator.to_block(start), operator.random_block(3, 0, num_vectors))


@pytest.mark.parametrize("stage", [stages.etas_naive, stages.etas_blocked])
def test_reference_stages_equal_the_eigenvalues(stage):
    matrix = SAMPLE.matrix()
    a, b = scaled(matrix)
    start = reference.random_phases(4, matrix.shape[0], 2)
    exact = dense_moments(matrix, start, 40, a, b)
    np.testing.assert_allclose(
        reference.moments_from_etas(stage(matrix, start, 40, a, b)), exact, atol=1e-12 * len(start)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("complex64", 3e-5), ("float64", 1e-12), ("float32", 3e-5)])
def test_other_types(dtype, tolerance):
    matrix = (SAMPLE.matrix() if dtype == "complex64" else anderson(5, disorder=2, rng=1)).astype(dtype)
    a, b = scaled(matrix)
    operator = CpuOperator.from_csr(matrix)
    etas = CpuRecursion(operator, a, b, operator.random_block(1, 0, 5)).advance(15)
    start = reference.random_phases(1, matrix.shape[0], 5, real=np.dtype(dtype).kind == "f")
    exact = dense_moments(matrix.astype(np.result_type(dtype, np.float64)), start, 30, a, b)
    np.testing.assert_allclose(reference.moments_from_etas(etas) / len(start), exact / len(start), atol=tolerance)


def test_moments_are_bitwise_the_same_on_any_number_of_threads():
    operator = CpuOperator.from_csr(TopologicalInsulator(16, 10, 8).matrix())
    runs = [
        CpuRecursion(operator, 0.15, 0.0, operator.random_block(1, 0, 4), threads).advance(6) for threads in (1, 2, 3)
    ]
    assert len(operator.blocks()) > 3
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


# ---- exact cases


def test_free_ring_has_the_exact_moments():
    # Energies −2 cos k: every site sees the same density.
    moments = ldos(chain(64, periodic=True), [5], 32, bounds=(-2 / 0.99, 2 / 0.99))
    a, b = bounds.scaling(moments.bounds)
    k = 2 * np.pi * np.arange(64) / 64
    exact = np.cos(np.arange(32)[:, None] * np.arccos(a * (-2 * np.cos(k) - b))).mean(axis=1)
    np.testing.assert_allclose(moments.moments[:, 0], exact, atol=1e-13)


def test_odd_moments_of_a_symmetric_spectrum_vanish():
    lattice = graphene(6, 5)
    curves = ldos(lattice, range(lattice.shape[0]), 40, bounds=(-3, 3))
    np.testing.assert_allclose(curves.moments.sum(axis=1)[1::2], 0, atol=1e-11)


def test_sum_rules():
    matrix = anderson(5, disorder=4, rng=2)
    exact = np.linalg.eigvalsh(matrix.toarray())
    curves = ldos(matrix, range(matrix.shape[0]), 64)
    np.testing.assert_allclose(curves.integrate(), 1, rtol=1e-12)
    # The kernel damps the first moment by g_1 and leaves it exact otherwise.
    _, b = bounds.scaling(curves.bounds)
    damping = reference.jackson_kernel(64)
    np.testing.assert_allclose(
        curves.integrate(lambda energy: energy).sum(),
        damping[1] * (exact.sum() - b * exact.size) + b * exact.size,
        atol=1e-9,
    )
    density = kpm_dos(matrix, 64, 4, rng=2, backend="cpu")
    assert density.integrate() == pytest.approx(matrix.shape[0], rel=1e-12)


def test_the_density_counts_eigenvalues_within_its_error_bars():
    matrix = TopologicalInsulator(6, 6, 4).matrix()
    density = kpm_dos(matrix, 200, 64, rng=7, backend="cpu")
    exact = np.linalg.eigvalsh(matrix.toarray())
    a, b = bounds.scaling(density.bounds)
    moments = np.cos(np.arange(200)[:, None] * np.arccos(a * (exact - b))).sum(axis=1) * reference.jackson_kernel(200)
    true = a * reference.chebyshev_density(moments, a * (density.energies - b))
    z = (density.densities - true)[40:-40] / density.errors[40:-40]
    assert np.mean(np.abs(z) < 2) > 0.8
    assert np.mean(np.abs(z) < 4) > 0.98


def test_spectral_function_of_the_ring_peaks_at_its_band():
    k = 2 * np.pi * np.arange(4) / 16
    curves = spectral_function(chain(16, periodic=True), k[:, None], np.arange(16.0), num_moments=256)
    np.testing.assert_allclose(curves.integrate(), 1, rtol=1e-12)
    np.testing.assert_allclose(curves.energies[curves.densities.argmax(axis=0)], -2 * np.cos(k), atol=0.02)


def exact_curves(matrix, states, num_moments, limits):
    """Return Σ_n |⟨state|n⟩|² T_m of each column of `states`."""
    return dense_moments(matrix, states, num_moments, *bounds.scaling(limits))


@pytest.mark.parametrize("capacity", [2**31, 3, 4, 10])
def test_local_and_momentum_resolved_moments_equal_the_eigenvectors(capacity, monkeypatch):
    monkeypatch.setattr(CpuEngine, "capacity", lambda self: capacity)
    matrix, limits = SAMPLE.matrix(), SAMPLE.bounds()
    rows = [0, 7, 100, 101, 239]
    local = ldos(SAMPLE, rows, 40, bounds=limits, backend="cpu")
    np.testing.assert_allclose(local.moments, exact_curves(matrix, np.eye(240)[:, rows], 40, limits), atol=1e-12)
    np.testing.assert_allclose(local.integrate(), 1, rtol=1e-12)

    site = np.arange(240) // 4
    positions = np.stack([site // 15, site // 3 % 5], axis=1)
    surface = (site % 3 == 0).astype(float)
    k = 2 * np.pi * np.array([[0, 0], [1 / 4, 2 / 5], [1 / 2, 1 / 5]])
    curves = spectral_function(SAMPLE, k, positions, np.arange(240) % 4, surface, 40, bounds=limits, backend="cpu")
    waves = np.exp(1j * positions @ k.T)[:, :, None] * (np.arange(240)[:, None, None] % 4 == np.arange(4))
    waves = waves * surface[:, None, None] / np.sqrt(20)
    expected = exact_curves(matrix, waves.reshape(240, 12), 40, limits).reshape(40, 3, 4).sum(axis=2)
    np.testing.assert_allclose(curves.moments, expected, atol=1e-12)
    np.testing.assert_allclose(curves.integrate(), 4, rtol=1e-12)


# ---- Kwant's properties


def test_adding_moments_equals_constructing_with_more_bitwise():
    less = SpectralDensity(SAMPLE, 30, 5, rng=11, backend="cpu", bounds=(-9, 9))
    less.add_moments(33)
    more = SpectralDensity(SAMPLE, 63, 5, rng=11, backend="cpu", bounds=(-9, 9))
    np.testing.assert_array_equal(less.moments, more.moments)
    np.testing.assert_array_equal(less.densities, more.densities)


def test_adding_vectors_equals_constructing_with_more():
    less = SpectralDensity(SAMPLE, 30, 3, rng=11, backend="cpu")
    less.add_vectors(4)
    more = SpectralDensity(SAMPLE, 30, 7, rng=11, backend="cpu")
    assert less.num_vectors == more.num_vectors == 7
    np.testing.assert_allclose(less.moments, more.moments, rtol=0, atol=1e-11)
    np.testing.assert_allclose(less.errors, more.errors, rtol=1e-8, atol=1e-9)


def test_call_equals_the_densities_and_vanishes_outside():
    density = kpm_dos(SAMPLE, 50, 3, rng=1, backend="cpu", kernel="lorentz")
    np.testing.assert_allclose(density(density.energies), density.densities, rtol=1e-9, atol=1e-9)
    assert density(density.bounds[1] + 1.0) == 0
    assert density(0.3).shape == () and density(np.zeros((2, 3))).shape == (2, 3) and density([]).shape == (0,)


def test_kernels_are_positive_and_normalised():
    for kernel in (reference.jackson_kernel, reference.lorentz_kernel):
        damping = kernel(64)
        assert damping[0] == pytest.approx(1)
        assert np.all(np.diff(damping) < 0)
    spike = np.cos(np.arange(64) * np.arccos(0.3)) * reference.jackson_kernel(64)
    assert reference.chebyshev_density(spike, np.linspace(-0.999, 0.999, 500)).min() > 0


def test_any_operator_with_a_product_is_taken():
    matrix = SAMPLE.matrix()

    class Operator:
        shape, dtype = matrix.shape, matrix.dtype

        def __matmul__(self, block):
            return matrix @ block

    by_matrix = kpm_dos(matrix, 40, 3, rng=1, backend="cpu", bounds=(-9, 9))
    for operator in (Operator(), aslinearoperator(matrix)):
        by_operator = kpm_dos(operator, 40, 3, rng=1, backend="cpu", bounds=(-9, 9))
        np.testing.assert_allclose(by_operator.moments, by_matrix.moments, atol=1e-10)
        assert kpm_dos(operator, 40, 3, rng=1, backend="cpu").integrate() == pytest.approx(240, rel=1e-12)

    class Wrong(Operator):
        def __matmul__(self, block):
            return block[:3]

    with pytest.raises(ValueError, match="H @ x has shape"):
        kpm_dos(Wrong(), 40, 3, backend="cpu")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128", "int32", "bool"])
def test_densities_in_every_type(dtype):
    matrix = (SAMPLE.matrix() if dtype.startswith("complex") else abs(graphene(6, 5))).astype(dtype)
    single = dtype in ("float32", "complex64")
    density, local = kpm_dos(matrix, 60, 3, rng=1, backend="cpu"), ldos(matrix, [3, 8], 60, backend="cpu")
    double = matrix.astype(np.result_type(dtype, np.float64))
    exact = kpm_dos(double, 60, 3, rng=1, backend="cpu", bounds=density.bounds)
    size = matrix.shape[0]
    np.testing.assert_allclose(density.moments / size, exact.moments / size, atol=1e-5 if single else 1e-13)
    np.testing.assert_allclose(local.integrate(), 1, atol=1e-6)


def test_other_layouts_of_a_matrix_give_the_same_and_stay_as_they_are():
    matrix = SAMPLE.matrix()
    by_matrix = kpm_dos(matrix, 40, 3, rng=1, backend="cpu", bounds=(-9, 9)).moments
    wide, coordinates = matrix.copy(), matrix.tocoo()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    order = np.lexsort([-matrix.indices, coordinates.row])
    descending = sp.csr_array((matrix.data[order], matrix.indices[order], matrix.indptr), matrix.shape)
    split = sp.csr_array((np.repeat(matrix.data / 2, 2), np.repeat(matrix.indices, 2), 2 * matrix.indptr), matrix.shape)
    for other in (wide, descending, split, coordinates, matrix.tocsc(), sp.bsr_array(matrix), matrix.toarray()):
        held = [name for name in ("data", "indices", "indptr") if isinstance(getattr(other, name, None), np.ndarray)]
        before = [getattr(other, name).copy() for name in held]
        density = kpm_dos(other, 40, 3, rng=1, backend="cpu", bounds=(-9, 9))
        np.testing.assert_allclose(density.moments, by_matrix, atol=1e-11)
        assert all(np.array_equal(getattr(other, name), old) for name, old in zip(held, before, strict=True))


# ---- bounds


def test_lanczos_and_gershgorin_hold_the_spectrum():
    for matrix in (SAMPLE.matrix(), graphene(5, 4), anderson(5, disorder=4, rng=3)):
        exact = np.linalg.eigvalsh(matrix.toarray())
        low, high = bounds.gershgorin(matrix)
        assert low <= exact[0] + 1e-12 and exact[-1] <= high + 1e-12  # eigenvalues are rounded
        density = SpectralDensity(matrix, 20, 1, rng=0, backend="cpu")
        assert density.bounds[0] <= exact[0] + 1e-9 and exact[-1] <= density.bounds[1] + 1e-9
        assert density.bounds[1] - density.bounds[0] < 1.1 * (exact[-1] - exact[0])


@pytest.mark.parametrize("num_rows", [1, 100, 2 * 10**6, 10**9, 10**12])
def test_lanczos_steps_show_what_lies_beyond_the_margin(num_rows):
    steps = bounds.lanczos_steps(num_rows)
    assert np.polynomial.chebyshev.Chebyshev.basis(steps)(1.014) >= np.sqrt(num_rows)
    assert 48 <= steps <= 90


@pytest.mark.parametrize("beyond", [0.002, 0.005, 0.01, 0.015, 0.03])
@pytest.mark.parametrize("cluster", [1, 20])
def test_a_few_states_beyond_the_edge_of_a_band_are_inside(beyond, cluster):
    band = sp.diags_array([np.ones(9999), np.ones(9999)], offsets=[-1, 1])  # from −2 to 2
    states = (2 + 2 * beyond) * np.linspace(0.9995, 1, cluster)
    matrix = sp.block_diag([band, sp.diags_array(states)]).tocsr()
    low, high = bounds.given_or_found(make_engine(matrix, "cpu"), None)
    assert abs(bounds.scaling((low, high))[0] * (states[-1] - (low + high) / 2)) <= 1
    assert high <= 2 + 2 * max(beyond, 0.005) + 0.02


def test_bounds_of_our_own_are_widened_when_the_spectrum_leaves_them(monkeypatch):
    monkeypatch.setattr(bounds, "lanczos", lambda *args, **kwargs: (-3.0, 3.0))
    density = SpectralDensity(SAMPLE, 200, 2, rng=0, backend="cpu")
    exact = np.linalg.eigvalsh(SAMPLE.matrix().toarray())
    assert density.bounds[0] < exact[0] and exact[-1] < density.bounds[1]
    assert density.integrate() == pytest.approx(SAMPLE.shape[0], rel=1e-12)


def test_one_energy_only():
    density = kpm_dos(2.5 * sp.eye_array(12), 16, 2, rng=0, backend="cpu")
    assert density.integrate(lambda energy: energy) == pytest.approx(12 * 2.5, rel=1e-3)


@pytest.mark.parametrize("matrix", [[[0, 1], [1, 0]], np.ones((6, 6)), np.kron(np.eye(3), [[0, 1], [1, 0]])])
def test_matrices_whose_states_are_as_symmetric_as_a_start_vector(matrix):
    density = kpm_dos(matrix, 20, 3, rng=1, backend="cpu")
    exact = np.linalg.eigvalsh(matrix)
    assert density.bounds[0] <= exact[0] + 1e-9 and exact[-1] <= density.bounds[1] + 1e-9
    assert density.integrate() == pytest.approx(len(exact), rel=1e-12)


def test_bounds_without_width_are_widened(monkeypatch):
    monkeypatch.setattr(bounds, "lanczos", lambda *args, **kwargs: (1.0, 1.0))
    density = kpm_dos(SAMPLE, 20, 2, rng=0, backend="cpu")
    assert density.integrate() == pytest.approx(SAMPLE.shape[0], rel=1e-12)
    exact = np.linalg.eigvalsh(SAMPLE.matrix().toarray())
    assert density.bounds[0] <= exact[0] and exact[-1] <= density.bounds[1]


# ---- checkpoints


def test_resume_is_bitwise(tmp_path):
    whole = SpectralDensity(SAMPLE, 120, 6, rng=5, backend="cpu")
    part = SpectralDensity(SAMPLE, 50, 6, rng=5, backend="cpu")
    part.save(tmp_path / "state.npz")
    resumed = SpectralDensity.load(tmp_path / "state.npz", SAMPLE, backend="cpu")
    np.testing.assert_array_equal(resumed.densities, part.densities)
    resumed.add_moments(70)
    np.testing.assert_array_equal(resumed.moments, whole.moments)
    with pytest.raises(ValueError, match="another matrix"):
        SpectralDensity.load(tmp_path / "state.npz", graphene(4, 4), backend="cpu")


def test_checkpoint_goes_on_after_an_interruption(tmp_path, monkeypatch):
    path = tmp_path / "dos.npz"
    whole = kpm_dos(SAMPLE, 700, 2, rng=5, backend="cpu", checkpoint=path)
    assert not path.exists()
    calls = []
    add_moments = SpectralDensity.add_moments

    def interrupted(self, num_moments):
        calls.append(num_moments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        add_moments(self, num_moments)

    monkeypatch.setattr(SpectralDensity, "add_moments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kpm_dos(SAMPLE, 700, 2, rng=5, backend="cpu", checkpoint=path, checkpoint_s=0)
    assert path.exists()
    again = kpm_dos(SAMPLE, 700, 2, rng=None, backend="cpu", checkpoint=path)
    np.testing.assert_array_equal(again.moments, whole.moments)


def test_a_file_that_is_no_state_or_another_calls_is_refused(tmp_path):
    path = tmp_path / "dos.npz"
    arguments = {"H": SAMPLE, "num_moments": 64, "num_vectors": 2, "rng": 1, "backend": "cpu", "checkpoint": path}
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="no saved density, or not all"):
        kpm_dos(**arguments)
    np.savez(path, energies=np.zeros(3))
    with pytest.raises(ValueError, match="no saved density: give"):
        kpm_dos(**arguments)
    SpectralDensity(SAMPLE, 32, 2, rng=1, backend="cpu").save(path)
    path.write_bytes((whole := path.read_bytes())[: len(whole) // 2])
    with pytest.raises(ValueError, match="no saved density, or not all"):
        kpm_dos(**arguments)
    path.write_bytes(whole)
    for other in ({"num_vectors": 3}, {"kernel": "lorentz"}, {"num_moments": 30}):
        with pytest.raises(ValueError, match="32 moments of 2 vectors"):
            kpm_dos(**arguments | other)
    with pytest.raises(ValueError, match="bounds"):
        kpm_dos(**arguments, bounds=(-20, 20))
    assert path.read_bytes() == whole
    assert kpm_dos(**arguments).num_moments == 64 and not path.exists()


# ---- bad input


@pytest.mark.parametrize(
    ("H", "arguments", "error", "words"),
    [
        (sp.csr_array(np.triu(np.ones((8, 8)))), {}, ValueError, "not Hermitian"),
        (sp.csr_array(1j * np.eye(8)), {}, ValueError, "not Hermitian"),
        (sp.csr_array(np.full((8, 8), np.nan)), {}, ValueError, "NaN"),
        (sp.csr_array(np.ones((8, 7))), {}, ValueError, "square"),
        (np.array([["a"]]), {}, TypeError, "dtype"),
        (np.eye(4, dtype=np.longdouble), {}, TypeError, "dtype"),
        (object(), {}, TypeError, "sparse matrix"),
        (SAMPLE, {"num_moments": 1}, ValueError, "num_moments = 1"),
        (SAMPLE, {"num_moments": 10.5}, ValueError, "num_moments"),
        (SAMPLE, {"num_vectors": 0}, ValueError, "num_vectors = 0"),
        (SAMPLE, {"num_vectors": float("nan")}, ValueError, "num_vectors = nan"),
        (SAMPLE, {"num_moments": float("inf")}, ValueError, "num_moments = inf"),
        (SAMPLE, {"num_moments": "many"}, ValueError, "num_moments = .many."),
        (SAMPLE, {"num_vectors": True}, ValueError, "num_vectors = True"),
        (SAMPLE, {"kernel": "fejer"}, ValueError, "jackson"),
        (SAMPLE, {"bounds": (1, -1)}, ValueError, "bounds"),
        (SAMPLE, {"bounds": (1,)}, ValueError, "no two energies"),
        (SAMPLE, {"bounds": 5}, ValueError, "no two energies"),
        (SAMPLE, {"bounds": (-2, 2)}, ValueError, "leaves the given bounds"),
        (SAMPLE, {"backend": "tpu"}, ValueError, "backend"),
    ],
)
def test_bad_input_is_worded(H, arguments, error, words):
    arguments = {"num_moments": 64, "num_vectors": 2, "backend": "cpu"} | arguments
    with pytest.raises(error, match=words):
        kpm_dos(H, **arguments)


def test_bad_input_of_the_other_functions_is_worded():
    with pytest.raises(ValueError, match="rows"):
        ldos(SAMPLE, [SAMPLE.shape[0]], 16, backend="cpu")
    with pytest.raises(ValueError, match="whole numbers"):
        ldos(SAMPLE, [1.5], 16, backend="cpu")
    with pytest.raises(ValueError, match="positions"):
        spectral_function(SAMPLE, [[0.0, 0.0]], np.zeros((3, 2)), num_moments=16, backend="cpu")
    with pytest.raises(ValueError, match="finite"):
        spectral_function(chain(8), [[np.nan]], np.arange(8.0), num_moments=16, backend="cpu")
    density = kpm_dos(SAMPLE, 16, 2, rng=1, backend="cpu")
    with pytest.raises(ValueError, match="one value for each"):
        density.integrate(lambda energy: energy[:3])
    for add in (density.add_moments, density.add_vectors):
        for count in (0, 1.5, "many"):
            with pytest.raises(ValueError, match=f"= .?{count}.? is invalid.*at least 1"):
                add(count)
    with pytest.raises(ValueError, match="too small"):
        TopologicalInsulator(2, 5, 5)


def test_more_vectors_than_fit_are_done_in_passes(monkeypatch):
    whole = SpectralDensity(SAMPLE, 40, 7, rng=11, backend="cpu")
    monkeypatch.setattr(CpuEngine, "capacity", lambda engine: 3)
    passes = SpectralDensity(SAMPLE, 40, 7, rng=11, backend="cpu")
    np.testing.assert_allclose(passes.moments, whole.moments, rtol=0, atol=1e-11)
    assert sum(block is not None for block in passes._blocks) == 1
    with pytest.raises(ValueError, match="dropped"):
        passes.add_moments(10)
    with pytest.raises(ValueError, match="dropped"):
        passes.save("nowhere")


def test_row_blocks_follow_patches_through_the_planes():
    sample = TopologicalInsulator(5, 24, 23)
    operators = (CpuOperator.from_csr(sample.matrix()), CpuOperator.from_topological_insulator(sample))
    for operator in operators:
        blocks = operator.blocks()
        assert operator.plane_rows == 4 * 24 * 23
        assert blocks[0][1] == blocks[1][0] - operator.plane_rows + blocks[0][1] - blocks[0][0]
        np.testing.assert_array_equal(
            np.sort(np.concatenate([np.arange(*block) for block in blocks])), np.arange(11040)
        )
    start = reference.random_phases(3, sample.shape[0], 5)
    expected = stages.etas_blocked(sample.matrix(), start, 12, 0.11, 0.05)
    for operator in operators:
        found = [CpuRecursion(operator, 0.11, 0.05, operator.to_block(start), threads).advance(6) for threads in (1, 2)]
        np.testing.assert_array_equal(*found)
        np.testing.assert_allclose(found[0], expected, atol=1e-9)
