"""Correlators and conductivities against exact diagonalization, and plateaus and universal values that are known."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile.kpm import conductivity, correlator, reference, velocity
from spectile.kpm.operators.lattices import anderson, chain
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from tests.hamiltonians import graphene, haldane, hofstadter, unit_vectors

REAL = anderson(4, disorder=2, rng=1)
COMPLEX = haldane(5, mass=0.3)[0]
RNG = np.random.default_rng(1)


def hermitian(n, real=False):
    matrix = RNG.standard_normal((n, n)) + (0 if real else 1j * RNG.standard_normal((n, n)))
    return matrix + matrix.conj().T


def exact_moments(found, H, A, B, vectors):
    energies, states = np.linalg.eigh(H.toarray())
    angle = np.arccos((energies - found.centre) / found.scale)
    T = [states @ (np.cos(m * angle)[:, None] * states.conj().T) for m in range(found.num_moments)]
    bras = [vectors.conj().T @ A @ t for t in T]
    kets = [B @ t @ vectors for t in T]
    return np.array([[np.sum(bra.T * ket, axis=0) for ket in kets] for bra in bras]).transpose(2, 0, 1)


@pytest.mark.parametrize("memory_limit", [None, 1, 64 * 8 * 20])
@pytest.mark.parametrize("kinds", ["real real", "complex dense", "imaginary imaginary", "operator none"])
@pytest.mark.parametrize("H", [REAL, COMPLEX], ids=["real", "complex"])
def test_moments_are_traces(H, kinds, memory_limit):
    n = H.shape[0]
    any_matrix = RNG.standard_normal((n, n))
    antisymmetric = sp.csr_array(1j * (any_matrix - any_matrix.T))
    one, real = hermitian(n), hermitian(n, real=True)
    A, B = {
        "real real": (sp.csr_array(any_matrix), real),
        "complex dense": (any_matrix + 1j * any_matrix.T**2, one),
        "imaginary imaginary": (antisymmetric, antisymmetric),
        "operator none": (aslinearoperator(real), None),
    }[kinds]
    found = correlator(H, A, B, num_moments=9, num_vectors=3, rng=4, backend="cpu", memory_limit=memory_limit)
    seed = int(np.random.default_rng(4).integers(2**62))
    vectors = reference.random_phases(seed, n, 3, real=H.dtype.kind == "f")
    dense = [real if kinds == "operator none" and X is A else np.eye(n) if X is None else X @ np.eye(n) for X in (A, B)]
    exact = exact_moments(found, H, *dense, vectors)
    np.testing.assert_allclose(found.moments_by_vector, exact, atol=1e-11 * abs(exact).max())
    np.testing.assert_array_equal(found.moments, found.moments_by_vector.mean(axis=0))
    assert (found.moments.dtype.kind == "f") == (H is REAL and kinds != "complex dense")


def test_given_vectors_of_any_length_give_the_exact_trace():
    A, B = hermitian(50), hermitian(50)
    lengths = np.linspace(1, 3, 50)
    found = correlator(COMPLEX, A, B, num_moments=5, vectors=np.diag(lengths), backend="cpu")
    exact = exact_moments(found, COMPLEX, A, B, np.eye(50)).sum(axis=0)
    np.testing.assert_allclose(found.moments, exact, atol=1e-10 * abs(exact).max())
    one = correlator(COMPLEX, lambda block: A @ block, B, num_moments=5, vectors=np.eye(50), backend="cpu")
    np.testing.assert_allclose(one.moments, found.moments, atol=1e-10 * abs(exact).max())


def test_a_density_of_two_energies_integrates_to_the_trace():
    A = hermitian(64)
    found = correlator(REAL, A, A, num_moments=16, vectors=np.eye(64), backend="cpu")
    x = np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    energies, weight = found.centre + found.scale * x, found.scale * np.pi / 64 * np.sqrt(1 - x**2)
    total = weight @ found(energies[:, None], energies) @ weight
    assert total == pytest.approx(np.trace(A @ A), rel=1e-10)
    assert found(1e3, 0.0) == 0


# ---- velocities


def test_the_unit_of_energy_does_not_matter():
    positions, vectors = np.arange(8.0)[:, None], np.eye(8)
    energies, words = np.linspace(-1.5, 1.5, 5), {"num_moments": 8, "vectors": vectors, "backend": "cpu"}
    density = correlator(chain(8), None, None, **words)(energies, 0.3)
    currents = {
        formula: conductivity(chain(8), "x", "x", positions, area=1.0, formula=formula, **words)(energies)
        for formula in ("greenwood", "bastin")
    }
    for exponent in (-1000, -600, -400, 400, 600, 1000):
        unit = 2.0**exponent
        H = sp.csr_array(chain(8) * unit)
        with np.errstate(all="raise", under="ignore"):
            found = correlator(H, None, None, **words)(energies * unit, 0.3 * unit)
        with np.errstate(over="ignore", under="ignore"):
            np.testing.assert_allclose(found, density / unit / unit, rtol=1e-10)
        for formula in currents if abs(exponent) <= 400 else ():
            found = conductivity(H, "x", "x", positions, area=1.0, formula=formula, **words)(energies * unit)
            np.testing.assert_allclose(found, currents[formula], rtol=1e-9, atol=1e-12)


def test_velocity_is_the_commutator_with_the_position():
    H = sp.csr_array(hermitian(30))
    r = RNG.standard_normal((30, 3))
    for axis, name in enumerate("xyz"):
        x = np.diag(r[:, axis])
        exact = 1j * (H @ x - x @ H.toarray())
        np.testing.assert_allclose(velocity(H, name, r).toarray(), exact, atol=1e-13)
    sample = TopologicalInsulator(3, 3, 3)
    assert abs(velocity(sample, "x", np.arange(108.0))).max() > 0


@pytest.mark.parametrize("length", [3, 4, 7])
def test_hops_of_a_periodic_sample_go_the_shortest_way(length):
    H, r, periods = graphene(length)
    v = velocity(H, "x", r, periods=periods)
    hops = {0.5, 0.0, -0.5}
    assert set(np.round(v.data.imag, 12) + 0.0) <= hops
    np.testing.assert_allclose((v @ np.ones(len(r))), 0, atol=1e-12)
    # The same sample by other vectors that span the same lattice.
    other = np.array([periods[0], periods[1] - periods[0]])
    for axis in "xy":
        assert abs(velocity(H, axis, r, periods=periods) - velocity(H, axis, r, periods=other)).max() < 1e-12


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_hops_are_the_shortest_of_all_images_whatever_vectors_span_the_lattice(dimensions):
    rng = np.random.default_rng(dimensions)
    sites = 12
    ring = sp.csr_array(np.ones((sites, sites)))
    for _ in range(8):
        lattice = 0.4 * rng.standard_normal((dimensions, dimensions)) + 2 * np.eye(dimensions)
        r = 2 * rng.standard_normal((sites, dimensions))
        whole = np.stack(np.meshgrid(*[np.arange(-9, 10)] * dimensions), axis=-1).reshape(-1, dimensions)
        images = (r - r[:, None])[..., None, :] + whole @ lattice
        nearest = np.take_along_axis(images, (images**2).sum(axis=-1).argmin(axis=-1)[..., None, None], axis=2)[:, :, 0]
        skewed = lattice.copy()
        for k in range(1, dimensions):
            skewed[k] += rng.integers(-6, 7, k) @ skewed[:k]
        for axis, name in enumerate("xyz"[:dimensions]):
            v = velocity(ring, name, r, periods=skewed)
            np.testing.assert_allclose(v.toarray(), 1j * nearest[..., axis], atol=1e-10)


def test_velocities_refuse_what_does_not_fit():
    H, r, _ = graphene(4)
    ring = sp.csr_array(np.array([[0, 1.0], [1.0, 0]]))
    for call, message in (
        (lambda: velocity(H, "x", r[:-1]), "one row for each of the 32"),
        (lambda: velocity(H, "z", r), "none of the 2 axes"),
        (lambda: velocity(H, "x", r, periods=[[1.0, 0, 0]]), "give one vector of 2"),
        (lambda: velocity(H, "x", r, periods=[[1.0, 0], [2.0, 0]]), "not independent"),
        (lambda: velocity(ring, "x", [[0.0], [1.0]], periods=[[2.0]]), "half around"),
        (lambda: velocity(H, "x", r * np.nan), "finite"),
        (lambda: conductivity(H, "x", "x"), "needs positions="),
        (lambda: conductivity(H, "x", "x", r), "area is not known"),
        (lambda: conductivity(H, "x", "x", r, area=-1.0), "area = -1"),
        (lambda: conductivity(H, "x", "y", r, area=1.0, formula="greenwood"), "for one direction"),
        (lambda: conductivity(H, "x", "y", r, area=1.0, formula="kubo"), "formula = 'kubo'"),
        (lambda: correlator(H, np.eye(31), None), "A has shape"),
        (lambda: correlator(H, None, lambda block: block[:-1]), "B gave shape"),
        (lambda: correlator(H, lambda block: np.triu(np.ones((32, 32))) @ block, None), "not Hermitian"),
        (lambda: correlator(H, None, None, vectors=np.zeros((32, 2)), backend="cpu"), "column of zeros"),
    ):
        with pytest.raises(ValueError, match=message):
            call()

    def writes(block):
        block *= 2
        return block

    with pytest.raises(ValueError, match="B writes into its input"):
        correlator(H, None, writes, backend="cpu")
    with pytest.raises(TypeError, match="vectors is a function"):
        correlator(H, None, None, vectors=lambda number: np.ones(32), backend="cpu")
    with pytest.raises(TypeError, match="positions must be real"):
        velocity(H, "x", r * 1j)
    with pytest.raises(ValueError, match=r"given bounds \(-1, 1\)"):
        conductivity(H, "x", "x", r, area=1.0, bounds=(-1, 1), num_moments=32, rng=1, backend="cpu")
    with pytest.raises(TypeError, match="this operator has none"):
        velocity(aslinearoperator(H), "x", r)


# ---- the conductivity


def exact_hall(H, r, periods):
    """The sum over occupied and empty states of Kubo and Bastin's formula in a gap at zero energy, in e²/h."""
    energies, states = np.linalg.eigh(H.toarray())
    v, w = (states.conj().T @ velocity(H, axis, r, periods=periods).toarray() @ states for axis in "xy")
    filled = energies < 0
    apart = np.where(filled[:, None] & ~filled, energies[:, None] - energies, np.inf)
    inverse = 1 / apart**2
    return 2 * np.pi * (1j / abs(np.linalg.det(periods)) * np.sum(inverse * (v * w.T - v.T * w))).real


@pytest.mark.parametrize(("mass", "plateau"), [(0.0, 1.0), (0.5, 1.0), (2.0, 0.0)])
def test_haldanes_plateau(mass, plateau):
    H, r, periods = haldane(9, mass)
    assert exact_hall(H, r, periods) == pytest.approx(plateau, abs=0.01)
    cell = unit_vectors(len(r), [0, 1])
    sigma = conductivity(H, "x", "y", r, periods=periods, vectors=cell, num_moments=176, backend="cpu")
    np.testing.assert_allclose(sigma([0.0, 0.2, -0.1]), plateau, atol=0.01)
    assert sigma(0.0, 0.02) == pytest.approx(plateau, abs=0.01)
    assert abs(sigma(-5.0)) < 1e-9 and abs(sigma(5.0)) < 1e-9
    if mass:
        return
    back = conductivity(H, "y", "x", r, periods=periods, vectors=cell, num_moments=176, backend="cpu")
    assert back(0.0) == pytest.approx(-sigma(0.0), abs=1e-9)
    # The other handedness.
    other = conductivity(H.conj(), "x", "y", r, periods=periods, vectors=cell, num_moments=176, backend="cpu")
    assert other(0.0) == pytest.approx(-plateau, abs=0.01)


def test_hofstadters_plateaus():
    H, r, periods = hofstadter(24, 1 / 3)
    cell = unit_vectors(len(r), [0, 24, 48])  # the magnetic cell
    sigma = conductivity(H, "x", "y", r, periods=periods, vectors=cell, num_moments=160, backend="cpu")
    energies = np.linalg.eigvalsh(H.toarray())
    gaps = [(energies[191] + energies[192]) / 2, (energies[383] + energies[384]) / 2]
    np.testing.assert_allclose(np.abs(sigma(gaps)), 1, atol=0.01)
    assert sigma(gaps[0]) == pytest.approx(-sigma(gaps[1]), abs=0.01)


def test_random_vectors_agree_within_their_errors():
    H, r, periods = haldane(10)
    sigma = conductivity(H, "x", "y", r, periods=periods, num_moments=64, num_vectors=12, rng=3, backend="cpu")
    cell = unit_vectors(len(r), [0, 1])
    exact = conductivity(
        H, "x", "y", r, periods=periods, num_moments=64, vectors=cell, bounds=sigma_bounds(sigma), backend="cpu"
    )
    mu = np.array([-2.0, -1.2, 0.0, 1.5])
    error = sigma.error(mu)
    assert np.all(abs(sigma(mu) - exact(mu)) < 4 * error) and np.all(error > 0) and np.all(error < 1)
    alone = conductivity(H, "x", "y", r, periods=periods, num_moments=8, num_vectors=1, rng=3, backend="cpu")
    assert np.isnan(alone.error(0.0))


def sigma_bounds(sigma):
    low, high = sigma.correlator.bounds
    half = (high - low) / 2 / 1.06
    return (high + low) / 2 - half, (high + low) / 2 + half


def test_bastin_and_greenwood_agree_along_one_direction():
    H, r, periods = graphene(9)
    cell = unit_vectors(len(r), [0, 1])
    mu = np.linspace(-2.9, 2.9, 13)
    one, two = (
        conductivity(H, "x", "x", r, periods=periods, vectors=cell, num_moments=48, formula=formula, backend="cpu")
        for formula in ("bastin", "greenwood")
    )
    np.testing.assert_allclose(one(mu), two(mu), atol=2e-3 * two(mu).max())
    assert two.formula == "greenwood" == conductivity(H, "x", "x", r, area=1.0, num_moments=2, backend="cpu").formula
    for temperature in (1e-3, 0.05, 0.5, 20.0):
        # By a plain sum over energies.
        grid = np.linspace(-45 * temperature, 45 * temperature, 20001)
        weight = 1 / (4 * temperature * np.cosh(grid / (2 * temperature)) ** 2) * (grid[1] - grid[0])
        np.testing.assert_allclose(two(0.3, temperature), weight @ two(0.3 + grid), rtol=1e-3)


@pytest.mark.parametrize("num_moments", [8, 24, 64])
@pytest.mark.parametrize(("H", "axes"), [("graphene", "xx"), ("haldane", "xy")])
def test_an_empty_and_a_full_spectrum_conduct_nothing(H, axes, num_moments):
    """Kubo and Bastin's integral begins at its lower end and ends at zero, however few moments smear the spectrum."""
    H, r, periods = graphene(6) if H == "graphene" else haldane(6)
    cell = unit_vectors(len(r), [0, 1])
    sigma = conductivity(
        H, *axes, r, periods=periods, vectors=cell, num_moments=num_moments, formula="bastin", backend="cpu"
    )
    assert sigma(-9.0) == 0 and abs(sigma(9.0)) < 1e-12


def test_greenwoods_formula_is_a_double_sum():
    H = anderson(5, disorder=3, rng=2)
    r = np.array(np.unravel_index(np.arange(125), (5, 5, 5))).T * 1.0
    sigma = conductivity(
        H, "y", "y", r, periods=5 * np.eye(3), num_moments=24, vectors=np.eye(125), kernel="jackson", backend="cpu"
    )
    assert sigma.area == pytest.approx(125)
    energies, states = np.linalg.eigh(H.toarray())
    v = states.conj().T @ velocity(H, "y", r, periods=5 * np.eye(3)).toarray() @ states
    j = sigma.correlator
    g = reference.jackson_kernel(24)
    g[1:] *= 2
    for mu in (-1.0, 0.4):
        x, y = (mu - j.centre) / j.scale, (energies - j.centre) / j.scale
        m = np.arange(24)[:, None]
        delta = (g * np.cos(m[:, 0] * np.arccos(x))) @ np.cos(m * np.arccos(y)) / (np.pi * np.sqrt(1 - x**2) * j.scale)
        assert sigma(mu) == pytest.approx(2 * np.pi**2 / 125 * (delta @ abs(v) ** 2 @ delta), rel=1e-9)


def optical_of_graphene(omega, width, cells=1200):
    """σ(ω) of graphene over its universal value for one spin, by a sum over k."""
    k = (np.arange(cells) + 0.5) / cells * 2 * np.pi
    k1, k2 = np.meshgrid(k, k)
    vectors = np.array([[1.0, 0], [0.5, np.sqrt(3) / 2]])
    kx, ky = np.tensordot(np.linalg.inv(vectors), np.array([k1, k2]), 1)
    hops = vectors.sum(0) / 3 - np.array([[0, 0], *vectors])
    phases = [np.exp(1j * (kx * x + ky * y)) for x, y in hops]
    f, slope = sum(phases), sum(1j * x * phase for (x, _), phase in zip(hops, phases, strict=True))
    strength = ((slope * f.conj()).imag / abs(f)) ** 2
    line = np.exp(-(((2 * abs(f) - omega) / width) ** 2) / 2) / width / np.sqrt(2 * np.pi)
    return 2 * np.pi**2 / (np.sqrt(3) / 2) / omega * np.mean(strength * line) / (np.pi / 4)


def optical_ratio(length, num_moments, omega):
    H, r, periods = graphene(length)
    cell = unit_vectors(len(r), [0, 1])
    sigma = conductivity(H, "x", "x", r, periods=periods, vectors=cell, num_moments=num_moments, backend="cpu")
    return sigma.optical(omega) / (np.pi / 4)


def test_graphenes_optical_conductivity_is_the_sum_over_k():
    omega = np.array([0.6, 0.8, 1.0])
    exact = [optical_of_graphene(w, 0.04) for w in omega]
    np.testing.assert_allclose(optical_ratio(48, 96, omega), exact, rtol=0.02)


@pytest.mark.slow
def test_graphenes_optical_conductivity_is_universal():
    # π e²/2h with both spins; hops beyond the cones add ω²/9.
    np.testing.assert_allclose(optical_ratio(240, 480, np.array([0.2, 0.3])), 1, rtol=0.02)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_an_optical_conductivity_at_a_temperature_is_a_double_sum(mu):
    H, r, periods = haldane(4, mass=0.4)
    sigma = conductivity(H, "x", "y", r, periods=periods, vectors=np.eye(32), num_moments=32, backend="cpu")
    x, temperature, omega = np.cos(np.pi * (np.arange(1000) + 0.5) / 1000), 0.3, 1.1
    j = sigma.correlator
    energies, weight = j.centre + j.scale * x, j.scale * np.pi / 1000 * np.sqrt(1 - x**2)
    before, after = (1 / (np.exp((each - mu) / temperature) + 1) for each in (energies, energies + omega))
    exact = 2 * np.pi**2 / sigma.area / omega * np.sum(weight * (before - after) * j(energies + omega, energies))
    assert sigma.optical(omega, mu, temperature) == pytest.approx(exact, rel=1e-3)
    with pytest.raises(ValueError, match="omega must be"):
        sigma.optical(0.0)
    with pytest.raises(ValueError, match="temperature=-1"):
        sigma(0.0, -1)
    for points in (0, -1, 2.5, "many"):
        with pytest.raises(ValueError, match="points = "):
            sigma.optical(omega, points=points)
    # All states are full or empty; what is no number stays none.
    assert sigma.optical(omega, np.inf) == sigma.optical(omega, -np.inf, 0.1) == 0
    assert np.isnan(sigma.optical(omega, np.nan)) and np.isnan(j([np.nan, 0.1], [[0.2], [np.nan]])).sum() == 3


def test_a_chain_conducts_where_it_has_a_band():
    sites = np.arange(200.0)
    unit = unit_vectors(200, [7])
    sigma = conductivity(chain(200, periodic=True), "x", "x", sites, periods=[[200.0]], vectors=unit, backend="cpu")
    assert sigma(3.0) == 0 and sigma(0.0) > 10


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64, np.complex128])
def test_the_size_of_given_vectors_is_divided_out_whatever_it_is(dtype):
    H = np.diag(np.linspace(-1, 1, 30)).astype(dtype)
    start = np.random.default_rng(3).standard_normal((30, 3)).astype(dtype)
    limits = np.finfo(dtype)
    wanted = correlator(H, None, None, num_moments=5, vectors=start, backend="cpu").moments
    for size in (limits.max / 16, limits.tiny * 16):
        found = correlator(H, None, None, num_moments=5, vectors=start * dtype(size), backend="cpu").moments
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e3 * limits.eps)


def test_operators_may_be_lists_as_h_may():
    H, A = np.diag(np.linspace(-1, 1, 6)), np.arange(36.0).reshape(6, 6)
    lists, arrays = (
        correlator(*each, None, num_moments=5, vectors=np.eye(6), backend="cpu").moments
        for each in ((H.tolist(), A.tolist()), (H, A))
    )
    np.testing.assert_array_equal(lists, arrays)
    with pytest.raises(TypeError, match="A is no array"):
        correlator(H, [[1.0], [1.0, 2.0]], None, backend="cpu")
