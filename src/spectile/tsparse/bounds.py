"""The bound on the rounding error of each entry of a product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spectile.tsparse.rounding import Rounded
from spectile.tsparse.types import Operand, Precision


def error_bound(
    A: Operand,
    B: Operand,
    precision: Precision,
    values: Rounded,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the bound on each entry of C; see `spectile.tsparse.error_bound`.

    Parameters
    ----------
    A, B : Operand
    precision : Precision
    values : tuple
        The values of A and B as they are multiplied, and the exponents that they were scaled by or None.
    product : callable
        Returns the values of C in float64 for values of A and of B.
    """
    rounded_a, rounded_b, exponents = values
    a, b = _wide(rounded_a), _wide(rounded_b)
    if exponents is not None:
        a = np.ldexp(a, exponents[0][A.row_of_entries()])
        b = np.ldexp(b, exponents[1][B.indices])
    lost_a, lost_b = (np.abs(_wide(x.data) - y) for x, y in ((A, a), (B, b)))
    lost_a, lost_b = (lost if x.lost is None else lost + x.lost for lost, x in ((lost_a, A), (lost_b, B)))
    a, b = np.abs(a), np.abs(b)
    # The error of a complex product is below 2**1.5 units (R. Brent, C. Percival, P. Zimmermann, 2007: sqrt(5)).
    is_complex = precision.dtype.kind == "c"
    n = product(np.ones(len(a)), np.ones(len(b))) + (3 if is_complex else 1)
    gamma = n * precision.unit / (1 - n * precision.unit)
    bound = product(lost_a, np.abs(_wide(B.data))) + product(a, lost_b) + gamma * product(a, b)
    # The bound is itself rounded; two units more than cover it.  Below the normal range the error is absolute.
    least = 0.0 if not precision.unit else 2.0**-1074 if precision.name == "float64" else 2.0**-149
    return bound * (1 + 8 * n * 2.0**-53) + (4 if is_complex else 1) * n * least


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
