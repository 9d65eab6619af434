"""Energies: narrow bands far from zero, every unit, the scale and centre of moments, bounds of hard matrices."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from spectile import kpm
from spectile.kpm import SpectralDensity, bounds, kpm_dos, ldos, reference
from spectile.kpm.curves import SpectralCurves
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator


def exact_moments(energies, states, start, num_moments, scale, centre):
    """Return ⟨start|T_m((H − centre) / scale)|start⟩ from eigenvalues and eigenvectors, shape (M, R)."""
    x = (energies - centre) / scale
    assert np.abs(x).max() <= 1
    return np.cos(np.arange(num_moments)[:, None] * np.arccos(x)[None, :]) @ (np.abs(states.conj().T @ start) ** 2)


# ---- narrow bands far from zero

SAMPLE = TopologicalInsulator(4, 5, 3, potential=np.random.default_rng(1).integers(-8, 8, (4, 5, 3)) / 16)
FAR_AWAY = {
    "patterns": (lambda: graphene(6, 5), 1e7, "float64", 1e-12),
    "entries": (lambda: rounded(anderson(5, disorder=3, rng=1)), 2.0**23, "float64", 1e-12),
    "complex": (lambda: SAMPLE.matrix(), -1e7, "complex128", 1e-12),
    "float32": (lambda: graphene(6, 5), 1e3, "float32", 1e-5),
    "complex64": (lambda: SAMPLE.matrix(), 1e3, "complex64", 1e-5),
}  # fmt: skip


def rounded(matrix):
    """Return a matrix whose entries are still exact far from zero."""
    matrix.data = np.round(matrix.data * 1024) / 1024
    return matrix


@pytest.mark.parametrize("kind", FAR_AWAY)
@pytest.mark.parametrize("sparse", [sp.csr_array, sp.coo_array, sp.csc_matrix])
def test_a_band_far_from_zero_has_the_moments_of_the_band(kind, sparse):
    make, offset, dtype, tolerance = FAR_AWAY[kind]
    band = make().astype(dtype)
    moved = sparse(band + offset * sp.eye_array(band.shape[0], dtype=dtype))
    density = kpm_dos(moved, 600, 3, rng=4, backend="cpu")
    energies, states = np.linalg.eigh(band.toarray().astype(np.result_type(dtype, np.float64)))
    assert density.scale < 0.56 * (energies[-1] - energies[0])
    seed = int(np.random.default_rng(4).integers(2**62))
    start = reference.random_phases(seed, len(energies), 3, real=np.dtype(dtype).kind != "c")
    exact = exact_moments(energies, states, start, 600, density.scale, density.centre - offset).mean(axis=1)
    # Errors grow with the number of the moment, not with the distance from zero.
    error = np.abs(density.moments - exact) / len(energies) / (1 + np.arange(600))
    assert error.max() < tolerance
    low, high = energies[0] + offset, energies[-1] + offset
    given = kpm_dos(moved, 600, 3, rng=4, backend="cpu", bounds=(low - 0.1, high + 0.1))
    assert given.scale == pytest.approx((high - low + 0.2) / 2 / 0.99) and given.bounds == (low - 0.1, high + 0.1)
    local = ldos(moved, [1], 100, backend="cpu")
    exact = exact_moments(energies, states, np.eye(len(energies))[:, 1:2], 100, local.scale, local.centre - offset)
    assert np.abs(local.moments - exact).max() < 100 * tolerance


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_operator_far_from_zero_keeps_its_resolution(dtype):
    offset, band = (1e7 if dtype == "float64" else 1e3) + 1 / 3, graphene(6, 5)
    moved = (band + offset * sp.eye_array(60)).astype(dtype)
    density = kpm_dos(aslinearoperator(moved), 200, 3, rng=4)
    assert density.scale < 3.2
    stored = kpm_dos(moved, 200, 3, rng=4, backend="cpu", bounds=density.bounds)
    # What is left of the product is its rounding, which no step can mend: 200 moments of some ε of the offset each.
    noise = 200 * float(np.finfo(dtype).eps) * offset
    assert np.abs(density.moments - stored.moments).max() / 60 < noise


def test_a_sample_far_from_zero_has_the_moments_of_the_band():
    moved = TopologicalInsulator(4, 5, 3, SAMPLE.potential + 1e7)
    density = kpm_dos(moved, 300, 3, rng=4, backend="cpu")
    low, high = density.bounds
    band = kpm_dos(SAMPLE, 300, 3, rng=4, backend="cpu", bounds=(low - 1e7, high - 1e7))
    assert density.scale < 10
    # The centre between two bounds is known to a rounding of 1e7, and each moment m moves by m of them.
    shift = 300 * np.spacing(1e7) / density.scale
    np.testing.assert_allclose(density.moments, band.moments, rtol=0, atol=shift * SAMPLE.shape[0])


@pytest.mark.parametrize("kind", ["stored", "operator"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [-1e3, 1e3])
def test_bounds_are_as_narrow_as_rounding_allows(dtype, offset, kind):
    eps = float(np.finfo(dtype).eps)
    matrix = (offset * sp.eye_array(20)).astype(dtype).tocsr()
    # A stored matrix is held without the middle of its spectrum, and energies are numbers of float64.
    finest = float(np.finfo(np.float64).eps) if kind == "stored" else eps
    matrix = matrix if kind == "stored" else aslinearoperator(matrix)
    for given_bounds in (None, (offset, offset)):
        density = kpm_dos(matrix, 16, 2, rng=1, backend="cpu", bounds=given_bounds)
        low, high = density.bounds
        assert low < offset < high and 1000 * finest * abs(offset) < high - low < 20_000 * finest * abs(offset)
    wider = 1e5 * eps * abs(offset)
    density = kpm_dos(matrix, 16, 2, rng=1, backend="cpu", bounds=(offset - wider, offset + wider))
    assert density.bounds == (offset - wider, offset + wider)
    assert density.scale == pytest.approx(wider / 0.99, rel=1e-6)


def test_bounds_that_prove_too_narrow_far_from_zero_stay_narrow(monkeypatch):
    monkeypatch.setattr(bounds, "lanczos", lambda engine: (1e7 - 2.9, 1e7 + 2.9))
    moved = (graphene(6, 5) + 1e7 * sp.eye_array(60)).tocsr()
    for H in (moved, aslinearoperator(moved)):
        density = kpm_dos(H, 200, 3, rng=4, backend="cpu")
        assert density.bounds[0] <= 1e7 - 3 and density.bounds[1] >= 1e7 + 3 and density.scale < 4


SITES = 48
POSITIONS = np.arange(float(SITES))
BLOCK = np.random.default_rng(2).normal(size=(SITES, 2)).astype("float32")
HERE = {"backend": "cpu", "progress": False}


def open_chain(dtype):
    """Return a chain whose entries are exact at any distance from zero, and its velocity."""
    hop = -np.exp(0.3j) if np.dtype(dtype).kind == "c" else -1.0
    band = sp.diags_array([[hop] * (SITES - 1), [np.conj(hop)] * (SITES - 1)], offsets=[1, -1], dtype=complex)
    band = (band if np.dtype(dtype).kind == "c" else band.real).astype(dtype).tocsr()
    return band, kpm.velocity(band, "x", POSITIONS)


#: Of a matrix and the energy to which it is moved: what depends on the band alone.
CALLS = {
    "kpm_dos": lambda H, s, A, **k: kpm_dos(H, num_vectors=3, energy_resolution=0.2, rng=1, **k).moments / SITES,
    "kpm_dos of an operator": lambda H, s, A, **k: kpm_dos(H, 64, vectors=BLOCK, operator=A, **k).moments / SITES,
    "ldos": lambda H, s, A, **k: ldos(H, [3], energy_resolution=0.2, **k).moments,
    "spectral_function": lambda H, s, A, **k: kpm.spectral_function(H, [[0.3]], POSITIONS, num_moments=64, **k).moments,
    "chebyshev": lambda H, s, A, **k: np.array([block.copy() for block in kpm.chebyshev(H, BLOCK, 64, **k)]),
    "evolve": lambda H, s, A, **k: kpm.evolve(H, BLOCK, 7.0, **k) * np.exp(7j * s),
    "apply": lambda H, s, A, **k: kpm.apply(lambda energy: np.exp(-((energy - s) ** 2)), H, BLOCK, **k),
    "greens_function": lambda H, s, A, **k: kpm.greens_function(H, 3, [5, 6], s + 0.3, 0.1, **k),
    "columns": lambda H, s, A, **k: kpm.greens_function(H, None, [5, 6], s + 0.3, 0.1, **k),
    "correlator": lambda H, s, A, **k: kpm.correlator(H, A, A, num_moments=32, rng=1, **k).moments / SITES,
    "conductivity": lambda H, s, A, **k: kpm.conductivity(H, A, A, area=SITES, num_moments=32, rng=1, **k)(s + 0.3),
    "count": lambda H, s, A, **k: np.array(kpm.count(H, (s - 1, s + 0.5), num_moments=64, rng=1, **k)),
    "filter_diagonalize": lambda H, s, A, **k: kpm.filter_diagonalize(H, (s - 0.3, s + 0.2), rng=1, **k)[0] - s,
}  # fmt: skip
#: What asks for differences of energies that rounding of an operator in single precision hides at 1e8.
HIDDEN = {"kpm_dos", "ldos", "evolve", "apply", "greens_function", "columns", "filter_diagonalize"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["stored", "operator"])
@pytest.mark.parametrize("shift", [0.0, 1e3, 1e8])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_every_call_far_from_zero_is_right_or_refused_in_a_sentence(dtype, shift, kind, call):
    band, A = open_chain(dtype)
    H = (band + shift * sp.eye_array(SITES)).astype(dtype).tocsr()
    H = H if kind == "stored" else aslinearoperator(H)
    if shift == 1e8 and kind == "operator" and dtype != "float64" and call in HIDDEN:
        with pytest.raises(ValueError, match=r"rounding of .* hides|not smooth"):
            CALLS[call](H, shift, A, **HERE)
        return
    found = CALLS[call](H, shift, A, **HERE)
    low, high = kpm.spectral_bounds(H, backend="cpu")
    eps = float(np.finfo(dtype).eps)
    # An operator rounds where it is, and energies themselves are numbers of float64.
    assert high - low < 4.1 + 8200 * shift * (eps if kind == "operator" else 2.0**-52)
    wide = band.astype(np.result_type(dtype, np.float64))
    exact = CALLS[call](wide, 0.0, A, bounds=(low - shift, high - shift), **HERE)
    hidden = max(eps * (max(1, shift) if kind == "operator" else 1), 2.0**-52 * shift) / (high - low)
    np.testing.assert_allclose(found, exact, rtol=0, atol=2000 * hidden * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("width", [1e-3, 1e-4, 2e-5])
def test_a_function_that_is_zero_at_all_points_is_looked_at_closer(width):
    # Narrower than the points that a smooth function takes: it is found, or refused, and not taken for zero.
    H = sp.diags_array([0.0, 1 / 3, 1.0, -1.0])
    with pytest.raises(ValueError, match="not smooth"):
        kpm.apply(lambda energy: np.where(abs(energy - 1 / 3) < width, 1.0, 0.0), H, np.ones(4), **HERE)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sparse", [np.asarray, sp.csr_array])
def test_rounding_far_from_zero_that_is_not_hermitian_is_left_out(sparse):
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(40, 40)))
    moved = (turn.astype("float32") * np.float32(1e6)) @ turn.T.astype("float32")
    assert abs(moved - moved.T).max() > 0
    part = (moved.astype(np.float64) + moved.T) / 2
    levels, states = np.linalg.eigh(part)
    density = kpm_dos(sparse(moved), 2000, 2, rng=1, **HERE)
    assert density.scale < 2 * np.ptp(levels)
    exact = states[0] / (1e6 + 0.1j - levels) @ states[0]
    assert abs(kpm.greens_function(sparse(moved), 0, 0, 1e6, 0.1, **HERE) - exact) < 1e-4 * abs(exact)


# ---- the scale of moments


@pytest.mark.parametrize("limits", [None, (-3.0, 3.0), (-5.0, 4.0)])
def test_moments_are_those_of_the_scale_and_the_centre(limits):
    matrix = anderson(4, disorder=1, rng=3) / 3
    energies, states = np.linalg.eigh(matrix.toarray())
    density = SpectralDensity(matrix, 50, 4, rng=7, bounds=limits, backend="cpu")
    start = reference.random_phases(int(np.random.default_rng(7).integers(2**62)), 64, 4, real=True)
    exact = exact_moments(energies, states, start, 50, density.scale, density.centre)
    np.testing.assert_allclose(density.moments, exact.mean(axis=1), atol=1e-10)
    curves = ldos(matrix, range(64), 50, bounds=limits, backend="cpu")
    exact = exact_moments(energies, states, np.eye(64), 50, curves.scale, curves.centre)
    np.testing.assert_allclose(curves.moments, exact, atol=1e-12)
    for found in (density, curves):
        half = 0.99 * found.scale
        np.testing.assert_allclose(found.bounds, (found.centre - half, found.centre + half), rtol=1e-12)
        assert limits is None or found.bounds == limits


def test_a_users_own_kernel_finds_the_peaks_where_they_are():
    # Graphene's van Hove peaks lie at ±1, in units of the hopping.
    density = kpm_dos(graphene(60, 60), 400, 16, rng=1, backend="cpu")
    damped = density.moments * reference.jackson_kernel(400)
    energies = np.linspace(0.9, 1.1, 401)
    own = reference.chebyshev_density(damped, (energies - density.centre) / density.scale) / density.scale
    np.testing.assert_allclose(own, density(energies), rtol=1e-9)
    assert abs(energies[own.argmax()] - 1) < 0.004


# ---- hard matrices


def hard_matrices():
    yield "zero", np.zeros((5, 5))
    yield "one", np.array([[3.0]])
    yield "one zero", np.array([[0.0]])
    yield "two", np.array([[1.0, 2.0], [2.0, -1.0]])
    yield "two equal", np.array([[0.0, 1.0], [1.0, 0.0]])
    yield "constant", -2.5 * np.eye(7)
    yield "one entry", np.diag([0.0] * 8 + [1e-9])
    yield "wide", np.diag([1.0, 1e-300, 1e150])
    yield "rank one", np.ones((9, 9))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("kind", ["dense", "csr", "operator"])
@pytest.mark.parametrize("case", list(hard_matrices()), ids=lambda case: case[0])
def test_hard_matrices_have_their_spectrum(case, kind, dtype):
    matrix = case[1]
    if case[0] == "wide" and dtype in ("float32", "complex64"):
        matrix = np.diag([1.0, 1e-30, 1e15])
    matrix = matrix.astype(dtype)
    H = {"dense": lambda m: m, "csr": sp.csr_array, "operator": aslinearoperator}[kind](matrix)
    density = kpm_dos(H, 20, 3, rng=1, backend="cpu")
    exact = np.linalg.eigvalsh(matrix)
    low, high = density.bounds
    slack = 1e-5 * density.scale if dtype in ("float32", "complex64") else 1e-9 * density.scale
    assert low <= exact[0] + slack and exact[-1] <= high + slack and high - low <= 1.3 * (np.ptp(exact) or np.inf)
    assert density.integrate() == pytest.approx(len(matrix), rel=1e-6)
    assert ldos(H, [0], 20, backend="cpu").integrate()[0] == pytest.approx(1, rel=1e-6)


def test_errors_are_there_where_the_mean_of_curves_is_a_number_and_a_curve_is_not():
    matrix, kept = anderson(3, disorder=1, rng=1).toarray(), 0
    for unit in 2.0 ** np.arange(-1019, -1013, 0.25):
        try:
            density = kpm_dos(matrix * unit, 20, 2, rng=1, backend="cpu")
        except ValueError as error:
            assert "unit of energy" in str(error)
        else:
            assert (density.errors > 0).all()
            kept += 1
    assert kept


@pytest.mark.parametrize("unit", [1e-310, 1e-305, 1e-200, 1e-140, 1e140, 1e200, 1e300, 1e307])
@pytest.mark.parametrize("kind", ["csr", "entries", "operator"])
def test_every_unit_is_right_or_one_sentence(unit, kind):
    matrix = anderson(3, disorder=1, rng=1) if kind == "entries" else graphene(6, 5)
    H = (matrix * unit).tocsr()
    H = aslinearoperator(H) if kind == "operator" else H
    ours = kpm_dos(matrix, 40, 3, rng=1, backend="cpu", bounds=(-7, 7))
    try:
        density = kpm_dos(H, 40, 3, rng=1, backend="cpu", bounds=(-7 * unit, 7 * unit))
        np.testing.assert_allclose(density.moments, ours.moments, atol=1e-9)
        density = kpm_dos(H, 40, 3, rng=1, backend="cpu")
        assert density.bounds[1] / unit < 7 and density.integrate() == pytest.approx(matrix.shape[0])
        assert np.isfinite(density.errors).all()
    except ValueError as error:
        assert (
            unit in (1e-310, 1e-305, 1e307) and "unit of energy" in str(error) and "NaN or infinity:" not in str(error)
        )


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128"])
def test_every_power_of_two_has_the_moments_of_its_matrix(dtype):
    least, most = {"float32": (-123, 120), "complex64": (-90, 120)}.get(dtype, (-950, 1010))
    for matrix in (np.eye(1), 3 * np.eye(5), graphene(3, 3).toarray(), np.diag([1.0, 2.0, 3.0, 5.0]), np.ones((2, 2))):
        for exponent in (least, least // 2 - 57, least // 2, -20, 20, most // 2, most):
            H = sp.csr_array(np.ldexp(matrix, exponent).astype(dtype))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                density = ldos(H, [0], 16, backend="cpu")
            low, high = np.ldexp(density.bounds, -exponent)
            size, x = np.linalg.eigvalsh(matrix), np.linalg.eigh(matrix)[1]
            slack = 1e-5 * max(abs(size))
            assert low <= size[0] + slack and size[-1] - slack <= high
            place = np.clip((size - np.ldexp(density.centre, -exponent)) / np.ldexp(density.scale, -exponent), -1, 1)
            wanted = np.cos(np.arange(16)[:, None] * np.arccos(place)) @ abs(x[0]) ** 2
            np.testing.assert_allclose(density.moments.ravel(), wanted, atol=0.02 if np.ptp(size) == 0 else 1e-4)


@pytest.mark.parametrize("size", [1e308, 1.7e308])
@pytest.mark.parametrize("sparse", [np.asarray, sp.csr_array])
@pytest.mark.filterwarnings("error")
def test_energies_up_to_the_largest_number_have_their_moments(size, sparse):
    levels = np.array([-1.0, 0.25, 0.5, 1.0])
    density = ldos(sparse(np.diag(levels * size)), [0, 1, 2, 3], 16, backend="cpu")
    exact = np.cos(np.arange(16)[:, None] * np.arccos((levels - density.centre / size) / (density.scale / size)))
    np.testing.assert_allclose(density.moments, exact, atol=1e-12)


def test_sums_of_a_row_beyond_the_range_are_named():
    with pytest.raises(ValueError, match="larger unit of energy"):
        kpm_dos(graphene(4, 4) * 1e308, 16, 2, backend="cpu")


# ---- any matrix, any layout, any unit, any number of vectors and moments


class Own:
    """A matrix by the protocol."""

    def __init__(self, matrix):
        self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype

    def matmat(self, block, out):
        out[...] = self.matrix @ block

    def bounds(self):
        return None

    def memory_bytes(self, num_vectors):
        return 0


LAYOUTS = {
    "dense": lambda m: m, "fortran": np.asfortranarray, "csr": sp.csr_array, "csc": sp.csc_matrix, "coo": sp.coo_array,
    "dia": sp.dia_array, "lil": sp.lil_array, "bsr": sp.bsr_array, "linear": aslinearoperator, "own": Own,
    "real part": lambda m: sp.csr_array(m.astype(np.result_type(m.dtype, np.complex64))).real if m.dtype.kind == "f"
    else sp.csr_array(m),
}  # fmt: skip


@st.composite
def problems(draw):
    """Draw a Hermitian matrix, how it is given, and how many vectors and moments are asked for."""
    size, dtype = draw(st.integers(1, 60)), draw(st.sampled_from(["float32", "float64", "complex64", "complex128"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    full = rng.normal(size=(size, size)) + 1j * rng.normal(size=(size, size)) * dtype.startswith("c")
    full = (full if dtype.startswith("c") else full.real) * (rng.random((size, size)) < draw(st.sampled_from([0.1, 1])))
    full = (full + full.conj().T) / 2
    shift = draw(st.sampled_from([0.0, 0.0, 1.0, -30.0, 1e3]))
    exponent = draw(st.integers(-30, 30) if dtype in ("float32", "complex64") else st.integers(-280, 280))
    matrix = ((full + shift * np.eye(size)) * 10.0**exponent).astype(dtype)
    return matrix, draw(st.sampled_from(sorted(LAYOUTS))), draw(st.integers(1, 40)), draw(st.integers(2, 150))


@settings(max_examples=150)
@given(problems())
def test_any_matrix_has_the_moments_of_its_eigenvalues(problem):
    matrix, layout, num_vectors, num_moments = problem
    density = kpm_dos(LAYOUTS[layout](matrix), num_moments, num_vectors, rng=4, backend="cpu")
    unit = float(np.abs(matrix).max()) or 1.0
    energies, states = np.linalg.eigh(matrix.astype(np.result_type(matrix.dtype, np.float64)) / unit)
    seed = int(np.random.default_rng(4).integers(2**62))
    start = reference.random_phases(seed, len(matrix), num_vectors, real=matrix.dtype.kind != "c")
    by_vector = exact_moments(energies, states, start, num_moments, density.scale / unit, density.centre / unit)
    # A step rounds by some ε of the largest energy, in units of the scale; T_m amplifies it by m at most.
    largest = max(1.0, *(abs(bound) / density.scale for bound in density.bounds))
    tolerance = 64 * float(np.finfo(matrix.dtype).eps) * largest * num_moments
    assert np.abs(density.moments - by_vector.mean(axis=1)).max() / len(matrix) < tolerance
    assert density.bounds[0] / unit <= energies[0] + tolerance and energies[-1] <= density.bounds[1] / unit + tolerance
    if num_vectors > 1:
        curves = SpectralCurves(by_vector, density.bounds, scaling=(1 / density.scale, density.centre)).densities
        errors = (curves * density.scale).std(axis=1, ddof=1) / np.sqrt(num_vectors)
        size = tolerance * num_moments * len(matrix)
        inner = slice(num_moments // 4, -(num_moments // 4) or None)  # not where the weight is singular
        np.testing.assert_allclose((density.errors * density.scale)[inner], errors[inner], atol=size, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_operators_that_return_nan_late_end_in_a_sentence(size):
    calls = []

    def product(x):
        calls.append(1)
        return x * (np.nan if len(calls) > 6 else 1)

    H = LinearOperator((size, size), matvec=product, matmat=product, dtype=np.float64)
    with pytest.raises(ValueError, match=r"not finite|no bounds hold"):
        kpm_dos(H, 100, 2)


@pytest.mark.parametrize("num_vectors", [2**63, 10**12])
def test_more_vectors_than_moments_have_room_for_are_refused_at_once(num_vectors):
    H = sp.csr_array(np.diag([1.0, 2.0, 3.0]))
    with pytest.raises(MemoryError, match="the moments of"):
        kpm_dos(H, 16, num_vectors, backend="cpu")
    density = kpm_dos(H, 16, 2, backend="cpu")
    before = density.moments.copy()
    with pytest.raises(MemoryError, match="the moments of"):
        density.add_vectors(num_vectors)
    np.testing.assert_array_equal(density.moments, before)
    density.add_vectors(1)
    assert density.num_vectors == 3


@pytest.mark.filterwarnings("error")
def test_a_density_beyond_float64_is_refused_in_a_sentence():
    H = sp.csr_array(np.diag([1e-307, 2e-307, 3e-307]))
    with pytest.raises(ValueError, match="take a smaller unit of energy"):
        kpm_dos(H, 16, 2, backend="cpu")


@pytest.mark.parametrize("num_moments", [2**63, 10**400])
def test_more_moments_than_have_room_are_refused_at_once(num_moments, tmp_path):
    H = sp.csr_array(np.diag([1.0, 2.0, 3.0]))
    path = tmp_path / "state.npz"
    for asked in ({"num_moments": num_moments}, {"energy_resolution": 1e-14}):
        with pytest.raises(MemoryError, match="the moments of"):
            kpm_dos(H, num_vectors=2, backend="cpu", checkpoint=path, **asked)
    assert not path.exists()
    for more in ({}, {"operator": H}):
        density = kpm_dos(H, 16, 2, backend="cpu", **more)
        before = density.moments.copy()
        for add in (density.add_moments, density.add_vectors):
            with pytest.raises(MemoryError, match="the moments of"):
                add(num_moments)
        density.add_moments(2)
        assert (density.num_moments, density.num_vectors, len(density.moments)) == (18, 2, 18)
        np.testing.assert_allclose(density.moments[:16], before, atol=1e-13)
