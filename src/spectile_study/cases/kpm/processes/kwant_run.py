"""Kwant in an environment of its own: ``python kwant_run.py problem.npz``.

Kwant 1.5 needs NumPy 1, so this file is run by another Python, which knows nothing of spectile.  The archive holds H as
CSR arrays, the random vectors, shape (R, N), the number of moments, and the bounds of the spectrum with Kwant's eps;
and either the energies at which the density is wanted, or a velocity as CSR arrays and how many moments of two of them.
Prints one line of JSON: the seconds of the call, and what was wanted.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np


def main(problem: str) -> None:
    """Time the call and print what is wanted of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that this does not need is missing
        import kwant.kpm
    import scipy.sparse as sp

    with np.load(problem) as archive:
        held = dict(archive)
    matrix = sp.csr_matrix((held["data"], held["indices"], held["indptr"]))
    vectors = held["vectors"]
    settings = {
        "num_vectors": len(vectors), "num_moments": int(held["moments"]), "vector_factory": iter(vectors),
        "bounds": tuple(held["bounds"]), "eps": float(held["eps"]),
    }  # fmt: skip
    start = time.perf_counter()
    if "energies" in held:
        found = kwant.kpm.SpectralDensity(matrix, **settings)
    else:
        velocity = sp.csr_matrix((held["velocity"], held["velocity_indices"], held["velocity_indptr"]))
        found = kwant.kpm.Correlator(matrix, operator1=velocity, operator2=velocity, **settings)
    seconds = time.perf_counter() - start
    few = int(held.get("few", 0))
    wanted = found(held["energies"]) if "energies" in held else found.moments_matrix[:few, :few]
    print(json.dumps({"seconds": seconds, "wanted": np.real(wanted).tolist()}))


if __name__ == "__main__":
    main(sys.argv[1])
