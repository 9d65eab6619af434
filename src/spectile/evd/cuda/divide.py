"""Eigenvalues and eigenvectors of a tridiagonal matrix by divide and conquer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix, empty_matrix
from spectile.evd.cuda.units import DIVIDE, launch

LEAF = 32


def padded_order(n: int) -> tuple[int, int]:
    """Return the levels, and the order, a multiple of 2^levels, that `divide_and_conquer` pads n to.

    Leaves are larger where they would need more than 3.5 % of padding otherwise.
    """
    levels = max(0, math.ceil(math.log2(n / LEAF)))
    order = -(-n // 2**levels) * 2**levels
    if levels and order > 1.035 * n:
        levels -= 1
        order = -(-n // 2**levels) * 2**levels
    return levels, order


def spare_elements(n: int) -> int:
    """Return how many elements a work space of 2.2 n² leaves beside the matrix, its panels and Q."""
    return int(1.2 * n * n) - 128 * n - padded_order(n)[1] ** 2


def merge_sizes(n: int) -> tuple[int, int]:
    """Return how many columns of the rank-one eigenvectors `divide_and_conquer` makes at a time, and for how many rows
    of each half the last merge does so.

    The last merge makes them again for each group of rows.  So many that the work space is 2.2 n² elements from
    n = 4096 on, the matrix included.
    """
    order = padded_order(n)[1]
    if n < 4096:  # a few MB: not worth making the rank-one eigenvectors again
        return min(order, 1024), order // 2
    left = spare_elements(n)
    columns = min(max(192, min(left // order // 2, 1024)), order)
    rows = max(192, min((left - order * columns) // (order + 2 * columns), order // 8))
    return columns, min(rows, order // 2)


def divide_and_conquer(d: Any, e: Any, space: Matrix | None = None) -> tuple[Any, Matrix]:
    """Return all eigenvalues, ascending, and eigenvectors of the tridiagonal matrix, by divide and conquer in float64.

    The order is padded to leaf 2^levels with decoupled entries above the spectrum, so that all merges of a level have
    one size and run as one batch.  Both halves of Q merge between two places each, in the diagonal blocks and beside
    them; the last merge writes over its own input, some rows at a time.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    space : Matrix, optional
        Memory for Q: `padded_order` columns, and its leading dimension.

    Returns
    -------
    w : cupy.ndarray, shape (n,)
    q : Matrix
        float64; columns 0 ... n − 1 are the eigenvectors.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix holds NaN or infinity.
    """
    import cupy

    n = len(d)
    d_host, e_host = cupy.asnumpy(d), cupy.asnumpy(e)
    size = np.abs(d_host)
    size[1:] += np.abs(e_host[: n - 1])
    size[:-1] += np.abs(e_host[: n - 1])
    bound = float(size.max())
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError("the tridiagonal matrix holds NaN or infinity: no eigenvectors")
    bound = bound or 1.0
    levels, order = padded_order(n)
    leaf = order >> levels
    torn, coupling = np.full(order, 2.0), np.zeros(order)
    torn[:n] = d_host / bound
    coupling[: n - 1] = e_host[: n - 1] / bound
    cuts = np.arange(leaf, order, leaf)
    torn[cuts - 1] -= np.abs(coupling[cuts - 1])
    torn[cuts] -= np.abs(coupling[cuts - 1])
    d, e = cupy.asarray(torn), cupy.asarray(coupling)

    blas = Blas(np.float64)
    q = space or empty_matrix(order, order, np.float64)
    w = cupy.empty(order, np.float64)
    name, threads = ("leaves", 32) if leaf <= 32 else ("large_leaves", 64)
    leaf_shared = (2 * threads * (threads + 1) + threads) * 8 + threads * 4
    launch(
        DIVIDE,
        name,
        2**levels,
        threads,
        (d, e, np.int32(leaf), w, np.uintp(q.pointer), np.int64(q.ld)),
        leaf_shared,
    )
    ds, zs, dk, zk, zr, offset = (cupy.empty(order, np.float64) for _ in range(6))
    column, kept, origin, of_rank, of_column = (cupy.empty(order, np.int32) for _ in range(5))
    count, turns = cupy.empty(2**levels, np.int32), cupy.empty(2**levels, np.int32)
    pairs, rotations = cupy.empty((order, 2), np.int32), cupy.empty((order, 2), np.float64)
    chunk, step = merge_sizes(n)
    s = cupy.empty(order * chunk, np.float64)
    shift, middle = 0, order // 2
    for level in range(1, levels + 1):
        m = leaf * 2**level
        h, merges, blocks, warps = m // 2, order // m, -(-m // 256), -(-m // 4)
        m32 = np.int32(m)
        matrix = (np.uintp(q.pointer), np.int64(q.ld))
        launch(DIVIDE, "order", (blocks, merges), 256, (w, *matrix, e, m32, np.int32(shift), ds, zs, column))
        arguments: tuple[Any, ...] = (ds, zs, column, e, m32, count, dk, zk, kept, turns, pairs, rotations)
        launch(DIVIDE, "deflate", merges, 256, arguments, 256 * (8 + 8 + 4 + 8))
        launch(DIVIDE, "secular", (warps, merges), 128, (e, m32, count, dk, zk, origin, offset))
        launch(DIVIDE, "refine_z", (warps, merges), 128, (m32, count, dk, zk, origin, offset, zr))
        arguments = (m32, count, dk, kept, origin, offset, w, of_rank, of_column)
        launch(DIVIDE, "rank", (blocks, merges), 256, arguments, 256 * 8)

        roots = (m32, count, dk, zr, origin, offset, of_rank, of_column)
        if merges == 1:
            _last_merge(blas, q, (shift, middle - shift), (chunk, step), roots, kept, (turns, pairs, rotations), s)
            break
        starts = (shift, middle - shift)  # columns of the first and of the second half's blocks
        for first in range(0, m, chunk):
            columns = min(chunk, m - first)
            listed = (np.uintp(0), np.int32(first), np.int32(columns), np.uintp(0), m32)
            launch(DIVIDE, "vectors", (columns, merges), 256, (*roots, *listed, s), 64)
            turned = (m32, turns, pairs, rotations, np.int32(columns), m32, s)
            launch(DIVIDE, "rotate", (-(-columns // 64), merges), 64, turned)
            stride, each = m * (1 + q.ld), merges // 2
            for number, (start, target) in enumerate(zip(starts, reversed(starts), strict=True)):
                top, vectors = number * middle, s.data.ptr + 8 * number * each * m * columns
                for half in (0, h):
                    blas.batched(
                        *(h, columns, h, 1.0, q.at(top + half, start + half), q.ld, stride),
                        *(vectors + 8 * half, m, m * columns, 0.0),
                        *(q.at(top + half, target + first), q.ld, stride, each),
                    )
        shift = middle - shift
    return w[:n] * bound, q


def _last_merge(
    blas: Blas, q: Matrix, starts: tuple[int, int], sizes: tuple[int, int], roots: tuple[Any, ...], kept: Any,
    turned: tuple[Any, ...], s: Any,
) -> None:  # fmt: skip
    """Merge the two halves of Q, from column `starts` on, in place; `sizes` as from `merge_sizes`.

    Only what is not deflated is multiplied: a dropped column that no rotation has touched moves to its place.
    """
    import cupy

    m = int(roots[0])
    h = m // 2
    k, of_rank, of_column = int(roots[1][0]), cupy.asnumpy(roots[6]), cupy.asnumpy(roots[7])
    turns, pairs, rotations = turned
    touched = cupy.asnumpy(pairs[: int(turns[0])])
    active = of_column >= 0
    active[touched.ravel()] = True
    column_of_rank = cupy.asnumpy(kept)[of_rank]
    moved = (of_rank >= k) & ~active[column_of_rank]
    products, moves = np.flatnonzero(~moved), np.flatnonzero(moved)
    halves = []  # of the columns of Q: those multiplied, then the others
    for start in (0, h):
        own = np.arange(start, start + h)
        halves.append(np.concatenate([own[active[own]], own[~active[own]]]))
    sources = []  # of the columns that only move, in the copies of the halves
    for half in halves:
        place = np.full(m, -1)
        place[half] = np.arange(h)
        sources.append(_list(place[column_of_rank[moves]]))
    # The rows of both halves of S, each filled up to the same number, so many that all columns are aligned.
    depth = max(int(active[:h].sum()), int(active[h:].sum()))
    depth = min(-(-depth // 16) * 16, h)
    rows, position = np.full(2 * depth, -1), np.zeros(m, np.int64)
    for start, first in ((0, 0), (h, depth)):
        own = start + np.flatnonzero(active[start : start + h])
        rows[first : first + len(own)] = own
        position[own] = first + np.arange(len(own))
    pairs = _list(position[touched])
    lists = [_list(half - start) for half, start in zip(halves, (0, h), strict=True)]
    product_list, move_list, row_list = _list(products), _list(moves), _list(rows)
    height = 2 * depth

    chunk, step = sizes
    both = empty_matrix(step, m, np.float64)
    parts = [both.pointer, both.at(0, h)]
    width = min(chunk, len(products))
    result = empty_matrix(step, 2 * width, np.float64)
    for row in range(0, h, step):
        here = min(step, h - row)
        for part, own, start, top in zip(parts, lists, starts, (row, row + h), strict=True):
            _move_columns(q.at(top, start), q.ld, own, part, both.ld, None, h, here)
        for first in range(0, len(products), chunk):
            columns = min(chunk, len(products) - first)
            listed = (product_list, np.int32(first), np.int32(columns), row_list, np.int32(height))
            launch(DIVIDE, "vectors", (columns, 1), 256, (*roots, *listed, s), 64)
            arguments = (roots[0], turns, pairs, rotations, np.int32(columns), np.int32(height), s)
            launch(DIVIDE, "rotate", (-(-columns // 64), 1), 64, arguments)
            places = product_list[first : first + columns]
            blas.batched(
                *(here, columns, depth, 1.0, both.pointer, both.ld, h * both.ld, s.data.ptr, height, depth),
                *(0.0, result.pointer, result.ld, width * result.ld, 2),
            )
            for number, top in enumerate((row, row + h)):
                _move_columns(result.at(0, number * width), result.ld, None, q.at(top, 0), q.ld, places, columns, here)
        for part, source, top in zip(parts, sources, (row, row + h), strict=True):
            _move_columns(part, both.ld, source, q.at(top, 0), q.ld, move_list, len(moves), here)


def _list(numbers: Any) -> Any:
    import cupy

    return cupy.asarray(np.ascontiguousarray(numbers, np.int32))


def _move_columns(
    source: int, lds: int, origins: Any, target: int, ldt: int, places: Any, columns: int, rows: int
) -> None:
    if columns:
        pointers = [np.uintp(0) if numbers is None else numbers for numbers in (origins, places)]
        arguments = (np.uintp(source), np.int64(lds), pointers[0], np.uintp(target), np.int64(ldt), pointers[1])
        launch(DIVIDE, "move_columns", (-(-rows // 1024), columns), 256, (*arguments, np.int32(rows)))
