"""Matrices whose spectra are hard to differentiate, and costs that do not depend on the gauge."""

import itertools

import numpy as np

#: Eigenvalues; the first three form a closed cluster or are apart from the others.
SPECTRA = {
    "random": [0.3, 1.1, 2.0, 3.2, 4.7],
    "coinciding": [1.0, 1.0, 1.0, 2.0, 2.0],
    "cluster": [1.0, 1.0 + 1e-9, 1.0 + 3e-9, 2.0, 3.0],
    "rank deficient": [0.0, 0.0, 0.0, 1.0, 2.5],
}
CLOSED = 3


def with_spectrum(values, complex_valued, seed=0):
    """Return a Hermitian matrix with given eigenvalues and random eigenvectors."""
    rng, n = np.random.default_rng(seed), len(values)
    entries = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if complex_valued else 0)
    q = np.linalg.qr(entries)[0]
    a = (q * np.asarray(values)) @ q.conj().T
    return (a + a.conj().T) / 2


def random_spectrum(rng, n):
    """Return values in clusters of random sizes, ascending, and the bounds of the clusters."""
    sizes = []
    while sum(sizes) < n:
        sizes.append(int(min(rng.integers(1, 4), n - sum(sizes))))
    centres = np.cumsum(rng.uniform(0.5, 1.5, len(sizes))) - 2
    bounds = np.cumsum([0, *sizes])
    return np.repeat(centres, sizes), list(itertools.pairwise(bounds))


def random_terms(rng, n, clusters):
    """Return random numbers and a matrix for each term of `cost`."""
    return [(*rng.standard_normal(3), rng.standard_normal((n, n))) for _ in clusters]


def cost(xp, w, v, clusters, terms):
    """Return a cost that depends on sums over closed clusters alone; `terms` are of the library of w and v."""
    total = 0.0
    for (low, high), (first, second, third, matrix) in zip(clusters, terms, strict=True):
        part = v[:, low:high]
        inside = (part * ((matrix + matrix.T) @ part).conj()).sum().real
        values = w[low:high].sum()
        total = total + first * xp.sin(inside) + second * xp.sin(w[low:high]).sum() + third * inside * values
    return total
