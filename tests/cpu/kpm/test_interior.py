"""Numbers of states in an interval and all pairs inside it against dense eigenvalues."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile.kpm import count, filter_diagonalize, functions, interior
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from tests.hamiltonians import haldane

REAL = anderson(6, disorder=6, rng=1)
FORMS = {
    "real": (REAL, (0.4, 0.9)),
    "operator": (aslinearoperator(REAL), (0.4, 0.9)),
    "degenerate": (graphene(9, 9), (0.9, 1.2)),
    "complex": (haldane(9, mass=0.3)[0], (1.2, 1.5)),
    "stencil": (TopologicalInsulator(4, 4, 5), (0.9, 1.2)),
    "at the end": (REAL, (-50.0, -5.0)),
}


def dense(H):
    if isinstance(H, TopologicalInsulator):
        H = H.matrix()
    return H.toarray() if hasattr(H, "toarray") else H @ np.eye(H.shape[0])


@pytest.mark.parametrize("form", FORMS)
def test_all_pairs_of_an_interval(form):
    H, (low, high) = FORMS[form]
    energies = np.linalg.eigvalsh(dense(H))
    exact = energies[(energies >= low) & (energies <= high)]
    pairs = filter_diagonalize(H, (low, high), rng=2, backend="cpu")
    assert len(exact) > 3
    np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-9)
    image = dense(H) @ pairs.eigenvectors
    residuals = np.linalg.norm(image - pairs.eigenvectors * pairs.eigenvalues, axis=0)
    np.testing.assert_allclose(residuals, pairs.residuals, atol=1e-12)
    assert pairs.residuals.max() < 1e-10 * (energies[-1] - energies[0])
    np.testing.assert_allclose(pairs.eigenvectors.conj().T @ pairs.eigenvectors, np.eye(len(exact)), atol=1e-10)
    assert abs(pairs.estimate.value - len(exact)) <= 4 * pairs.estimate.error + 1


#: Few rows, levels that coincide, and eigenvectors to which vectors of signs are orthogonal or among which they are.
FEW = {
    "swaps": np.kron(np.diag([-2, 1, 1]), [[0, 1], [1, 0]]),
    "levels": np.diag([0, 0, 3]),
    "ring": np.roll(np.eye(3), 1, 0) + np.roll(np.eye(3), -1, 0),
    "hadamard": np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]),
    "projector": np.ones((4, 4)),
    "path": np.eye(13, k=1) + np.eye(13, k=-1),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FEW)
def test_few_rows_have_all_their_pairs_whatever_the_seed(form, dtype):
    H = FEW[form].astype(dtype)
    energies = np.linalg.eigvalsh(FEW[form])
    for seed in range(4):
        for interval in ((-9.0, 9.0), (-2.2, 0.5)):
            exact = energies[(energies >= interval[0]) & (energies <= interval[1])]
            pairs = filter_diagonalize(H, interval, rng=seed, backend="cpu")
            np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-4)
            gram = pairs.eigenvectors.conj().T @ pairs.eigenvectors
            np.testing.assert_allclose(gram, np.eye(len(exact)), atol=1e-4)


def test_the_error_of_a_count_holds_half_the_states_of_the_resolution_at_either_end():
    energies = np.linspace(-1, 1, 2001)  # a thousand in a unit; every vector has one of each
    found = count(sp.diags_array(energies), (-0.5, 0.5), bounds=(-1.1, 1.1), num_moments=256, rng=1, backend="cpu")
    resolution = np.pi / 256 * np.sqrt(1.1**2 - 0.5**2)
    assert found.error == pytest.approx(np.sqrt(2) * 1000 * resolution / 2, rel=0.05)
    assert abs(found.value - 1001) < found.error


@pytest.mark.parametrize("num_moments", [64, 256, 1024])
@pytest.mark.parametrize("interval", [(-0.2, 0.2), (-0.1, 0.25), (0.05, 0.06), (-0.5, 0.1), (-0.7, 0.7)])
def test_a_count_is_within_its_error_in_a_gap_and_in_bands(interval, num_moments):
    """In a gap the window's tail counts states of both bands, and the vectors do not differ."""
    rng = np.random.default_rng(1)
    energies = np.concatenate([rng.uniform(-1, -0.3, 3000), rng.uniform(0.3, 1, 3000)])
    exact = int(((energies > interval[0]) & (energies < interval[1])).sum())
    options = {"bounds": (-1.05, 1.05), "num_moments": num_moments, "rng": 1, "backend": "cpu"}
    found = count(sp.diags_array(energies), interval, **options)
    assert abs(found.value - exact) < 1.5 * found.error
    assert found.error < (20_000 / num_moments if exact else 2e5 / num_moments**2)


def test_too_few_vectors_become_more_and_an_empty_interval_has_none():
    energies = np.linalg.eigvalsh(REAL.toarray())
    exact = energies[(energies >= 0.4) & (energies <= 0.9)]
    pairs = filter_diagonalize(REAL, (0.4, 0.9), num_states=5, rng=3, backend="cpu")
    np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-9)
    gap = haldane(6)[0]
    for interval in ((-0.5, 0.5), (1e8, 1e8 + 1), (-1e300, -1e299)):
        none = filter_diagonalize(gap, interval, rng=1, backend="cpu")
        assert none.eigenvalues.shape == none.residuals.shape == (0,) and none.eigenvectors.shape == (72, 0)
        assert abs(none.estimate.value) < 1e-3


@pytest.mark.parametrize(
    ("width", "beyond"), [(1e-2, 1e3), (1e-6, 1e9), (1e-2, 1e300), (1e-12, 0.0), (1e-6, 0.0)], ids=str
)
def test_intervals_as_narrow_and_as_far_beyond_the_spectrum_as_one_likes(width, beyond):
    a = np.random.default_rng(6).standard_normal((30, 30))
    energies = np.linalg.eigvalsh(a + a.T)
    for level in (0, 29) if beyond else (14,):
        low, high = energies[level] - width, energies[level] + width
        low, high = (low - beyond, high) if level == 0 else (low, high + beyond)
        pairs = filter_diagonalize(a + a.T, (low, high), rng=1, backend="cpu")
        np.testing.assert_allclose(pairs.eigenvalues, energies[level : level + 1], atol=1e-9)


def test_levels_at_an_end_and_units_of_any_size():
    for H, interval, states in ((sp.eye_array(30), (0, 1), 30), (sp.csr_array((30, 30)), (0, 1), 30)):
        assert len(filter_diagonalize(H, interval, rng=1, backend="cpu").eigenvalues) == states
    H = np.diag(np.arange(12.0))
    for unit in (1e-300, 1e300):
        found = filter_diagonalize(unit * H, (2.5 * unit, 4.5 * unit), rng=1, backend="cpu").eigenvalues
        np.testing.assert_allclose(found / unit, [3, 4])
        assert len(filter_diagonalize(unit * H, (0, 1), rng=1, backend="cpu").eigenvalues) == (12 if unit < 1 else 1)


@pytest.mark.parametrize("num_moments", [10, 60, 300])
def test_fewer_moments_than_separate_states_lose_none(num_moments):
    """They take more sweeps, or it is said that a state is missing."""
    for seed in range(3):
        a = np.random.default_rng(seed).standard_normal((60, 60))
        energies = np.linalg.eigvalsh(a + a.T)
        for first, states in ((30, 1), (20, 3), (29, 0)):
            # From the gap below a state to the gap above the last one; of no state, the inside of a gap.
            low, high = energies[first - 1 : first + 1] @ [0.6, 0.4], energies[first + states - 1 :][:2] @ [0.4, 0.6]
            try:
                found = filter_diagonalize(a + a.T, (low, high), num_moments=num_moments, rng=seed, backend="cpu")
            except RuntimeError as error:
                assert "are expected: give" in str(error) and num_moments < 300
            else:
                np.testing.assert_allclose(found.eigenvalues, energies[first : first + states], atol=1e-7)


def test_levels_at_an_end_far_from_zero_in_single_precision_and_all_alike():
    # Half of the copies of a level at an end are computed below it.
    levels = sp.diags_array(np.repeat([0.0, 1.0], 50))
    assert filter_diagonalize(levels, (1.0, 1.1), rng=1, backend="cpu").eigenvalues.size == 50
    ring = chain(300)
    near = filter_diagonalize(ring, (0.0, 0.05), rng=1, backend="cpu").eigenvalues
    far = filter_diagonalize(ring + 1e7 * sp.eye_array(300), (1e7, 1e7 + 0.05), rng=1, backend="cpu").eigenvalues
    np.testing.assert_allclose(far - 1e7, near, atol=4e-9)
    single = filter_diagonalize(ring.astype(np.float32), (0.0, 0.05), rng=1, backend="cpu")
    np.testing.assert_allclose(single.eigenvalues, near, atol=1e-5)
    alike = filter_diagonalize(2.5 * sp.eye_array(5), (2.0, 3.0), rng=1, backend="cpu")
    np.testing.assert_allclose(alike.eigenvalues, np.full(5, 2.5), rtol=1e-14)


@pytest.mark.parametrize(("dtype", "shift"), [(float, 1e3), (float, -1e6), (float, 1e8), ("complex64", 1e3)], ids=str)
def test_states_at_the_ends_of_spectra_far_from_zero_are_found(dtype, shift):
    """Bounds that are found end where the spectrum does, to H's rounding, and residuals are no less than that."""
    star, random = np.eye(40)[:1], np.random.default_rng(8).standard_normal((40, 40))
    for a in (star + star.T, np.roll(np.eye(5), 1, 0) + np.roll(np.eye(5), -1, 0), random + random.T):
        H = (a + shift * np.eye(len(a))).astype(dtype)
        exact = np.linalg.eigvalsh(H.astype(complex))
        middle, atol = exact[len(a) // 2] + 0.1, 64 * np.finfo(dtype).eps * abs(shift)
        for low, high in ((exact[0] - 1, middle), (middle, exact[-1] + 1)):
            found = filter_diagonalize(H, (low, high), rng=1, backend="cpu").eigenvalues
            np.testing.assert_allclose(found, exact[(exact > low) & (exact < high)], rtol=0, atol=atol + 1e-9)


def test_vectors_are_filtered_and_diagonalized_where_they_are(monkeypatch):
    """So that room for them and for parts of them is enough."""
    rows, inside = 6_000, 60
    levels = np.concatenate([np.linspace(-1, 0.4, rows - inside), np.linspace(1.0, 1.01, inside)])
    for module, name in ((interior, "columns_at_once"), (functions, "columns_at_once")):
        monkeypatch.setattr(module, name, lambda engine, states: 4)
    monkeypatch.setattr(interior, "TOGETHER", 1 << 20)
    H = sp.diags_array(levels).tocsr()

    def found():
        return filter_diagonalize(H, (0.7, 1.1), bounds=(-1.01, 1.1), num_states=160, rng=1, backend="cpu")

    found()  # compiles
    tracemalloc.start()
    try:
        pairs = found()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(pairs.eigenvalues, levels[-inside:], atol=1e-9)
    assert peak < interior.ARRAYS * 8 * rows * 160


def test_a_second_sweep_leaves_what_is_surely_beyond_the_interval_as_it_is(monkeypatch):
    filtered, sums = [], interior.column_sums

    def noted(engine, vectors, weights, bounds, run, width, chosen):
        filtered.append((len(chosen), vectors.shape[1]))
        return sums(engine, vectors, weights, bounds, run, width, chosen)

    monkeypatch.setattr(interior, "column_sums", noted)
    levels = np.linspace(-1, 1, 1202)
    exact = levels[abs(levels - 0.3) < 0.0503]
    pairs = filter_diagonalize(sp.diags_array(levels), (0.2497, 0.3503), rng=1, backend="cpu")
    np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-9)
    (first, columns), *later = filtered
    assert first == columns and later and all(some < 2 * len(exact) < columns for some, columns in later)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_states", [None, 70])
def test_an_interval_that_a_dense_band_begins_in_misses_no_state(dtype, num_states):
    # A filter that reaches a little farther than the interval reaches all of the band.
    levels = np.append(-6.2, np.linspace(-0.5, 0.5, 149))
    mixed = np.linalg.qr(np.random.default_rng(9).standard_normal((150, 150)))[0]
    H, exact = ((mixed * levels) @ mixed.T).astype(dtype), levels[(levels > -5.6) & (levels < -0.085)]
    for seed in range(6):
        pairs = filter_diagonalize(H, (-5.6, -0.085), num_states=num_states, rng=seed, backend="cpu")
        np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-8 if dtype == "float64" else 1e-4)


def test_vectors_are_as_many_as_take_the_fewest_products_and_fit():
    levels = np.linspace(-1, 1, 20_000)
    engine = make_engine(sp.diags_array(levels).tocsr(), "cpu")
    with interior.Progress("count", shown=False) as counted:
        density = interior.SpectralDensity.of_engine(engine, 4096, 16, 1, (-1.0, 1.0), fixed=True, progress=counted)
    ends = 0.30005, 0.30505  # fifty states
    estimate = interior._counted(density, *ends)
    found = [interior._width(density, ends, estimate, None, most, 16.0) for most in (0, 150, 300, 20_000)]
    states, reach = np.array(found).T
    assert (np.diff(states) > 0).all() and (np.diff(reach) > 0).all() and (states[1:3] <= (150, 300)).all()
    assert states[0] > 50 and states[3] < 2000
    # Within the reach there are fewer states than vectors.
    assert all(20_000 * width < some for some, width in found)
    wanted = interior._width(density, ends, estimate, 150, 20_000, 16.0)
    assert wanted[0] == 150 and wanted[1] == reach[1]


def test_a_basis_of_vectors_that_are_nearly_dependent_or_not_there():
    rng = np.random.default_rng(4)
    for dtype, tolerance in ((np.float32, 1e-5), (np.complex128, 1e-13)):
        wide = rng.standard_normal((500, 9)) + (1j * rng.standard_normal((500, 9)) if dtype == np.complex128 else 0)
        held = (wide * np.geomspace(1, 1e-6, 9)) @ rng.standard_normal((9, 9))  # what a filter leaves
        given = np.concatenate([held, held[:, :3], np.zeros((500, 2))], axis=1).astype(dtype)
        basis = interior._orthonormal(given.copy(), np)
        assert basis.dtype == dtype and 9 <= basis.shape[1] <= 14
        np.testing.assert_allclose(basis.conj().T @ basis, np.eye(basis.shape[1]), atol=tolerance)
        left = wide - basis @ (basis.conj().T @ wide)
        assert np.linalg.norm(left[:, 0]) < 10 * tolerance * np.linalg.norm(wide[:, 0])


@pytest.mark.parametrize("interval", [(-2.0, 0.1), (0.0, 5.0), (-100.0, 100.0), (2.5, 2.6), (20.0, 30.0)])
def test_counts_are_right_within_their_errors(interval):
    energies = np.linalg.eigvalsh(REAL.toarray())
    exact = np.sum((energies >= interval[0]) & (energies <= interval[1]))
    for seed in range(3):
        found = count(REAL, interval, num_moments=256, num_vectors=8, rng=seed, backend="cpu")
        assert abs(found.value - exact) <= 4 * found.error
        assert found.error < 16


def test_bounds_far_wider_than_the_spectrum_are_told(recwarn):
    """The filter's degree grows with their width; the pairs are the same."""
    energies = np.linspace(-1, 1, 60)
    H, options = sp.diags_array(energies), {"rng": 1, "backend": "cpu"}
    near = filter_diagonalize(H, (0.0, 0.2), bounds=(-1.1, 1.5), **options)
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match=r"bounds=\(-50.0, 50.0\) are 50 times as wide"):
        far = filter_diagonalize(H, (0.0, 0.2), bounds=(-50.0, 50.0), **options)
    np.testing.assert_allclose(far.eigenvalues, near.eigenvalues, atol=1e-8)


def test_bad_input_is_one_sentence(monkeypatch):
    for interval, message in (((1.0, 0.0), "is empty"), (3, "no two energies"), ((np.nan, 1), "is empty")):
        for function in (count, filter_diagonalize):
            with pytest.raises(ValueError, match=message):
                function(REAL, interval, backend="cpu")
    with pytest.raises(ValueError, match="leaves the given bounds"):
        filter_diagonalize(REAL, (0.0, 0.5), bounds=(-1, 1), backend="cpu")
    with pytest.raises(ValueError, match="tolerance = 0"):
        filter_diagonalize(REAL, (0.0, 0.5), tolerance=0, backend="cpu")
    with pytest.raises(RuntimeError, match="are expected"):
        filter_diagonalize(REAL, (0.0, 0.5), tolerance=1e-30, rng=1, num_moments=40, backend="cpu")
    monkeypatch.setattr(CpuEngine, "capacity", lambda engine: 8)
    with pytest.raises(MemoryError, match="take a narrower interval"):
        filter_diagonalize(REAL, (0.0, 0.5), rng=1, backend="cpu")
