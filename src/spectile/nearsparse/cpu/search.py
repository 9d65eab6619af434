"""What norm maps tell on the CPU: counts of valid products, the bound of what is skipped, and the search for tau."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.core.threads import blas_threads, results
from spectile.nearsparse.bounds import NORM_SLACK, largest_tau, rounding_bound, skipping_limit, square_unit
from spectile.nearsparse.cpu.norms import Maps, shifted
from spectile.nearsparse.types import Request

# Tile products below which starting threads costs more than it gains.
SERIAL = 64
# What these norms may be too small by.
SLACK = NORM_SLACK["float64"]


@njit(nogil=True)
def _count(sorted_a: Any, sorted_b: Any, tau: float) -> int:
    """Count the products that reach tau; row k holds the norms of A's column k, and of B's row k, in rising order."""
    count = 0
    for k in range(sorted_a.shape[0]):
        first = 0
        for i in range(sorted_a.shape[1] - 1, -1, -1):
            # The smaller the norm of A, the later the first norm of B that reaches tau with it.
            while first < sorted_b.shape[1] and sorted_a[k, i] * sorted_b[k, first] < tau:
                first += 1
            count += sorted_b.shape[1] - first
    return count


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _skipped(norms_a: Any, norms_bt: Any, tau: float, unit: float, first: int, last: int) -> float:
    """Sum over the tiles of C of (unit * sum of the skipped ||A_ik|| ||B_kj||)^2."""
    total = 0.0
    for i in range(first, last):
        for j in range(norms_bt.shape[0]):
            tile = 0.0
            for k in range(norms_a.shape[1]):
                product = norms_a[i, k] * norms_bt[j, k]
                tile += product if product < tau else 0.0
            total += (unit * tile) * (unit * tile)
    return total


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _divided(
    norms_a: Any, norms_bt: Any, tau: float, unit: float, first: int, last: int, block: int, depth: int, roundoff: float
) -> tuple[float, float, float]:
    """Sum over the tiles of C the squares of unit * s, skipped, and of unit * s and unit * gamma * s, multiplied.

    s is a sum of ||A_ik|| ||B_kj||, and gamma what the sum of so many products may be off by.
    """
    skipped = executed = errors = 0.0
    for i in range(first, last):
        for j in range(norms_bt.shape[0]):
            left, tile, count = 0.0, 0.0, 0
            for k in range(norms_a.shape[1]):
                product = norms_a[i, k] * norms_bt[j, k]
                if product < tau:
                    left += product
                else:
                    tile += product
                    count += 1
            # Two roundings more for alpha and for adding beta C.
            steps = (min(depth, count * block) + 2) * roundoff
            left, tile = unit * left, unit * tile
            skipped += left * left
            executed += tile * tile
            tile *= steps / (1 - steps)
            errors += tile * tile
    return skipped, executed, errors


def count_valid(norms_a: Any, norms_b: Any, tau: float) -> int:
    """Return how many tile products have ``||A_ik|| ||B_kj|| >= tau``, for finite norms."""
    return _counter(norms_a, norms_b)(tau)


def _counter(norms_a: Any, norms_b: Any) -> Callable[[float], int]:
    """Return `count_valid` of these norm maps: sorting them once makes each count a merge, O(n^2) for n^3 products."""
    sorted_a, sorted_b = np.sort(norms_a.T, axis=1), np.sort(norms_b, axis=1)
    return lambda tau: int(_count(sorted_a, sorted_b, tau))


@njit(nogil=True)
def _bound(norms_a: Any, norms_bt: Any, unit: float, tau: float) -> float:
    return math.sqrt(_skipped(norms_a, norms_bt, tau, unit, 0, norms_a.shape[0])) / unit * SLACK


def _tasks(maps: Maps) -> tuple[Any, Any, float, int, list[tuple[int, int]]]:
    """Return the maps of A and of B transposed, a unit for squares, threads, and the tile rows of their tasks."""
    a, bt = maps.a, np.ascontiguousarray(maps.b.T)
    threads = blas_threads() if a.size * len(bt) > SERIAL**3 else 1
    height = 1 if threads > 1 else max(1, len(a))
    rows = [(first, first + height) for first in range(0, len(a), height)]
    return a, bt, square_unit(math.prod(maps.largest)), threads, rows


def skipped_bounder(maps: Maps) -> Callable[[float], float]:
    """Return what bounds the Frobenius norm of what a tau skips: sqrt(sum_ij (sum_k ||A_ik|| ||B_kj||)^2)."""
    a, bt, unit, threads, rows = _tasks(maps)
    if threads == 1:
        return functools.partial(_bound, a, bt, unit)

    def bound(tau: float) -> float:
        square = sum(results(rows, threads, lambda task: _skipped(a, bt, tau, unit, *task)))
        return math.sqrt(square) / unit * SLACK

    return bound


def tau_for_error(maps: Maps, limit: float) -> float:
    """Return the largest tau, to a relative 1e-6 and never above it, of which what is skipped is bounded by `limit`."""
    largest = float((maps.a.max(axis=0) * maps.b.max(axis=1)).max())
    return largest_tau(skipped_bounder(maps), largest, limit)


def share_of(norms_a: Any, norms_b: Any, count: int) -> float:
    """Return the share of all tile products that a count is, 1 where there are none."""
    products = norms_a.size * norms_b.shape[1]
    return count / products if products else 1.0


def tune_tau(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int = 20, tolerance: float = 0.01
) -> tuple[float, float]:
    """Search tau for a valid ratio as the paper does (Section 3.5.2), in finite norms.

    See :func:`spectile.nearsparse.tune_tau`.
    """
    mean = _mean_product(norms_a, norms_b)
    if valid_ratio == 1 or mean == 0:
        return 0.0, 1.0

    count = _counter(norms_a, norms_b)

    def ratio_at(tau: float) -> float:
        return share_of(norms_a, norms_b, count(tau))

    low, high = 0.0, mean
    tau, ratio = high, ratio_at(high)
    # Products beyond the largest number are above every threshold.
    while ratio > valid_ratio + tolerance and high < sys.float_info.max:
        low, high = high, min(2 * high, sys.float_info.max)
        tau, ratio = high, ratio_at(high)
    best = (tau, ratio) if abs(ratio - valid_ratio) < 1 - valid_ratio else (0.0, 1.0)
    for _ in range(iterations):
        if abs(best[1] - valid_ratio) < tolerance:
            break
        tau = low / 2 + high / 2
        if tau in (low, high):
            break
        ratio = ratio_at(tau)
        if abs(ratio - valid_ratio) < abs(best[1] - valid_ratio):
            best = tau, ratio
        if ratio > valid_ratio:
            low = tau
        else:
            high = tau
    return best


def _mean_product(norms_a: Any, norms_b: Any) -> float:
    """Return the mean product of two norms, the largest number where it is above; its sums leave no range."""
    p, q = (math.frexp(float(norms.max(initial=0.0)))[1] for norms in (norms_a, norms_b))
    with np.errstate(under="ignore"):
        sums = np.ldexp(norms_a, -p).sum(axis=0) @ np.ldexp(norms_b, -q).sum(axis=1)
    return min(shifted(float(sums) / max(1, norms_a.size * norms_b.shape[1]), p + q), sys.float_info.max)


def tune(maps: Maps, valid_ratio: float, iterations: int, tolerance: float) -> tuple[float, float]:
    """Search tau for a valid ratio; return it in the unit of A B, and the ratio that it leaves."""
    tau, ratio = tune_tau(maps.a, maps.b, valid_ratio, iterations, tolerance)
    if maps.exponent == 0:
        return tau, ratio
    tau = _least(maps, tau)
    return tau, share_of(maps.a, maps.b, count_valid(maps.a, maps.b, maps.inside(tau)))


def threshold(maps: Maps, request: Request, shape: tuple[int, int, int]) -> tuple[float, float]:
    """Return tau of a request, searched in the norm maps where it is not given, and in the unit of their products."""
    if request.tau is not None:
        tau = float(request.tau)
    elif request.valid_ratio is not None:
        tolerance = min(0.01, request.valid_ratio / 10)
        tau = _least(maps, tune_tau(maps.a, maps.b, request.valid_ratio, 60, tolerance)[0])
    else:
        limit = allowed(maps, request, shape)
        if limit == math.inf:
            return math.inf, math.inf
        tau = _least(maps, tau_for_error(maps, limit))
    return tau, maps.inside(tau)


def allowed(maps: Maps, request: Request, shape: tuple[int, int, int]) -> float:
    """Return what skipped products may add up to in the unit of the maps, infinity where A or B is zero.

    Raises ValueError if rounding alone is bounded by more than the error that is wanted.
    """
    scale = math.prod(maps.whole)
    if scale == 0:
        return math.inf
    rounding = _rounding(maps, request, shape)
    if request.atol is not None:
        return maps.inside(skipping_limit(request.asked, request.atol, rounding))
    return skipping_limit(request.asked, request.value * scale, maps.inside(rounding))


def _least(maps: Maps, tau: float) -> float:
    """Return the number nearest to a threshold in the unit of the maps, and not above it, in the unit of A B."""
    found = maps.outside(tau)
    if found == math.inf > tau:
        return sys.float_info.max
    return found if maps.inside(found) <= tau else math.nextafter(found, 0.0)


def _rounding(maps: Maps, request: Request, shape: tuple[int, int, int], **known: Any) -> float:
    """Return the bound of rounding; of norms beyond the range it takes their product alone."""
    half = maps.exponent // 2
    norm_a, norm_b = shifted(maps.whole[0], half), shifted(maps.whole[1], maps.exponent - half)
    return rounding_bound(shape, norm_a, norm_b, request.precision, **known)


def error_bound(
    maps: Maps, tau: float, request: Request, shape: tuple[int, int, int], norm_c: float, finite: bool = False
) -> float:
    """Return the bound of the error of a product, by what tau, in the unit of the maps, skips and by rounding.

    Rounding is that of the products which are multiplied, tile of C by tile: their norms, and not those of A and B, and
    as many terms of a sum as they have.  Of a product that is known to be `finite` no sum has overflowed.
    """
    row, depth = request.arithmetic, request.arithmetic.parts * shape[1]
    if (depth + 2) * row.sum_roundoff >= 1:
        return math.inf
    a, bt, unit, threads, rows = _tasks(maps)
    fixed = row.parts * request.block, depth, row.sum_roundoff
    squares = results(rows, threads, lambda task: _divided(a, bt, tau, unit, *task, *fixed)) or [(0.0, 0.0, 0.0)]
    skipped, executed, errors = (math.sqrt(sum(one)) / unit * SLACK for one in zip(*squares, strict=True))
    rounding = _rounding(
        maps, request, shape, alpha=request.alpha, beta=request.beta, norm_c=norm_c, finite=finite,
        of_tiles=(math.sqrt(row.parts) * maps.outside(errors), maps.outside(executed)),
    )  # fmt: skip
    return maps.outside(abs(request.alpha) * skipped) + rounding
