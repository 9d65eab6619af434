"""The dense product on a CPU, and whether it is faster than skipping.

Costs are counted in multiply-adds of a dense product: the rate of the processor is in all of them.  A tile product
takes longer than its share of a large dense product, and what is done once for each entry (norms, packing, a tile of C
that is written) is dear where the other two dimensions are small.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.placement import CORE_RATES
from spectile.nearsparse.bounds import Rounding, rounding_terms
from spectile.nearsparse.types import Request

# A multiply-add of a valid tile product, over one of a dense product.
TILED = 1.6
# Multiply-adds in whose time an entry of A or B is squared for the norms, packed, or read by a dense product, and an
# entry of C is written from a tile or by a dense product.
SQUARED, PACKED, READ, STORED, WRITTEN = 5.0, 30.0, 4.0, 12.0, 4.0
# Seconds of a search for a threshold, and of a tile product in it, and of the calls of one product.
SEARCHED, SEARCHED_TILE, CALLED = 300e-6, 10e-9, 150e-6
# What finding out is weighed against: skipping where so small a share is multiplied.
LEAST_SHARE = 0.05
# Squares that are summed in the precision of the entries.
_SUMMED = 1 << 15
# The smallest normal number of float64.
_NORMAL = 2.0**-1022


def is_faster(shape: tuple[int, int, int], request: Request, share: float, is_known: bool = False) -> bool:
    """Return whether the dense product is expected to be faster where a share of the tile products is valid.

    The shape is (m, k, n); norms and threshold, unless they are known, cost something more.
    """
    dense, skipping, found = _costs(shape, request, share)
    return dense <= skipping + (0.0 if is_known else found)


def is_taken_at_once(shape: tuple[int, int, int], request: Request) -> bool:
    """Return whether the dense product is taken before it is known how many tile products are valid.

    That is the choice which loses least where it is wrong: to the skipping of nearly all, or to norms and a search
    after which the dense product is taken all the same.
    """
    if request.valid_ratio is not None:
        return is_faster(shape, request, request.valid_ratio)
    dense, skipping, found = _costs(shape, request, LEAST_SHARE)
    return dense / (skipping + found) <= (found + dense) / dense


def _costs(shape: tuple[int, int, int], request: Request, share: float) -> tuple[float, float, float]:
    """Return the costs of the dense product, of skipping, and of finding out before how much is valid."""
    m, k, n = shape
    row = request.arithmetic
    parts, rate = row.parts, CORE_RATES["float64" if row.sums == "float64" else "float32"] / 2
    products, given, made = parts**2 * m * k * n, parts * (m * k + k * n), parts * m * n
    tiles = [size / request.block for size in shape]
    # A tile is packed where one of its products is valid.
    packed = parts * k * sum(size * (1 - (1 - share) ** count) for size, count in ((m, tiles[2]), (n, tiles[0])))
    found = SQUARED * given
    if request.tau is None:
        found += rate * (SEARCHED + SEARCHED_TILE * math.prod(tiles))
    skipping = TILED * share * products + PACKED * packed + STORED * made + rate * CALLED
    return products + READ * given + WRITTEN * made, skipping, found


class Prospect(NamedTuple):
    """What is known of a product by its sizes and what is wanted alone."""

    at_once: bool  #: Whether the dense product is taken before it is known how many tile products are valid.
    rounding: Rounding | None  #: The bound of rounding, where an error is wanted.


@functools.lru_cache(maxsize=256)
def prospect(shape: tuple[int, int, int], request: Request) -> Prospect:
    """Return what is known of a product of (m, k, n)."""
    terms = rounding_terms(shape, request.precision) if request.within_error else None
    return Prospect(is_taken_at_once(shape, request), terms)


def tells(a: Any, b: Any, out: Any, request: Request, terms: Rounding | None) -> bool:
    """Return whether a dense product is known to be what was asked for, by a look that takes little beside it.

    That is one at all entries of C or at those of A and B, which are fewer; where it does not tell, norm maps do.

    NaN and infinity in A or B leave some in C; and no entry of C is above ``||A||_F ||B||_F``, so that one that is far
    above what underflows is enough to see that rounding stays within a part of that.  Warnings of NumPy are the
    caller's.
    """
    few = 2 * out.size <= a.size + b.size or not (a.flags.c_contiguous and b.flags.c_contiguous)
    if few and request.alpha == 1 and request.atol is None and (terms is None or terms.lift_a == 0):
        least = _least_norm(out) / math.sqrt(out.size)  # the largest is not below their root mean square
        if not 0 < least < math.inf:
            real = [out.real, out.imag] if out.dtype.kind == "c" else [out]
            # NaN is the largest and the least where there is one.
            ends = [float(end) for part in real for end in (part.max(), part.min())]
            if not all(map(math.isfinite, ends)):
                return terms is None and not request.check_finite
            least = max(map(abs, ends))
        return terms is None or terms.underflow <= 0.9 * (request.value - terms.relative) * least
    if terms is None and not request.check_finite:
        return True
    norm_a, norm_b = _least_norm(a), _least_norm(b)
    if not (0 < norm_a < math.inf and 0 < norm_b < math.inf):
        return False
    if terms is None:
        return True
    rounding = terms.relative * (1 + terms.lift_a / norm_a) * (1 + terms.lift_b / norm_b)
    within = 1.1 * norm_a * norm_b < terms.largest and norm_a * norm_b > _NORMAL
    bound = rounding + terms.underflow / norm_a / norm_b
    # The norms are too small by a hundredth at most.
    return within and bound <= (request.value if request.atol is None else 0.98 * request.atol / norm_a / norm_b)


def _least_norm(x: Any) -> float:
    """Return a Frobenius norm, a hundredth too small at most and not too large; NaN where it is not easily told."""
    if not x.flags.c_contiguous:
        return math.nan
    flat, total = x.reshape(-1), 0.0
    # Sums of so many squares are off by 2^-9 at most, in any order; those of tiny entries are too small.
    for first in range(0, flat.size, _SUMMED):
        part = flat[first : first + _SUMMED]
        total += float(np.vdot(part, part).real)
    return 0.99 * math.sqrt(total) if total >= 0 else math.nan


def multiply(a: Any, b: Any, alpha: float, out: Any) -> None:
    """Compute alpha A B into `out`, which is apart from both."""
    np.matmul(a, b, out=out)
    if alpha != 1:
        np.multiply(out, out.dtype.type(alpha), out=out)
