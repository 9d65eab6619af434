"""Hermitian matrices whose states have the symmetries of start vectors: of few whole numbers, signs or roots of one."""

import itertools

import numpy as np
import scipy.linalg


def small(n, entries):
    """Return every symmetric matrix of order n with these entries, shape (count, n, n)."""
    rows, columns = np.triu_indices(n)
    chosen = np.array(list(itertools.product(entries, repeat=len(rows))), np.float64)
    found = np.zeros((len(chosen), n, n))
    found[:, rows, columns] = found[:, columns, rows] = chosen
    return found


def hops(n, hop=1.0, neighbour=1):
    """Return hops along a ring."""
    found = hop * np.roll(np.eye(n), neighbour, axis=1)
    return found + found.conj().T


def summed(*parts):
    """Return the Kronecker sum."""
    found = np.zeros((1, 1))
    for part in parts:
        found = np.kron(found, np.eye(len(part))) + np.kron(np.eye(len(found)), part)
    return found


def state(n, amplitudes):
    """Return the projector, not normalized, on a state: its amplitudes by sites."""
    found = np.zeros(n)
    found[list(amplitudes)] = list(amplitudes.values())
    return np.outer(found, found)


def families(n):
    """Return matrices by name, of about this order, 3 or more."""
    half, bits = n // 2, int(np.log2(n))
    bond = np.array([[0.0, 1.0], [1.0, 0.0]])
    pairs, path = np.kron(np.eye(half), bond), np.eye(n, k=1) + np.eye(n, k=-1)
    both = np.arange(n) < half
    return {
        "ring": hops(n),
        "ring with a flux": hops(n, 1j),
        "second neighbours": hops(n) - hops(n, neighbour=2),
        "path": path,
        "Laplacian of a path": np.diag(path.sum(0)) - path,
        "complete": np.ones((n, n)) - np.eye(n),
        "complete, negative": np.eye(n) - np.ones((n, n)),
        "star": state(n, dict.fromkeys(range(n), 1)) * (np.arange(n) * np.arange(n)[:, None] == 0) - state(n, {0: 1}),
        "bipartite": (both[:, None] != both).astype(float),
        "hypercube": summed(*[bond] * bits),
        "Hadamard": scipy.linalg.hadamard(2**bits).astype(float),
        "pairs": pairs,
        "pairs and two strong ones": scipy.linalg.block_diag(pairs, 2 * bond, -3 * bond),
        "reversal": np.eye(n)[::-1],
        "torus": summed(hops(3), hops(max(3, n // 3))),
        "one state": np.ones((n, n)),
        "one state of neighbours": path / 4 - 3 * state(n, {half - 1: 1, half: -1}),
        "one state of far sites": path / 4 + 3 * state(n, {0: 2, n - 1: 1}),
        "root of two": scipy.linalg.block_diag([[0, 2**0.5], [2**0.5, 1]], np.zeros((n - 2, n - 2))),
    }  # fmt: skip


def check_bounds(found, energies, shift=0.0, eps=2.0**-52, what=""):
    """Assert that bounds hold a spectrum, but for what the recurrence's margin does, and are not much wider.

    `energies` ascend, those of a matrix less `shift`, whose numbers have this precision.
    """
    low, high, half = found[0] - shift, found[1] - shift, (energies[-1] - energies[0]) / 2
    size = np.abs(energies + shift).max()
    least, rounding = 4096 * eps * (size or 1.0), 8 * eps * size
    assert max(low - energies[0], energies[-1] - high) <= 0.005 * half + rounding, what or found
    assert (high - low) / 2 <= max(1.1 * half, 1.01 * least) + rounding, what or found
