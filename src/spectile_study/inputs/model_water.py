"""Model water: sites in space, and norms of tiles that decay between them as those of small true matrices do.

A tile of 24 functions is a molecule.  Norms of the tiles between two molecules at a distance r are those of a normal
law of their logarithm, ``log norm = constant - r / length + scatter g``, where g is made of the numbers of the two
molecules and a seed: nothing is stored, so that a million molecules take the memory of their places alone.  The
constants are fitted to the iterates of a purification of a true Fock matrix.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.jit import njit
from spectile_study.inputs.water import FUNCTIONS

#: Molecules of the true matrix that decay and levels are taken from.
TRUE_MOLECULES = 20
#: What g reaches at most: the sum of four uniform numbers, with variance 1.
MOST_SCATTER = 2 * math.sqrt(3.0)


class Decay(NamedTuple):
    """Norms of the tiles of a matrix by the distance of their molecules.

    Attributes
    ----------
    diagonal : float
        Norm of a tile on the diagonal.
    constant, length, scatter : float
        Of the logarithm of the others; the length in ångström.
    """

    diagonal: float
    constant: float
    length: float
    scatter: float


def fitted(matrix: Any, oxygens: Any) -> Decay:
    """Return the decay of a matrix of whole molecules, in the order of their oxygens (in ångström)."""
    count = len(oxygens)
    norms = np.linalg.norm(np.reshape(matrix, (count, FUNCTIONS, count, FUNCTIONS)), axis=(1, 3))
    first, second = np.triu_indices(count, 1)
    apart, held = np.linalg.norm(oxygens[first] - oxygens[second], axis=1), norms[first, second] > 0
    apart, logs = apart[held], np.log(norms[first, second][held])
    slope, constant = np.polyfit(apart, logs, 1)
    if not slope < 0:
        raise ValueError(f"norms of {count} molecules do not fall with the distance: take more of them")
    scatter = float((logs - constant - slope * apart).std())
    return Decay(float(norms.diagonal().mean()), float(constant), float(-1 / slope), scatter)


def levels(fock: Any) -> np.ndarray:
    """Return the mean eigenvalues of the tiles on the diagonal of a Fock matrix of whole molecules."""
    count = len(fock) // FUNCTIONS
    tiles = np.reshape(fock, (count, FUNCTIONS, count, FUNCTIONS))[np.arange(count), :, np.arange(count)]
    return np.linalg.eigvalsh(tiles).mean(axis=0)


def fock(decay: Decay, energies: np.ndarray, oxygens: np.ndarray, seed: int = 1) -> np.ndarray:
    """Return a Fock matrix of model water, in an orthogonal basis: levels in random frames, and random couplings.

    Parameters
    ----------
    decay : Decay
        Norms of the tiles between molecules.
    energies : ndarray, shape (24,)
        Of each molecule alone.
    oxygens : ndarray, shape (count, 3)
        Places, in ångström.
    seed : int
        Of frames and couplings.

    Returns
    -------
    ndarray, shape (24 count, 24 count)
        Symmetric, float64.
    """
    count = len(oxygens)
    out = np.zeros((count, FUNCTIONS, count, FUNCTIONS))
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        frame = np.linalg.qr(rng.normal(size=(FUNCTIONS, FUNCTIONS)))[0]
        tile = (frame * energies) @ frame.T
        out[i, :, i] = (tile + tile.T) / 2
        apart = np.linalg.norm(oxygens[i + 1 :] - oxygens[i], axis=1)
        norms = np.exp(decay.constant - apart / decay.length + decay.scatter * rng.normal(size=len(apart)))
        couplings = rng.normal(size=(len(apart), FUNCTIONS, FUNCTIONS))
        couplings *= (norms / np.linalg.norm(couplings, axis=(1, 2)))[:, None, None]
        out[i, :, i + 1 :] = couplings.transpose(1, 0, 2)
        out[i + 1 :, :, i] = couplings.transpose(0, 2, 1)
    n = FUNCTIONS * count
    return out.reshape(n, n)


class Places(NamedTuple):
    """Molecules in cells of space, for the search of neighbours.

    Attributes
    ----------
    at : ndarray, shape (count, 3)
        Places, in the order along the curve.
    low : ndarray, shape (3,)
        Corner of the first cell.
    width : float
        Of a cell.
    shape : ndarray of int64, shape (3,)
        Cells along each axis.
    starts, members : ndarray of int64
        Molecules of each cell, one cell after the other, and where those of each begin.
    """

    at: np.ndarray
    low: np.ndarray
    width: float
    shape: np.ndarray
    starts: np.ndarray
    members: np.ndarray

    @classmethod
    def of(cls, at: np.ndarray, width: float = 6.0) -> Places:
        """Return the cells of molecules."""
        low = at.min(axis=0)
        cells = ((at - low) / width).astype(np.int64)
        shape = cells.max(axis=0) + 1
        numbers = (cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
        members = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[members], np.arange(int(shape.prod()) + 1))
        return cls(np.ascontiguousarray(at), low, width, shape, starts, members)


@njit(nogil=True)
def _scatter(i: int, j: int, seed: int) -> float:
    """Return g of a pair: about normal, of variance 1, from the bits of its numbers (splitmix64)."""
    low, high = (i, j) if i < j else (j, i)
    x = (
        np.uint64(low) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(high)
        + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    total = 0.0
    for part in range(4):
        total += float((x >> np.uint64(16 * part)) & np.uint64(0xFFFF))
    return (total / 65535.0 - 2.0) * math.sqrt(3.0)


@njit(nogil=True)
def near(i: int, least: float, decay: Decay, seed: int, places: Places, found: Any, logs: Any) -> int:
    """Find the molecules whose tiles with molecule i have norms of at least exp(least); return how many.

    `found` and `logs` get their numbers and the logarithms of the norms, as many as they have room for.
    """
    reach = decay.length * (decay.constant + MOST_SCATTER * decay.scatter - least)
    count = 0
    if math.log(decay.diagonal) >= least:
        found[0], logs[0], count = i, math.log(decay.diagonal), 1
    if not reach > 0:
        return count
    at, shape = places.at, places.shape
    begin, end = np.empty(3, np.int64), np.empty(3, np.int64)
    for axis in range(3):
        begin[axis] = max(0, math.floor((at[i, axis] - reach - places.low[axis]) / places.width))
        end[axis] = min(shape[axis], math.floor((at[i, axis] + reach - places.low[axis]) / places.width) + 1)
    for x in range(begin[0], end[0]):
        for y in range(begin[1], end[1]):
            row = (x * shape[1] + y) * shape[2]
            for p in range(places.starts[row + begin[2]], places.starts[row + end[2]]):
                j = places.members[p]
                square = 0.0
                for axis in range(3):
                    square += (at[i, axis] - at[j, axis]) ** 2
                if j != i and square < reach * reach:
                    size = decay.constant - math.sqrt(square) / decay.length
                    if size + MOST_SCATTER * decay.scatter >= least:
                        size += decay.scatter * _scatter(i, j, seed)
                        if size >= least and count < len(found):
                            found[count], logs[count] = j, size
                            count += 1
    return count


@njit(nogil=True)
def kept_products(
    rows: Any, least: float, tau: float, decay: Decay, seed: int, places: Places, room: int, out: Any
) -> None:  # fmt: skip
    """Count the products of norms of at least exp(tau) in some rows of the square, of tiles of at least exp(least)."""
    found, logs, others, held = np.empty(room, np.int64), np.empty(room), np.empty(room, np.int64), np.empty(room)
    for place in range(len(rows)):
        out[place] = 0
        for p in range(near(rows[place], least, decay, seed, places, found, logs)):
            out[place] += near(found[p], max(least, tau - logs[p]), decay, seed, places, others, held)


@njit(nogil=True)
def needed_tiles(
    rows: Any, first: int, last: int, least: float, tau: float, decay: Decay, seed: int, places: Places, room: int,
    out: Any,
) -> None:  # fmt: skip
    """Count the tiles in some rows that products of the rows from `first` to before `last` need."""
    found, logs = np.empty(room, np.int64), np.empty(room)
    for place in range(len(rows)):
        out[place], largest = 0, -math.inf
        for p in range(near(rows[place], least, decay, seed, places, found, logs)):
            if first <= found[p] < last:
                largest = max(largest, logs[p])
        if largest > -math.inf:
            out[place] = near(rows[place], max(least, tau - largest), decay, seed, places, found, logs)
