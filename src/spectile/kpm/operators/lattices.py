"""Small lattice Hamiltonians for KPM besides the topological insulator: chain, graphene, Anderson's disordered cube."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile.core.options import whole_number


def chain(length: int, *, periodic: bool = False) -> Any:
    """Return the free chain with hopping −1: H_{n,n±1} = −1, energies −2 cos k.

    Parameters
    ----------
    length : int
        Number of sites, at least 3.
    periodic : bool
        Close the chain to a ring.

    Returns
    -------
    csr_array, float64, shape (length, length)
    """
    length = whole_number(length, "length", 3)
    entries = [-np.ones(length - 1)] * 2
    offsets = [-1, 1]
    if periodic:
        entries += [-np.ones(1)] * 2
        offsets += [-(length - 1), length - 1]
    return sp.diags_array(entries, offsets=offsets, shape=(length, length), format="csr")


def graphene(nx: int, ny: int) -> Any:
    """Return the nearest-neighbour Hamiltonian of periodic graphene, hopping −1, two sites (A, B) in a cell.

    Parameters
    ----------
    nx, ny : int
        Unit cells along the two lattice vectors, at least 3 each.

    Returns
    -------
    csr_array, float64, shape (2 nx ny, 2 nx ny)
        Its spectrum is symmetric, so all odd moments vanish.
    """
    nx, ny = whole_number(nx, "nx", 3), whole_number(ny, "ny", 3)
    cell = np.arange(nx * ny).reshape(nx, ny)
    a = np.concatenate([cell.ravel()] * 3)
    b = np.concatenate([cell.ravel(), np.roll(cell, 1, 0).ravel(), np.roll(cell, 1, 1).ravel()])
    upper = sp.coo_array((-np.ones(a.size), (2 * a, 2 * b + 1)), shape=(2 * cell.size,) * 2)
    return (upper + upper.T).tocsr()


def anderson(size: int, *, disorder: float, rng: int | np.random.Generator | None = None) -> Any:
    """Return Anderson's model on a periodic cube: hopping −1, on-site energies uniform in [−W/2, W/2].

    Parameters
    ----------
    size : int
        Sites along an edge, at least 3.
    disorder : float
        W, in units of the hopping (the transition in the band centre is at W ≈ 16.5).
    rng : int, Generator or None
        Seed or generator of the on-site energies.

    Returns
    -------
    csr_array, float64, shape (size³, size³)
    """
    size = whole_number(size, "size", 3)
    site = np.arange(size**3).reshape(size, size, size)
    rows = np.concatenate([site.ravel()] * 6)
    columns = np.concatenate([np.roll(site, step, axis).ravel() for axis in range(3) for step in (1, -1)])
    hopping = sp.coo_array((-np.ones(rows.size), (rows, columns)), shape=(site.size,) * 2)
    energies = np.random.default_rng(rng).uniform(-disorder / 2, disorder / 2, site.size)
    return (hopping + sp.diags_array(energies)).tocsr()
