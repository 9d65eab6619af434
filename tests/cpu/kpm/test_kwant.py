"""Kwant's own numbers, from an environment of its own: ``SPECTILE_KWANT`` names its Python (see CONTRIBUTING)."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import conductivity, correlator, kpm_dos, ldos
from spectile.kpm.response import MARGIN
from tests.hamiltonians import haldane

PYTHON = os.environ.get("SPECTILE_KWANT")
pytestmark = pytest.mark.skipif(not PYTHON, reason="SPECTILE_KWANT names no Python with Kwant")
BOUNDS = (-5.0, 5.0)
MOMENTS, LEVELS = 60, np.array([-1.5, 0.0, 0.8])


def problem(name):
    """Return H, an operator, vectors, energies and positions."""
    rng = np.random.default_rng(3)
    if name == "complex":
        H, positions, _ = haldane(5, mass=0.3)
        H = sp.csr_array(H)
    else:
        places = [rng.uniform(-1, 1, 48)] + [np.full(48 - step, -1.0) for step in (1, 8)]
        H = sp.diags_array([places[0], places[1], places[1], places[2], places[2]], offsets=[0, 1, -1, 8, -8]).tocsr()
        positions = np.stack(np.divmod(np.arange(48), 8), axis=1).astype(float)
    n = H.shape[0]
    A = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if name == "complex" else 0)
    vectors = np.exp(2j * np.pi * rng.random((n, 3)))
    return H, A + A.conj().T, vectors, np.linspace(-4.5, 4.5, 19), positions


@pytest.fixture(scope="module")
def kwant(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kwant")
    # Kwant's expansion reaches from ∓half/(1 − eps/2).
    given = {"num_moments": MOMENTS, "bounds": BOUNDS, "eps": 0.02, "levels": LEVELS}
    for name in ("real", "complex"):
        H, A, vectors, energies, positions = problem(name)
        given |= {
            f"{name}_H": H.toarray(), f"{name}_A": A, f"{name}_vectors": vectors.T, f"{name}_energies": energies,
            f"{name}_positions": positions,
        }  # fmt: skip
    np.savez(folder / "in.npz", **given)
    files = folder / "in.npz", folder / "out.npz"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    script = Path(__file__).with_name("kwant_values.py")
    done = subprocess.run(
        [PYTHON, script, *files], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(files[1]) as held:
        return dict(held)


@pytest.mark.parametrize("name", ["real", "complex"])
def test_densities_operators_and_sites_are_kwants(kwant, name):
    H, A, vectors, energies, _ = problem(name)
    given = {"bounds": BOUNDS, "backend": "cpu"}
    n = H.shape[0]
    density = kpm_dos(H, MOMENTS, vectors=vectors, **given)
    np.testing.assert_allclose(density(energies), kwant[f"{name}_density"], atol=1e-11 * n)
    occupied = density.integrate(lambda e: 1 / (1 + np.exp((e - 0.3) / 0.2)))
    np.testing.assert_allclose(occupied, kwant[f"{name}_sum"], rtol=1e-8)
    sharp = kpm_dos(H, MOMENTS, kernel="lorentz", vectors=vectors, **given)
    np.testing.assert_allclose(sharp(energies), kwant[f"{name}_lorentz"], atol=1e-11 * n)
    with_operator = kpm_dos(H, MOMENTS, vectors=vectors, operator=A, mean=False, **given)
    scale = abs(A).sum()
    np.testing.assert_allclose(with_operator(energies), kwant[f"{name}_operator"], atol=1e-11 * scale)
    sites = ldos(H, [0, 7], MOMENTS, **given)
    np.testing.assert_allclose(sites(energies), kwant[f"{name}_sites"], atol=1e-11)


@pytest.mark.parametrize("name", ["real", "complex"])
def test_correlators_and_conductivities_are_kwants(kwant, name):
    H, A, vectors, _, positions = problem(name)
    given = {"num_moments": MOMENTS, "vectors": vectors, "bounds": BOUNDS, "backend": "cpu"}
    moments = correlator(H, A, A, **given).moments
    np.testing.assert_allclose(moments, kwant[f"{name}_moments"], atol=1e-10 * abs(moments).max())
    for beta in "xy":
        # The bounds are widened by MARGIN for conductivities.
        given |= {"vectors": np.eye(H.shape[0]), "bounds": (BOUNDS[0] / (1 + MARGIN), BOUNDS[1] / (1 + MARGIN))}
        sigma = conductivity(H, "x", beta, positions, area=1.0, formula="bastin", **given)
        theirs = kwant[f"{name}_sigma_{beta}"]
        # Kwant's integral over energies is Simpson's.
        np.testing.assert_allclose(sigma(LEVELS, 0.4), theirs, rtol=1e-3, atol=1e-3 * abs(theirs).max())


def test_a_system_of_kwants_gives_its_density_by_site(kwant):
    H, vectors, energies = kwant["system_H"], kwant["system_vectors"].T, kwant["system_energies"]
    given = {"bounds": (-4, 4), "backend": "cpu"}
    first = 0
    for site, orbitals in enumerate(kwant["system_orbitals"]):
        here = np.zeros(len(H))
        here[first : first + orbitals] = 1
        found = kpm_dos(H, 40, vectors=vectors, operator=sp.diags_array(here), **given)
        np.testing.assert_allclose(found(energies), kwant["system_by_site"][:, site], atol=1e-10)
        first += orbitals
