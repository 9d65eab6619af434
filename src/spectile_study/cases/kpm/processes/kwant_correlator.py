"""Kwant's moments of two velocities, in an environment of its own: ``python kwant_correlator.py npz moments few``.

Kwant 1.5 needs NumPy 1, so this file is run by another Python, which knows nothing of spectile.  The archive holds H
and the velocity as CSR arrays, the random vectors, shape (R, N), and the bounds of the spectrum with Kwant's eps.
Prints one line of JSON: the seconds of the call, and its first moments.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np


def main(problem: str, moments: int, few: int) -> None:
    """Time the moments and print some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that this does not need is missing
        import kwant.kpm
    import scipy.sparse as sp

    with np.load(problem) as held:
        matrix = sp.csr_matrix((held["data"], held["indices"], held["indptr"]))
        velocity = sp.csr_matrix((held["velocity"], held["velocity_indices"], held["velocity_indptr"]))
        vectors = held["vectors"]
        settings = {"bounds": tuple(held["bounds"]), "eps": float(held["eps"])}
    start = time.perf_counter()
    found = kwant.kpm.Correlator(
        matrix, operator1=velocity, operator2=velocity, num_vectors=len(vectors), num_moments=moments,
        vector_factory=iter(vectors), **settings
    )  # fmt: skip
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "moments": np.real(found.moments_matrix[:few, :few]).tolist()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
