"""The three products of a sparse trilinear form on fixed patterns, of which derivatives of a sparse product are made.

With the patterns of A, B and of C = A B, the form is ``sum a_ik b_kj c_ij`` over all k, i and j; each of its
derivatives with respect to one factor's stored entries is a product of the other two, masked by the pattern of the
first, and so are the derivatives of that one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from spectile.core.jit import njit
from spectile.core.pointers import without_read_only

Wanted = Literal["a", "b", "c"]


class Patterns(NamedTuple):
    """Row pointers and columns of A, B and C, whose rows have sorted columns without duplicates."""

    a_rows: np.ndarray
    a_columns: np.ndarray
    b_rows: np.ndarray
    b_columns: np.ndarray
    c_rows: np.ndarray
    c_columns: np.ndarray
    columns: int


def contract(patterns: Patterns, wanted: Literal["a", "b"], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the derivative of the form with respect to the entries of one matrix, for those of the other two in order.

    It has the pattern of the `wanted` one: (c Bᵀ) on A's, from b and c, or (Aᵀ c) on B's, from a and c; A B is a
    product's ``numeric``.
    """
    *indices, columns = patterns
    x, y = (without_read_only(np.ascontiguousarray(given)) for given in (x, y))
    out = np.zeros(len(patterns.a_columns if wanted == "a" else patterns.b_columns), x.dtype)
    place = np.zeros(columns, np.int64)
    a, b = (out, x) if wanted == "a" else (x, out)
    _contract(*indices, a, b, y, wanted == "a", place)
    return out


@njit(nogil=True)
def _contract(
    a_rows: Any, a_columns: Any, b_rows: Any, b_columns: Any, c_rows: Any, c_columns: Any, a: Any, b: Any, c: Any,
    of_a: bool, place: Any,
) -> None:  # fmt: skip
    for i in range(len(a_rows) - 1):
        for r in range(c_rows[i], c_rows[i + 1]):
            place[c_columns[r]] = r
        for p in range(a_rows[i], a_rows[i + 1]):
            k = a_columns[p]
            for q in range(b_rows[k], b_rows[k + 1]):
                r = place[b_columns[q]]
                if of_a:
                    a[p] += b[q] * c[r]
                else:
                    b[q] += a[p] * c[r]
