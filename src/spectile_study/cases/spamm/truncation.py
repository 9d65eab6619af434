"""What thresholds leave out of a product, in float64: Table 3, where truncated matrices stand beside, and Table 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spectile.nearsparse.api import spamm
from spectile_study.inputs import decay

# Shares of the intermediate products that cuSPARSE's ALG3 is told to compute at a time, the bytes that each of its two
# work spaces takes for one of them, and how many it takes: 2.0e9 at a time pass, 4.1e9 are "insufficient resources".
SHARES, PRODUCT_BYTES, MOST_PRODUCTS = (0.05, 0.02, 0.01, 0.005), 24, 2**31


def toeplitz_squared(first: Any) -> Iterator[Any]:
    """Yield the rows of T^2 for the symmetric Toeplitz matrix T with this first column, in O(n) each.

    T^2 is not Toeplitz, but (T^2)_{i+1,j+1} - (T^2)_{ij} = t_{i+1} t_{j+1} - t_{n-1-i} t_{n-1-j}.
    """
    n = len(first)
    circulant = np.fft.rfft(np.concatenate([first, [0.0], first[:0:-1]]))
    edge = np.fft.irfft(circulant * np.fft.rfft(first, 2 * n), 2 * n)[:n]
    row = edge
    for i in range(n):
        yield row
        if i + 1 < n:
            below = np.empty(n)
            below[0] = edge[i + 1]
            below[1:] = row[:-1] + first[i + 1] * first[1:] - first[n - 1 - i] * first[:0:-1]
            row = below


def intermediate_products(first: Any) -> int:
    """Return how many products of two nonzeros T^2 consists of, T the symmetric Toeplitz matrix of this column."""
    until = np.cumsum(first != 0)
    counts = until + until[::-1] - int(first[0] != 0)
    return int(counts @ counts)


def share_at_a_time(products: int, free_bytes: float) -> float:
    """Return the largest share that cuSPARSE takes and whose work spaces fit 0.9 of the memory, or the least."""
    most = min(MOST_PRODUCTS, 0.9 * free_bytes / (2 * PRODUCT_BYTES))
    return next((share for share in SHARES if share * products < most), SHARES[-1])


def difference_norms(rows: Any, others: Any) -> tuple[float, float]:
    """Return the Frobenius norm of a difference, summed in float64 and as the paper did: in one float32, row by row.

    A float32 sum stops growing at 2^31 when the addends are below half its last place: sqrt(2^31) = 46,340.95.
    """
    total, single = 0.0, np.zeros(1, np.float32)
    for row, other in zip(rows, others, strict=True):
        difference = row - other
        total += float(difference @ difference)
        squares = np.square(difference.astype(np.float32))
        single = np.add.accumulate(np.concatenate([single, squares]), dtype=np.float32)[-1:]
    return float(np.sqrt(total)), float(np.sqrt(single[0]))


def left_out(first: Any, taus: Sequence[float], norms: Any, block: int, step: int = 8) -> list[float]:
    """Return ‖C − T²‖ / ‖T²‖ of SpAMM's square C of a symmetric Toeplitz matrix T, for each threshold.

    Tiles of T depend on their offset alone: tile (I, J) of C is a sum over p of T_p T_q with p + q = I − J, p running
    from I − N + 1 to I for N tile rows, and whether a product is valid depends on p and q.  So one sum along p gives
    all tiles of a block diagonal.  T decays slowly, and every `step`-th row and column stands for all of them.

    Parameters
    ----------
    first : array, shape (n,)
        First column of T, float64; n a multiple of `block`.
    taus : sequence of float
    norms : array, shape (n / block,)
        Norms of the tiles of T by the absolute value of their offset, in the precision in which they are compared.
    block, step : int
        Edge of a tile, a multiple of `step`.
    """
    count = len(first) // block
    offsets = np.arange(-(count - 1), count)
    every, some = np.arange(block), np.arange(step // 2, block, step)
    rows = first[abs(block * offsets[:, None, None] + some[:, None] - every)]
    columns = first[abs(block * offsets[:, None, None] + every[:, None] - some)]
    norms = norms[abs(offsets)]
    missing, whole = np.zeros(len(taus)), 0.0
    for diagonal in range(count):
        # p from diagonal − (N − 1) to N − 1, and q = diagonal − p from N − 1 down.
        products = rows[diagonal:] @ columns[diagonal:][::-1]
        sizes = norms[diagonal:] * norms[diagonal:][::-1]
        twice = 2 if diagonal else 1  # C is symmetric
        whole += twice * _windows(products, count)
        for place, tau in enumerate(taus):
            missing[place] += twice * _windows(np.where((sizes < tau)[:, None, None], products, 0.0), count)
    return [float(value) for value in np.sqrt(missing / whole)]


def _windows(terms: Any, count: int) -> float:
    """Return the sum of squares of all sums of `count` successive terms."""
    sums = np.cumsum(np.concatenate([np.zeros((1, *terms.shape[1:])), terms]), axis=0)
    return float(np.square(sums[count:] - sums[:-count]).sum())


def truncation_values(n: int, tau: float, truncation: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the values of SpAMM at `tau` and of the truncated product at `truncation`, in float64 (Table 3)."""
    a = decay.algebraic(n)
    first = a[0].copy()
    norm_c = float(np.sqrt(sum(float(row @ row) for row in toeplitz_squared(first))))
    result = spamm(a, a, tau=tau, backend="cpu")
    ours, printed = difference_norms(toeplitz_squared(first), result.c)
    near_sparse = {
        "norm_c": norm_c,
        "valid_ratio": result.valid_ratio,
        "error_fro": ours,
        "error_fro_float32": printed,
        "error_rel": ours / norm_c,
        "error_bound_rel": result.error_bound / norm_c,
    }
    kept = np.where(first < truncation, 0.0, first)
    theirs, printed = difference_norms(toeplitz_squared(first), toeplitz_squared(kept))
    # Each diagonal but the main one occurs twice.
    diagonals = np.flatnonzero(kept)
    nonzeros = int(np.sum((n - diagonals) * np.where(diagonals, 2, 1)))
    truncated = {
        "norm_c": norm_c,
        "nz_ratio": nonzeros / n**2,
        "error_fro": theirs,
        "error_fro_float32": printed,
        "error_rel": theirs / norm_c,
    }
    return near_sparse, truncated
