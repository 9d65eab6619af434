"""Kwant's density of states, in an environment of its own: ``python kwant_dos.py problem.npz moments calls``.

Kwant 1.5 needs NumPy 1, so this file is run by another Python, which knows nothing of spectile.  `problem.npz` holds a
CSR matrix (data, indices, indptr), the random vectors, shape (R, N), the bounds of the spectrum with Kwant's eps, and
the energies at which the density is wanted.  Prints one line of JSON: the seconds of each call, and the density.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np


def main(problem: str, moments: int, calls: int) -> None:
    """Time `calls` densities and print them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that this does not need is missing
        import kwant.kpm
    import scipy.sparse as sp

    with np.load(problem) as held:
        matrix = sp.csr_matrix((held["data"], held["indices"], held["indptr"]))
        vectors, energies = held["vectors"], held["energies"]
        settings = {"bounds": tuple(held["bounds"]), "eps": float(held["eps"])}
    seconds, density = [], None
    for _ in range(calls):
        start = time.perf_counter()
        density = kwant.kpm.SpectralDensity(
            matrix, num_vectors=len(vectors), num_moments=moments, vector_factory=iter(vectors), **settings
        )
        seconds.append(time.perf_counter() - start)
    densities = [] if density is None else np.real(density(energies)).tolist()
    print(json.dumps({"seconds": seconds, "densities": densities}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
