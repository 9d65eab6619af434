"""Eigenvalues and eigenvectors of a tridiagonal matrix by divide and conquer."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.core.replay import DIRECT, Direct
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.choose import rotation_elements, rotation_threads
from spectile.evd.cuda.matrix import Matrix, empty_matrix
from spectile.evd.cuda.tridiagonal import merge
from spectile.evd.cuda.units import DIVIDE, LEAVES
from spectile.evd.cuda.workspace import SMALL_ORDER, merge_sizes, padded_order

TEAR_SHAPE = Shape((1,), 256, 256 * 8)


def leaf_shape(levels: int, leaf: int) -> Shape:
    """Launch of `leaves` for 2^levels leaves."""
    return Shape((2**levels,), rotation_threads(leaf), 8 * (rotation_elements(leaf) + leaf) + 4 * leaf)


def divide_and_conquer(d: Any, e: Any, space: Matrix | None = None, part: Direct = DIRECT) -> tuple[Any, Matrix]:
    """Return all eigenvalues, ascending, and eigenvectors of the tridiagonal matrix, by divide and conquer in float64.

    The order is padded to leaf 2^levels with decoupled entries above the spectrum, so that all merges of a level have
    one size and run as one batch.  Both halves of Q merge between two places each, in the diagonal blocks and beside
    them.  The last merge of a large matrix multiplies only what is not deflated, for which the host reads the counts,
    and writes over its own input, a group of rows at a time; that of a small one writes all columns to another place.

    d and e have the shape (n,).  `space` is memory for Q: `padded_order` columns, and its leading dimension.  `part`
    runs all up to the last merge of a large matrix, and has the memory.  Columns 0 ... n − 1 of Q are the eigenvectors;
    eigenvalues, shape (n,), are NaN where the matrix holds NaN or infinity.
    """
    n = len(d)
    levels, order = padded_order(n)
    q = space or part.space(lambda: empty_matrix(order, order, np.float64))
    if levels and n < SMALL_ORDER:
        z = part.space(lambda: empty_matrix(order, order, np.float64))
        return part(_merge_all, d, e, q, n, levels, z), z
    w, bound, merges, starts, s = part(merge_below, d, e, q, n, levels)
    if levels:
        merge.LastMerge(Blas(np.float64), q, merges, starts, merge_sizes(n), s).run()
    return w[:n] * bound, q


def merge_below(d: Any, e: Any, q: Matrix, n: int, last: int) -> tuple[Any, Any, merge.Merges, tuple[int, int], Any]:
    """Tear a matrix, solve the leaves and merge, up to a level's rank-one problems, without their vectors.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    q : Matrix
    n : int
        Order before padding.
    last : int
        The level.

    Returns
    -------
    w : cupy.ndarray, shape (order,)
        Eigenvalues over the norm.
    bound : cupy.ndarray, shape (1,)
        The norm.
    merges : Merges
    starts : (int, int)
        First columns of the halves' blocks in Q.
    s : cupy.ndarray
        Room for the rank-one eigenvectors.
    """
    import cupy

    levels, order = padded_order(n)
    leaf = order >> levels
    w, torn, coupling, bound = (cupy.empty(size, np.float64) for size in (order, order, order, 1))
    kernel(DIVIDE, "tear")(TEAR_SHAPE, d, e, np.int32(n), np.int32(leaf), np.int32(order), torn, coupling, bound)
    places = w, np.uintp(q.pointer), np.int64(q.ld)
    kernel(LEAVES, "leaves")(leaf_shape(levels, leaf), torn, coupling, np.int32(leaf), *places)
    merges = merge.Merges(w, coupling, order, 2**levels)
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
    return w, bound, merges, starts, s


def _merge_all(d: Any, e: Any, q: Matrix, n: int, last: int, z: Matrix) -> Any:
    """`merge_below` and the last merge, of which all is multiplied, to Z; return the eigenvalues."""
    w, bound, merges, starts, s = merge_below(d, e, q, n, last)
    m, half, chunk, blas = merges.m, merges.m // 2, merge_sizes(n)[0], Blas(np.float64)
    for first in range(0, m, chunk):
        columns = min(chunk, m - first)
        merges.write_vectors(s, columns, m, first=first)
        for top, start in zip((0, half), starts, strict=True):
            blas.gemm(
                *(half, columns, half, 1.0, q.at(top, start), q.ld, address(s) + 8 * top, m),
                *(0.0, z.at(top, first), z.ld),
            )
    return w[:n] * bound


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
