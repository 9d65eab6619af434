"""Eigenvalues and eigenvectors of a tridiagonal matrix by divide and conquer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.core.replay import DIRECT, Direct
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix, empty_matrix, scaled_values
from spectile.evd.cuda.tridiagonal import merge
from spectile.evd.cuda.tridiagonal.sturm import norm_bound
from spectile.evd.cuda.units import LEAVES
from spectile.evd.cuda.workspace import merge_sizes, most_leaf, padded_order
from spectile.evd.types import SCALARS


def leaf_shape(levels: int, leaf: int) -> tuple[Unit, Shape]:
    """Return the unit of the kernel that solves the 2^levels leaves, and its launch."""
    threads = most_leaf(leaf)
    return LEAVES[threads], Shape((2**levels,), threads, (2 * threads * (threads + 1) + threads) * 8 + threads * 4)


def divide_and_conquer(d: Any, e: Any, space: Matrix | None = None, part: Direct = DIRECT) -> tuple[Any, Matrix]:
    """Return all eigenvalues, ascending, and eigenvectors of the tridiagonal matrix, by divide and conquer in float64.

    The order is padded to leaf 2^levels with decoupled entries above the spectrum, so that all merges of a level have
    one size and run as one batch.  Both halves of Q merge between two places each, in the diagonal blocks and beside
    them; the last merge writes over its own input, a group of rows at a time.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    space : Matrix, optional
        Memory for Q: `padded_order` columns, and its leading dimension.
    part : core.replay.Direct, optional
        Which runs all up to the last merge, and has the memory.

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
    levels, order = padded_order(n)
    torn, bound = _tear(cupy.asnumpy(d), cupy.asnumpy(e), order >> levels, order)
    pair = part.space(lambda: cupy.empty((2, order), np.float64))
    pair.set(torn)
    q = space or part.space(lambda: empty_matrix(order, order, np.float64))
    w, merges, starts, s = part(merge_below, pair, q, n, levels)
    if levels:
        merge.LastMerge(Blas(np.float64), q, merges, starts, merge_sizes(n), s).run()
    return scaled_values(w[:n], 0, SCALARS["float64"], bound), q


def merge_below(pair: Any, q: Matrix, n: int, last: int) -> tuple[Any, merge.Merges, tuple[int, int], Any]:
    """Solve the leaves of a torn matrix and merge, up to a level's rank-one problems, without their vectors.

    Parameters
    ----------
    pair : cupy.ndarray, shape (2, order)
        Diagonal and couplings.
    q : Matrix
    n : int
        Order before padding.
    last : int
        The level.

    Returns
    -------
    w : cupy.ndarray, shape (order,)
        Eigenvalues.
    merges : Merges
    starts : (int, int)
        First columns of the halves' blocks in Q.
    s : cupy.ndarray
        Room for the rank-one eigenvectors.
    """
    import cupy

    d, e = pair
    levels, order = padded_order(n)
    leaf = order >> levels
    w = cupy.empty(order, np.float64)
    unit, shape = leaf_shape(levels, leaf)
    kernel(unit, "leaves")(shape, d, e, np.int32(leaf), w, np.uintp(q.pointer), np.int64(q.ld))
    merges = merge.Merges(w, e, order, 2**levels)
    chunk, _ = merge_sizes(n)
    s = cupy.empty(order * chunk, np.float64)
    blas = Blas(np.float64)
    starts = (0, order // 2)  # of the first and of the second half's blocks, which change sides at each level
    for level in range(1, last + 1):
        m = leaf * 2**level
        merges.solve(q, m, starts[0])
        if level < last:
            _merge_level(blas, q, merges, m, starts, chunk, s)
            starts = starts[1], starts[0]
    return w, merges, starts, s


def _tear(d: Any, e: Any, leaf: int, order: int) -> tuple[Any, float]:
    """Return the matrix over its norm, padded and torn between the leaves, as diagonal and couplings; and its norm."""
    n = len(d)
    bound = norm_bound(d, e, "eigenvectors") or 1.0
    both = np.zeros((2, order))
    torn, coupling = both
    torn[:] = 2.0
    torn[:n] = d / bound
    coupling[: n - 1] = e[: n - 1] / bound
    cuts = np.arange(leaf, order, leaf)
    torn[cuts - 1] -= np.abs(coupling[cuts - 1])
    torn[cuts] -= np.abs(coupling[cuts - 1])
    return both, bound


def _merge_level(
    blas: Blas, q: Matrix, merges: merge.Merges, m: int, starts: tuple[int, int], chunk: int, s: Any
) -> None:
    """Multiply both halves' blocks of Q with their rank-one eigenvectors, `chunk` columns at a time, beside them."""
    count, half = merges.order // m, m // 2
    middle, stride, each = merges.order // 2, m * (1 + q.ld), count // 2
    for first in range(0, m, chunk):
        columns = min(chunk, m - first)
        merges.write_vectors(s, columns, m, first=first)
        for number, (start, target) in enumerate(zip(starts, reversed(starts), strict=True)):
            top, vectors = number * middle, address(s) + 8 * number * each * m * columns
            for row in (0, half):
                blas.batched(
                    *(half, columns, half, 1.0, q.at(top + row, start + row), q.ld, stride),
                    *(vectors + 8 * row, m, m * columns, 0.0),
                    *(q.at(top + row, target + first), q.ld, stride, each),
                )


def shapes(n: int) -> Iterator[tuple[str, Shape]]:
    """Yield every launch for a tridiagonal matrix of order n, with the kernel's name."""
    levels, order = padded_order(n)
    yield "leaves", leaf_shape(levels, order >> levels)[1]
    yield from merge.shapes(order >> levels, levels, merge_sizes(n))
