"""Random sparse matrices of many structures, made by NumPy or CuPy where they are used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile_study.everyday.problem import Place


def places_of(lengths: Any, xp: Any) -> tuple[Any, Any]:
    """Return the row of each entry of rows of so many entries, and its number within the row."""
    ends = xp.cumsum(lengths)
    total = int(ends[-1]) if len(lengths) else 0
    entry = xp.arange(total, dtype=np.int64)
    row = xp.searchsorted(ends, entry, side="right")
    return row, entry - (ends - lengths)[row]


def lengths_about(rows: int, entries: float, rng: Any, xp: Any) -> Any:
    """Return entries of rows, whole numbers whose mean is about `entries`, one at least."""
    return xp.maximum(1, xp.floor(entries + rng.random(rows))).astype(np.int64)


def power_lengths(rows: int, entries: float, exponent: float, most: int, rng: Any, xp: Any) -> Any:
    """Return entries of rows by a power law of this exponent, whose mean is about `entries` where `most` lets it."""
    weights = (1.0 - rng.random(rows)) ** (-1.0 / exponent)
    weights *= entries / float(weights.mean())
    return xp.clip(xp.floor(weights + rng.random(rows)), 1, max(1, most)).astype(np.int64)


def offsets_around(side: int, dimensions: int, wanted: int) -> np.ndarray:
    """Return steps on a lattice, as differences of site numbers: those to the `wanted` nearest sites, itself first."""
    reach = 1 + int(wanted ** (1 / dimensions) / 2) + 1
    axes = np.meshgrid(*[np.arange(-reach, reach + 1)] * dimensions, indexing="ij")
    steps = np.stack([axis.ravel() for axis in axes], axis=1)
    order = np.lexsort((*steps.T, (steps**2).sum(axis=1)))[:wanted]
    return steps[order] @ (side ** np.arange(dimensions))


def csr(rows: Any, columns: Any, shape: tuple[int, int], dtype: Any, rng: Any, place: Place) -> Any:
    """Return a canonical CSR matrix with entries at the places given, each once, and random values.

    Parameters
    ----------
    rows, columns : array of int64
        Places, in any order; those that stand more than once count once.
    shape : (int, int)
    dtype : dtype
        bool, float32 or float64; True, or normal numbers, of which none is 0: SciPy leaves out what is 0 of a product.
    rng, place
        The generator of the values, and where the arrays are.
    """
    xp = place.xp
    key = _each_once(rows * shape[1] + columns, xp)
    if np.dtype(dtype).kind == "b":
        return from_keys(key, xp.ones(len(key), bool), shape, place)
    values = rng.standard_normal(len(key), dtype=dtype)
    return from_keys(key, xp.where(values == 0, xp.ones_like(values), values), shape, place)


def _each_once(keys: Any, xp: Any) -> Any:
    """Return numbers in order, each once; the hash table of NumPy's ``unique`` takes fifty times as long."""
    keys = xp.sort(keys)
    return keys[xp.concatenate([xp.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])]


def from_keys(key: Any, values: Any, shape: tuple[int, int], place: Place) -> Any:
    """Return the CSR matrix whose entries lie at ascending ``row * columns + column``."""
    xp = place.xp
    row = key // shape[1]
    pointer = xp.zeros(shape[0] + 1, np.int64)
    pointer[1:] = xp.cumsum(xp.bincount(row, minlength=shape[0]))
    index = (key - row * shape[1]).astype(np.int32)
    made = place.sparse.csr_matrix((values, index, pointer.astype(np.int32)), shape=shape)
    made.has_sorted_indices = made.has_canonical_format = True
    return made


def structured(kind: str, shape: tuple[int, int], entries: float, more: dict[str, Any], rng: Any, xp: Any) -> Any:
    """Return rows and columns of the entries of a structure.

    Parameters
    ----------
    kind : {"uniform", "power law", "banded", "blocks", "stencil", "hubs"}
        uniform: columns at random; power law: lengths of rows and of columns by one; banded: within a band; blocks:
        dense ones at random; stencil: neighbours on a lattice; hubs: uniform, and a few rows of up to a tenth of all
        columns.  Row i of m belongs to column i n/m, so that all are defined for any shape.
    shape : (int, int)
        m and n.
    entries : float
        Of a row, on the average.
    more : dict
        ``exponent`` of the power law, ``reach`` of the band in rows' lengths, ``block``, ``dimensions`` of the lattice,
        ``hubs`` and ``hub_share``: rows, and their share of the columns.
    rng, xp
        The generator, and NumPy or CuPy.

    Returns
    -------
    array of int64, array of int64
    """
    m, n = shape
    entries = min(entries, n)
    if kind == "stencil":
        side = max(1, round(n ** (1 / more["dimensions"])))
        steps = xp.asarray(offsets_around(side, more["dimensions"], max(1, round(entries))))
        row = xp.arange(m, dtype=np.int64)
        columns = (row * n // m)[:, None] + steps[None, :]
        inside = (columns >= 0) & (columns < n)
        return xp.broadcast_to(row[:, None], columns.shape)[inside], columns[inside]
    if kind == "blocks":
        b = min(more["block"], m, n)
        tall, wide = -(-m // b), -(-n // b)
        across = lengths_about(tall, max(1.0, entries / b), rng, xp)
        row, _ = places_of(across, xp)
        column = rng.integers(0, wide, len(row))
        inner = xp.arange(b, dtype=np.int64)
        rows = (row * b)[:, None, None] + inner[None, :, None] + xp.zeros((1, 1, b), np.int64)
        columns = (column * b)[:, None, None] + inner[None, None, :] + xp.zeros((1, b, 1), np.int64)
        inside = (rows < m) & (columns < n)
        return rows[inside], columns[inside]
    if kind == "power law":
        lengths = power_lengths(m, entries, more["exponent"], n // 10, rng, xp)
        row, _ = places_of(lengths, xp)
        # Popular columns are scattered over the matrix.
        order = xp.argsort(rng.random(n))
        # The share x of the most popular columns has the share x^(1 - 1/exponent) of the entries.
        popular = rng.random(len(row)) ** (more["exponent"] / (more["exponent"] - 1))
        column = order[xp.minimum(n - 1, (n * popular).astype(np.int64))]
        return row, column
    row, _ = places_of(lengths_about(m, entries, rng, xp), xp)
    if kind == "banded":
        half = max(1.0, more["reach"] * entries)
        column = row * n // m + xp.floor((2 * rng.random(len(row)) - 1) * half).astype(np.int64)
        return row, xp.clip(column, 0, n - 1)
    column = rng.integers(0, n, len(row))
    if kind == "hubs":
        long = max(1, round(more["hub_share"] * n))
        which = rng.integers(0, m, more["hubs"])
        row = xp.concatenate([row, xp.repeat(which, long)])
        column = xp.concatenate([column, rng.integers(0, n, long * more["hubs"])])
    return row, column


def hermitian(low: Any, high: Any, size: int, dtype: Any, style: str, rng: Any, place: Place) -> Any:
    """Return a Hermitian CSR matrix with entries at the pairs (low, high), at their mirror images and on the diagonal.

    Parameters
    ----------
    low, high : array of int64
        Rows and columns; pairs of equal ones are left out, and the order within a pair does not matter.
    size : int
        N.
    dtype : dtype
        float32, float64, complex64 or complex128.
    style : {"constant", "disorder", "random"}
        Hops -1 and no diagonal; hops -1 and random energies; random hops, complex ones with phases, and energies.
    rng, place
        The generator of the values, and where the arrays are.
    """
    xp, dtype = place.xp, np.dtype(dtype)
    one, two = xp.minimum(low, high), xp.maximum(low, high)
    pair = _each_once((one * size + two)[one != two], xp)
    one, two = pair // size, pair % size
    real = dtype.type(0).real.dtype
    if style == "random":
        value = (2 * rng.random(len(pair)) - 1).astype(dtype)
        if dtype.kind == "c":
            angle = 2 * math.pi * rng.random(len(pair))
            value *= (xp.cos(angle) + 1j * xp.sin(angle)).astype(dtype)
    else:
        value = xp.full(len(pair), -1, dtype)
    keys, values = [pair, two * size + one], [value, value.conj()]
    if style != "constant":
        site = xp.arange(size, dtype=np.int64)
        keys.append(site * size + site)
        values.append((2 * rng.random(size) - 1).astype(real).astype(dtype))
    key = xp.concatenate(keys)
    order = xp.argsort(key)
    return from_keys(key[order], xp.concatenate(values)[order], (size, size), place)
