"""How rows are divided over devices or ranks: own rows, the halo that others own, interior and boundary."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array

#: Runs of interior rows shorter than this are computed with the boundary: fewer, longer pieces.
SHORTEST_RUN = 64


def localize(rows: Any, edges: Array, number: int) -> tuple[Any, Array, list[tuple[int, int, int]]]:
    """Renumber the columns of a partition: its own rows first, then the halo.

    Parameters
    ----------
    rows : scipy.sparse CSR matrix, shape (rows of the partition, N)
        The partition.
    edges : ndarray, shape (partitions + 1,)
        First row of each partition.
    number : int
        The partition's number.

    Returns
    -------
    local : CSR matrix, shape (own rows, own rows + halo)
    halo : ndarray
        Rows of the whole matrix, ascending, that belong to others.
    receives : list of (owner, start, stop)
        What one other partition owns of the halo; contiguous, since the halo is sorted: it is received in place.
    """
    local = rows.copy()
    first, last = int(edges[number]), int(edges[number + 1])
    own = (local.indices >= first) & (local.indices < last)
    halo = np.unique(local.indices[~own])
    columns = np.where(own, local.indices - first, 0)
    columns[~own] = last - first + np.searchsorted(halo, local.indices[~own])
    local.indices = columns.astype(local.indices.dtype)
    local._shape = (last - first, last - first + halo.size)
    owner = np.searchsorted(edges, halo, side="right") - 1
    receives = [
        (int(rank), int(np.searchsorted(owner, rank)), int(np.searchsorted(owner, rank, side="right")))
        for rank in np.unique(owner)
    ]
    return local, halo, receives


def split_rows(indptr: Array, own: Array, blocks: list[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
    """Split row blocks into runs (start, stop) that need no halo and runs that do: interior and boundary.

    `indptr` has the shape (rows + 1,), and `own`, (nnz,), tells of each entry whether its column is this rank's.
    """
    foreign = np.concatenate([[0], np.cumsum(~own)])
    needs = np.diff(foreign[indptr]) > 0
    interior: list[tuple[int, int]] = []
    boundary: list[tuple[int, int]] = []
    for start, stop in blocks:
        changes = np.flatnonzero(np.diff(needs[start:stop])) + start + 1
        for low, high in itertools.pairwise([start, *changes.tolist(), stop]):
            target = boundary if needs[low] or high - low < SHORTEST_RUN else interior
            if target and target[-1][1] == low and low != start:
                target[-1] = (target[-1][0], high)
            else:
                target.append((low, high))
    return interior, boundary


def local_planes(
    sample: TopologicalInsulator, dtype: np.dtype[Any], first: int, planes: int, xp: Any
) -> tuple[Any, Any]:
    """Return the stored matrix of some planes of the topological insulator, and the numbers of its columns' rows.

    Parameters
    ----------
    sample : TopologicalInsulator
        The whole sample.
    dtype : dtype
        Type of the entries.
    first, planes : int
        Own planes.
    xp : module
        numpy or cupy: where to build it.

    Returns
    -------
    matrix : CSR matrix
        Own rows; columns are own planes, then the plane ahead, then the one behind.
    order : ndarray, int32
        Row of the whole matrix, in natural order, for each column.
    """
    plane = 4 * sample.ny * sample.nz
    held = np.arange(first - 1, first + planes + 1) % sample.nx
    # A periodic sample of the planes held: its first and last plane have wrong neighbours, and are not taken.
    around = TopologicalInsulator(planes + 2, sample.ny, sample.nz, sample.potential[held], sample.hopping)
    own = around.matrix(dtype, xp=xp)[plane : (planes + 1) * plane]
    own.indices = ((own.indices.astype(np.int64) - plane) % ((planes + 2) * plane)).astype(np.int32)
    # The plane behind is the first of the periodic sample, and so its last after the shift.
    starts = xp.asarray(np.roll(held, -1).astype(np.int32) * np.int32(plane))
    return own, (starts[:, None] + xp.arange(plane, dtype=np.int32)).ravel()


def longest_run(flags: Array) -> tuple[int, int]:
    """Return (start, stop) of the longest run of true flags; (0, 0) where none is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest])
