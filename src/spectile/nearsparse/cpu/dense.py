"""The dense product on a CPU, and whether it is faster than skipping.

Costs are counted in multiply-adds of a dense product: the rate of the processor is in all of them.  A tile product
takes longer than its share of a large dense product, and what is done once for each entry (norms, packing, a tile of C
that is written) is dear where the other two dimensions are small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.nearsparse.bounds import rounding_terms
from spectile.nearsparse.types import Request

# A multiply-add of a valid tile product, over one of a dense product.
TILED = 1.45
# Multiply-adds in whose time an entry of A or B is squared for the norms, packed, or read by a dense product, and an
# entry of C is written from a tile or by a dense product.
SQUARED, PACKED, READ, STORED, WRITTEN = 5.0, 25.0, 4.0, 12.0, 4.0
# Those of a search for a threshold in small norm maps, and of the calls of one product.
SEARCHED, CALLED = 8e6, 3e6
# What finding out is weighed against: skipping where so small a share is multiplied.
LEAST_SHARE = 0.05


def is_faster(shape: tuple[int, int, int], request: Request, share: float) -> bool:
    """Return whether the dense product is expected to be faster where a share of the tile products is valid.

    Parameters
    ----------
    shape : tuple of int
        (m, k, n).
    request : Request
        What is wanted; a threshold that is searched counts.
    share : float
        Of the tile products.
    """
    dense, skipping, _ = _costs(shape, request, share)
    return dense <= skipping


def is_taken_at_once(shape: tuple[int, int, int], request: Request) -> bool:
    """Return whether the dense product is taken before it is known how many tile products are valid.

    That is the choice which loses least where it is wrong: to the skipping of nearly all, or to norms and a search
    after which the dense product is taken all the same.
    """
    if request.valid_ratio is not None:
        return is_faster(shape, request, request.valid_ratio)
    dense, skipping, found = _costs(shape, request, LEAST_SHARE)
    return dense / skipping <= (found + dense) / dense


def _costs(shape: tuple[int, int, int], request: Request, share: float) -> tuple[float, float, float]:
    """Return the costs of the dense product and of skipping, and what of this finds out how much is valid."""
    m, k, n = shape
    parts = request.arithmetic.parts
    products, given, made = parts**2 * m * k * n, parts * (m * k + k * n), parts * m * n
    dense = products + READ * given + WRITTEN * made
    found = SQUARED * given + (SEARCHED if request.tau is None else 0.0)
    return dense, found + TILED * share * products + PACKED * math.sqrt(share) * given + STORED * made + CALLED, found


def needs_norms(request: Request, shape: tuple[int, int, int]) -> bool:
    """Return whether norms of A and B are needed to see that a wanted error is kept.

    Of float16 small entries count as larger ones, and an error is of the product without its factor.
    """
    if request.rtol is None:
        return False
    terms = rounding_terms(shape, request.precision)
    return request.alpha != 1 or terms.lift_a > 0 or terms.relative >= request.rtol


def tells(out: Any, request: Request, shape: tuple[int, int, int]) -> bool:
    """Return whether a dense product alone tells that nothing is to be refused.

    NaN and infinity in A or B leave some in C; and no entry of C is above ``||A||_F ||B||_F``, so that one that is far
    above what underflows is enough to see that rounding stays within `rtol`.
    """
    real = [out.real, out.imag] if out.dtype.kind == "c" else [out]
    with np.errstate(invalid="ignore"):  # NaN is the largest and the least where there is one
        ends = [float(end) for part in real for end in (part.max(), part.min())]
    if not all(map(math.isfinite, ends)):
        return request.rtol is None and not request.check_finite
    if request.rtol is None:
        return True
    terms = rounding_terms(shape, request.precision)
    return terms.underflow <= 0.9 * (request.rtol - terms.relative) * max(map(abs, ends))


def multiply(a: Any, b: Any, alpha: float, out: Any) -> None:
    """Compute alpha A B into `out`, which is apart from both."""
    with np.errstate(all="ignore"):  # what overflows has an infinite bound
        np.matmul(a, b, out=out)
        if alpha != 1:
            np.multiply(out, out.dtype.type(alpha), out=out)
