"""Densities, correlators and averages by their definitions: kernels around exact levels, traces, other bases."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import LorentzKernel, correlator, kpm_dos, ldos, reference
from spectile.kpm.operators.lattices import anderson
from tests.hamiltonians import haldane

H = haldane(4, mass=0.4)[0]
N = H.shape[0]
ENERGIES, STATES = np.linalg.eigh(H.toarray())
BOUNDS = {"bounds": (-6.0, 6.0), "backend": "cpu"}
KERNELS = {
    "jackson": reference.jackson_kernel(40),
    "lorentz": reference.lorentz_kernel(40),
    "none": np.ones(40),
    "sharp": reference.lorentz_kernel(40, 2.0),
}
POINTS = np.linspace(-5.5, 5.5, 23)


def hermitian(seed, n=N):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    return matrix + matrix.conj().T


def around(levels, factors, at=POINTS):
    """Return Σ_m (2 − δ_m0) g_m T_m(x) T_m(x_n) / (π sqrt(1 − x²)) per energy, shape (points, levels)."""
    scale = 6.0 / 0.99
    x, y, m = at / scale, levels / scale, np.arange(len(factors))
    weights = factors * np.where(m == 0, 1, 2)
    series = (np.cos(m * np.arccos(x)[:, None]) * weights) @ np.cos(m * np.arccos(y)[:, None]).T
    return series / (np.pi * np.sqrt(1 - x[:, None] ** 2)) / scale


def kernel_of(name):
    return LorentzKernel(2.0) if name == "sharp" else name


@pytest.mark.parametrize("name", KERNELS)
def test_a_density_is_a_kernel_around_each_level(name):
    exact = around(ENERGIES, KERNELS[name])
    whole = kpm_dos(H, 40, kernel=kernel_of(name), vectors=np.eye(N), **BOUNDS)
    np.testing.assert_allclose(N * whole(POINTS), exact.sum(axis=1), atol=1e-11 * N)
    sites = ldos(H, slice(None), 40, kernel_of(name), **BOUNDS)(POINTS)
    np.testing.assert_allclose(sites, exact @ (abs(STATES) ** 2).T, atol=1e-11 * N)
    # An operator weighs each level with its expectation value; both triangles of a matrix count.
    A = hermitian(3)
    weights = np.einsum("in,ij,jn->n", STATES.conj(), A, STATES).real
    of_operator = kpm_dos(H, 40, kernel=kernel_of(name), vectors=np.eye(N), operator=A, **BOUNDS)
    np.testing.assert_allclose(N * of_operator(POINTS), exact @ weights, atol=1e-10 * N)


@pytest.mark.parametrize("name", KERNELS)
def test_a_correlator_is_a_kernel_around_each_pair_of_levels(name):
    A, B = hermitian(1), hermitian(2)
    found = correlator(H, A, B, num_moments=40, kernel=kernel_of(name), vectors=np.eye(N), **BOUNDS)
    one, two = (STATES.conj().T @ each @ STATES for each in (A, B))
    near = around(ENERGIES, KERNELS[name], POINTS[::4])
    exact = near @ (one.T * two) @ near.T  # tr[A δ(E − H) B δ(E' − H)]: level n of E, level m of E'
    values = found(POINTS[::4, None], POINTS[::4])
    np.testing.assert_allclose(values, exact, atol=1e-9 * abs(exact).max())
    # The trace is cyclic.
    turned = correlator(H, B, A, num_moments=40, kernel=kernel_of(name), vectors=np.eye(N), **BOUNDS)
    np.testing.assert_allclose(turned.moments.T, found.moments, atol=1e-9 * abs(found.moments).max())


def test_averages_over_a_fermi_sea_are_traces():
    A = hermitian(3)
    density = kpm_dos(H, 300, vectors=np.eye(N), operator=A, **BOUNDS)
    weights = np.einsum("in,ij,jn->n", STATES.conj(), A, STATES).real
    for level, temperature in ((0.0, 0.5), (1.3, 0.3), (-9.0, 0.4)):

        def occupied(energy, level=level, temperature=temperature):
            return 1 / (1 + np.exp((energy - level) / temperature))

        found = N * density.integrate(occupied, damped=False)
        assert found == pytest.approx(np.sum(weights * occupied(ENERGIES)), abs=1e-7 * abs(weights).sum())


def test_two_levels_are_told_apart_from_the_resolution_on():
    pair = sp.diags_array([0.0, 0.4, 3.0, -3.0])
    for resolution, apart in ((0.1, True), (0.8, False)):
        density = kpm_dos(pair, vectors=np.eye(4), energy_resolution=resolution, bounds=(-3, 3), backend="cpu")
        assert (density(0.2) < 0.5 * density(0.0)) == apart


def test_another_basis_another_zero_and_another_unit_of_energy_change_nothing():
    small = anderson(3, disorder=3.0, rng=1).toarray()
    n = len(small)
    A, turn = hermitian(5, n), np.linalg.qr(hermitian(6, n))[0]
    vectors = hermitian(7, n)[:, :3]
    given = {"num_moments": 30, "backend": "cpu", "mean": False}
    first = kpm_dos(small.astype(complex), vectors=vectors, operator=A, bounds=(-9, 9), **given)
    turned = turn @ small @ turn.conj().T
    other = kpm_dos(
        (turned + turned.conj().T) / 2, vectors=turn @ vectors, operator=turn @ A @ turn.conj().T, bounds=(-9, 9),
        **given,
    )  # fmt: skip
    np.testing.assert_allclose(other.moments, first.moments, atol=1e-10 * abs(first.moments).max())
    moved = kpm_dos(
        2.5 * small + 7 * np.eye(n) + 0j, vectors=vectors, operator=A, bounds=(7 - 2.5 * 9, 7 + 2.5 * 9), **given
    )
    at = np.linspace(-8, 8, 9)
    np.testing.assert_allclose(2.5 * moved(2.5 * at + 7), first(at), atol=1e-9 * abs(first(at)).max())


def test_random_vectors_scatter_around_the_trace_as_their_errors_say():
    A = sp.csr_array(hermitian(4))
    exact = N * np.array([np.einsum("in,ij,jn->n", STATES.conj(), A.toarray(), STATES).real @ ENERGIES]) / N
    found = [kpm_dos(H, 20, 24, rng=seed, operator=A, **BOUNDS) for seed in range(6)]
    for density in found:
        value, error = density.integrate(lambda energy: energy, damped=False, return_error=True)
        assert abs(value - exact[0]) < 5 * error
    again = kpm_dos(H, 20, 24, rng=3, operator=A, **BOUNDS)
    np.testing.assert_array_equal(again.moments, found[3].moments)
