"""SpAMM as the papers state it, in plain NumPy: the recursion (Algorithm 1) and cuSpAMM's flat form (Algorithm 2).

Both multiply the same tiles.  A tile's norm is at most its parent's, so a leaf product that reaches tau is never cut
off above; :func:`quad_tree` sums squared norms upwards, which keeps that true in floating point.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.tiling import ceil_div


def pad(a: Any, rows: int, columns: int) -> Any:
    """Return `a` with zeros below and to the right (Section 3: "to avoid incomplete division")."""
    return np.pad(a, ((0, rows - a.shape[0]), (0, columns - a.shape[1])))


def tiles(a: Any, block: int) -> Any:
    """Return the tiles of `a` as an array of shape (tile rows, tile columns, block, block), zero-padded."""
    rows, columns = ceil_div(a.shape[0], block), ceil_div(a.shape[1], block)
    padded = pad(a, rows * block, columns * block)
    return padded.reshape(rows, block, columns, block).swapaxes(1, 2)


def norm_map(a: Any, block: int = 32) -> Any:
    """Return the Frobenius norms of the tiles (Equation 2; normmap), float64 whatever the dtype of `a`."""
    parts = (a.real, a.imag) if a.dtype.kind == "c" else (a,)
    return np.sqrt(sum(np.square(tiles(x, block), dtype=np.float64).sum(axis=(2, 3)) for x in parts))


def valid_set(norms_a: Any, norms_b: Any, tau: float) -> Any:
    """Return ``valid[i, k, j]``: whether A_ik B_kj is multiplied, ``||A_ik|| ||B_kj|| >= tau`` (Algorithm 2)."""
    return ~(norms_a[:, :, None] * norms_b[None, :, :] < tau)


def valid_map(norms_a: Any, norms_b: Any, tau: float) -> Any:
    """Return V, the number of valid products of each tile of C (Section 3.5.1, Figure 4)."""
    return valid_set(norms_a, norms_b, tau).sum(axis=1)


def spamm_flat(a: Any, b: Any, tau: float, block: int = 32) -> Any:
    """Return SpAMM(A, B, tau): C_ij = sum over the valid k of A_ik B_kj (Algorithm 2)."""
    tiles_a, tiles_b = tiles(a, block), tiles(b, block)
    valid = valid_set(norm_map(a, block), norm_map(b, block), tau)
    c = np.zeros((tiles_a.shape[0], tiles_b.shape[1], block, block), np.result_type(a, b))
    for i, k, j in np.argwhere(valid):
        c[i, j] += tiles_a[i, k] @ tiles_b[k, j]
    full = c.swapaxes(1, 2).reshape(c.shape[0] * block, c.shape[1] * block)
    return full[: a.shape[0], : b.shape[1]]


def quad_tree(a: Any, block: int, depth: int) -> list[Any]:
    """Return the norms of all levels of the quad-tree (Equation 1), the root first.

    Level t holds the norms of the 2^t x 2^t submatrices of A, padded to 2^depth tiles in each direction.
    """
    width = block << depth
    squares = [np.square(norm_map(pad(a, width, width), block))]
    for _ in range(depth):
        below = squares[0]
        squares.insert(0, below[0::2, 0::2] + below[0::2, 1::2] + below[1::2, 0::2] + below[1::2, 1::2])
    return [np.sqrt(square) for square in squares]


def spamm_recursive(a: Any, b: Any, tau: float, block: int = 32) -> tuple[Any, Any]:
    """Return SpAMM(A, B, tau) by the recursion of Algorithm 1, and the set of leaf products that it multiplied.

    The condition is tested at the root too, where the paper's listing starts below it: else a matrix of one tile
    would be multiplied whatever tau is.

    Returns
    -------
    c : array, shape (m, n)
        The product.
    multiplied : array of bool, shape (tile rows of A, tile columns of A, tile columns of B)
        Leaves (i, k, j) that were reached.
    """
    (m, inner), n = a.shape, b.shape[1]
    depth = max(0, math.ceil(math.log2(max(1, ceil_div(max(m, inner, n), block)))))
    count = 1 << depth
    width = block << depth
    norms_a, norms_b = quad_tree(a, block, depth), quad_tree(b, block, depth)
    tiles_a, tiles_b = tiles(pad(a, width, width), block), tiles(pad(b, width, width), block)
    multiplied = np.zeros((count, count, count), bool)

    def product(level: int, i: int, k: int, j: int) -> Any:
        if norms_a[level][i, k] * norms_b[level][k, j] < tau:
            size = block << (depth - level)
            return np.zeros((size, size), np.result_type(a, b))
        if level == depth:
            multiplied[i, k, j] = True
            return tiles_a[i, k] @ tiles_b[k, j]
        return np.block(
            [
                [
                    product(level + 1, 2 * i + p, 2 * k, 2 * j + q)
                    + product(level + 1, 2 * i + p, 2 * k + 1, 2 * j + q)
                    for q in (0, 1)
                ]
                for p in (0, 1)
            ]
        )

    c = product(0, 0, 0, 0)[:m, :n]
    return c, multiplied[: ceil_div(m, block), : ceil_div(inner, block), : ceil_div(n, block)]


def tau_for_ratio(
    norms_a: Any, norms_b: Any, valid_ratio: float, tolerance: float, iterations: int
) -> tuple[float, float]:
    """Return tau for a valid ratio and the ratio that it gives, by the steps of the GPU's search, one after another.

    The bound doubles from the mean product on while more than wanted is left, then bisection; the best threshold seen
    is taken, 0 before the first.  Products are compared in the dtype of the norms, and where their mean is beyond the
    largest number, there is none: NaN.

    Parameters
    ----------
    norms_a, norms_b : array, shapes (p, k) and (q, k)
        Norm maps, that of B transposed.
    valid_ratio, tolerance, iterations
        As in :func:`spectile.nearsparse.tune_tau`.
    """
    kind = norms_a.dtype.type
    with np.errstate(invalid="ignore", over="ignore"):
        products = norms_a[:, None] * norms_b[None]
        sums = norms_a.sum(axis=0, dtype=np.float64) * norms_b.sum(axis=0, dtype=np.float64)
    mean = float(sums.sum()) / products.size
    none = math.isnan(mean) or (mean == math.inf and valid_ratio < 1)
    best = (math.nan if none else 0.0, 1.0)
    if none or valid_ratio >= 1 or not mean > 0:
        return best

    def ratio_at(tau: float) -> float:
        return np.count_nonzero(~(products < kind(tau))) / products.size

    low, high = 0.0, mean
    while ratio_at(high) > valid_ratio + tolerance and high < 1e300:
        low, high = high, 2 * high
    tau, left = high, iterations + 1
    while True:
        ratio = ratio_at(tau)
        if abs(ratio - valid_ratio) < abs(best[1] - valid_ratio):
            best = tau, ratio
        if left <= iterations:
            low, high = (tau, high) if ratio > valid_ratio else (low, tau)
        left -= 1
        if left == 0 or abs(best[1] - valid_ratio) < tolerance:
            return best
        tau = 0.5 * (low + high)


def skipped_bound(norms_a: Any, norms_b: Any, tau: float) -> float:
    """Return sqrt(sum_ij (sum over the skipped k of ||A_ik|| ||B_kj||)^2) >= ||E||_F, E of Equation 5."""
    products = norms_a[:, :, None] * norms_b[None, :, :]
    return float(np.linalg.norm(np.where(products < tau, products, 0.0).sum(axis=1)))


def assigned_loads(valid: Any, stride: int) -> Any:
    """Return the work of each thread block when it takes `stride` x `stride` tiles of C with equal gaps (Figure 4b).

    ``loads[i, j]`` sums V over C[i + p BDIM/s, j + q BDIM/s], p and q below s.

    Parameters
    ----------
    valid : array, shape (p, q)
        V; both dimensions are divisible by `stride`.
    stride : int
        s in the paper.
    """
    rows, columns = valid.shape[0] // stride, valid.shape[1] // stride
    return valid.reshape(stride, rows, stride, columns).sum(axis=(0, 2))
