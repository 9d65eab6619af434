"""Pairs of patterns whose product is analysed, kept for the next call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile import tsparse
from spectile.autodiff.contraction import Patterns

#: Patterns whose products are kept.
KEPT = 16


class Pair:
    """Two patterns, the shapes of their matrices and the analysed product, compared by what the patterns hold."""

    def __init__(self, left: Any, right: Any) -> None:
        self._parts = (
            left.shape, right.shape, *(x.tobytes() for m in (left, right) for x in (m.indptr, m.indices))
        )  # fmt: skip
        self._hash = hash(self._parts)
        self._factors = left, right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def product(self) -> Any:
        """The analysed product."""
        left, right = self._factors
        return tsparse.symbolic(left, right, backend="cpu")

    @functools.cached_property
    def patterns(self) -> Patterns:
        """Row pointers and columns of A, B and C."""
        (left, right), product = self._factors, self.product
        arrays = [left.indptr, left.indices, right.indptr, right.indices, product.indptr, product.indices]
        a, i, b, j, c, k = (np.asarray(x, np.int64) for x in arrays)
        return Patterns(a, i, b, j, c, k, right.shape[1])

    def length(self, name: str) -> int:
        """Return the stored entries of "a", "b" or "c"."""
        of = self.patterns
        return len({"a": of.a_columns, "b": of.b_columns, "c": of.c_columns}[name])


@functools.lru_cache(KEPT)
def _kept(pair: Pair) -> Pair:
    return pair


def pair_of(left: Any, right: Any) -> Pair:
    """Return the analysed pair of two matrices with these patterns, the kept one where it is known.

    Raises ValueError if the shapes do not fit.
    """
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"matrices of shapes {tuple(left.shape)} and {tuple(right.shape)} cannot be multiplied")
    return _kept(Pair(left, right))
