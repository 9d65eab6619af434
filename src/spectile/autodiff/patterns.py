"""Pairs of patterns whose product is analysed, kept for the next call."""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile import tsparse
from spectile.autodiff.contraction import Patterns, Wanted, contract
from spectile.autodiff.near_sparse import FLOATS

#: Patterns whose products are kept.
KEPT = 16
_NUMBERS = itertools.count()
#: Those that live by their numbers, which is how operators of PyTorch know them.
PAIRS: weakref.WeakValueDictionary[int, Pair] = weakref.WeakValueDictionary()


class Pair:
    """Two patterns, the shapes of their matrices and the analysed product, compared by what the patterns hold."""

    def __init__(self, left: Any, right: Any) -> None:
        self._parts = (
            left.shape, right.shape, *(x.tobytes() for m in (left, right) for x in (m.indptr, m.indices))
        )  # fmt: skip
        self._hash = hash(self._parts)
        self._factors = left, right
        #: No other pair's, of any time.
        self.number = next(_NUMBERS)
        PAIRS[self.number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a pickle and a deep copy are made of: a number and a hash are of one process."""
        return pair_of, self._factors

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

    def contract(self, wanted: Wanted, x: np.ndarray, y: np.ndarray) -> Any:
        """Return one of the three products of `contraction`, for the entries of the other two matrices in order."""
        return self.product.numeric(x, y) if wanted == "c" else contract(self.patterns, wanted, x, y)

    def require_entries(self, dtypes: tuple[str, str], shapes: tuple[Any, Any]) -> None:
        """Raise TypeError or ValueError if entries of these dtypes and shapes are none of A and B."""
        if dtypes[0] != dtypes[1] or dtypes[0] not in FLOATS:
            raise TypeError(
                f"the entries are {dtypes[0]} and {dtypes[1]}, and both must be of one type: {', '.join(FLOATS)}"
            )
        for name, shape in zip("ab", shapes, strict=True):
            if tuple(shape) != (self.length(name),):
                raise ValueError(f"{name} has shape {tuple(shape)}, and the pattern has {self.length(name)} entries")


@functools.lru_cache(KEPT)
def _kept(pair: Pair) -> Pair:
    return pair


def pattern(name: str, rows: Any, columns: Any, shape: Any, mend: str) -> Any:
    """Return a CSR matrix of ones; raise ValueError, with the `mend`, if its rows are not sorted without duplicates."""
    # Copies: the analysed pair is kept, and its owner may write to a tensor.
    rows, columns = np.array(rows), np.array(columns)
    matrix = sp.csr_array((np.ones(len(columns)), columns, rows), shape=tuple(shape))
    if not matrix.has_canonical_format or (np.diff(rows) < 0).any() or rows[-1] != len(columns):
        raise ValueError(f"{name} has rows whose columns repeat or are not sorted: {mend} first")
    return matrix


def pair_of(left: Any, right: Any) -> Pair:
    """Return the analysed pair of two matrices with these patterns, the kept one where it is known.

    Raises ValueError if the shapes do not fit.
    """
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"matrices of shapes {tuple(left.shape)} and {tuple(right.shape)} cannot be multiplied")
    return _kept(Pair(left, right))
