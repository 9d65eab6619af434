"""What Kwant makes of the same problems, run by the Python of its own environment: ``python kwant_values.py in out``.

It knows nothing of spectile: the file read holds matrices, vectors and energies, the one written Kwant's numbers.
"""

import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")  # a solver that this does not need is missing

import kwant  # noqa: E402
import scipy.sparse as sp  # noqa: E402


def main(read: str, written: str) -> None:
    """Compute all that test_kwant.py compares."""
    with np.load(read) as held:
        given = dict(held)
    found = {}
    for name in ("real", "complex"):
        H, A = (sp.csr_matrix(given[f"{name}_{each}"]) for each in ("H", "A"))
        vectors, energies, positions = (given[f"{name}_{each}"] for each in ("vectors", "energies", "positions"))

        def settings(vectors=vectors):
            return {
                "num_moments": int(given["num_moments"]), "bounds": tuple(given["bounds"]), "eps": float(given["eps"]),
                "num_vectors": len(vectors), "vector_factory": iter(vectors),
            }  # fmt: skip

        density = kwant.kpm.SpectralDensity(H, **settings())
        found[f"{name}_density"] = density(energies)
        found[f"{name}_sum"] = density.integrate(lambda e: 1 / (1 + np.exp((e - 0.3) / 0.2)))
        found[f"{name}_lorentz"] = kwant.kpm.SpectralDensity(H, kernel=kwant.kpm.lorentz_kernel, **settings())(energies)
        found[f"{name}_operator"] = kwant.kpm.SpectralDensity(H, operator=A, mean=False, **settings())(energies)
        sites = np.eye(H.shape[0])[[0, 7]]
        found[f"{name}_sites"] = kwant.kpm.SpectralDensity(H, mean=False, **settings(sites))(energies)
        found[f"{name}_moments"] = kwant.kpm.Correlator(H, operator1=A, operator2=A, **settings()).moments_matrix
        whole = np.sqrt(H.shape[0]) * np.eye(H.shape[0])  # their mean is the trace
        for beta in "xy":
            # Kwant multiplies the entries in place, which must be complex for it.
            sigma = kwant.kpm.conductivity(H.astype(complex), "x", beta, positions=positions, **settings(whole))
            found[f"{name}_sigma_{beta}"] = np.array([sigma(mu, 0.4) for mu in given["levels"]])

    # A system with two orbitals on a site of one kind and one on the other.
    square = kwant.lattice.Polyatomic([[1, 0], [0, 1]], [[0, 0], [0.5, 0.25]], norbs=[2, 1])
    a, b = square.sublattices
    system = kwant.Builder()
    system[a.shape(lambda place: abs(place[0]) < 3 and abs(place[1]) < 2, (0, 0))] = lambda site, t: t * np.diag([1, 2])
    system[b.shape(lambda place: abs(place[0]) < 3 and abs(place[1]) < 2, (0.5, 0.25))] = 0.5
    system[kwant.builder.HoppingKind((0, 0), a, b)] = np.array([[1], [1j]])
    system[kwant.builder.HoppingKind((1, 0), b, b)] = -1
    final = system.finalized()
    matrix, orbitals, _ = final.hamiltonian_submatrix(params={"t": 0.7}, return_norb=True)
    found["system_H"] = matrix
    found["system_positions"] = np.repeat([final.pos(n) for n in range(len(orbitals))], orbitals, axis=0)
    phases = np.exp(2j * np.pi * np.random.RandomState(1).rand(3, len(matrix)))
    found["system_vectors"] = phases
    settings = {"params": {"t": 0.7}, "num_moments": 40, "bounds": (-4, 4), "eps": 0.02, "num_vectors": 3}
    energies = found["system_energies"] = np.linspace(-3, 3, 7)
    by_site = kwant.kpm.SpectralDensity(
        final, operator=kwant.operator.Density(final), vector_factory=iter(phases), **settings
    )
    found["system_by_site"], found["system_orbitals"] = by_site(energies), orbitals
    np.savez(written, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
