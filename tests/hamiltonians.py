"""Lattice models whose response is known, with the positions of their sites and the periods of the sample."""

import numpy as np
import scipy.sparse as sp


def haldane(length, mass=0.0, second=0.2, phase=np.pi / 2):
    """Haldane's model on a periodic rhombus of length² cells: matrix, positions, periods."""
    vectors = np.array([[1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    cell = np.arange(length**2).reshape(length, length)
    a, b = 2 * cell, 2 * cell + 1
    hops = [(a, np.roll(b, shift, axis), -1.0) for shift, axis in ((0, 0), (1, 0), (1, 1))]
    for sublattice, sign in ((a, 1), (b, -1)):
        for one, two in ((-1, 0), (0, 1), (1, -1)):
            hops.append((sublattice, np.roll(sublattice, (-one, -two), (0, 1)), second * np.exp(1j * sign * phase)))
    return _matrix(hops, np.tile([mass, -mass], length**2)), *_places(
        length, vectors, [np.zeros(2), vectors.sum(0) / 3]
    )


def graphene(length):
    """Graphene, real."""
    matrix, positions, periods = haldane(length, second=0.0)
    return matrix.real.tocsr(), positions, periods


def hofstadter(length, flux):
    """A square lattice in a magnetic field of `flux` quanta a cell: matrix, positions, periods."""
    site = np.arange(length**2).reshape(length, length)
    x = np.divmod(site, length)[0]
    hops = [(site, np.roll(site, -1, 0), -1.0), (site, np.roll(site, -1, 1), -np.exp(2j * np.pi * flux * x))]
    return _matrix(hops, np.zeros(site.size)), *_places(length, np.eye(2), [np.zeros(2)])


def _matrix(hops, energies):
    upper = sp.csr_array((energies.size,) * 2, dtype=complex)
    for rows, columns, value in hops:
        values = np.broadcast_to(value, rows.shape).ravel().astype(complex)
        upper = upper + sp.coo_array((values, (rows.ravel(), columns.ravel())), shape=upper.shape).tocsr()
    return (upper + upper.conj().T + sp.diags_array(energies.astype(complex))).tocsr()


def _places(length, vectors, basis):
    i, j = np.divmod(np.arange(length**2), length)
    corner = i[:, None] * vectors[0] + j[:, None] * vectors[1]
    return (corner[:, None] + np.array(basis)).reshape(-1, 2), length * vectors


def unit_vectors(rows, chosen):
    block = np.zeros((rows, len(chosen)))
    block[chosen, np.arange(len(chosen))] = 1
    return block
