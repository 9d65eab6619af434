"""The semirings that products are made over, declared once: what is added, what is multiplied, and of which values.

An entry that is not stored is the identity of the addition and the annihilator of the multiplication, so that it adds
nothing to C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from spectile.core.options import word
from spectile.tsparse.types import INTEGER, Precision, lookup

SemiringName = Literal["plus_times", "min_plus", "max_plus", "max_min", "or_and", "any_pair", "plus_pair"]


@dataclass(frozen=True)
class Semiring:
    """One semiring."""

    name: str
    code: int  #: What the kernels know it by: 0 for sums of products, to which the others of that code are brought.
    #: Names of the operations.
    add: str
    multiply: str
    kinds: str  #: Kinds of values, by NumPy's letters, that have its identity.
    #: The type of C, where that does not follow from the values; these are then read as True and False or not at
    #: all.
    value: str | None = None

    @property
    def reads_values(self) -> bool:
        """Whether C depends on the values of the factors."""
        return self.multiply != "pair"

    def identity(self, dtype: np.dtype) -> complex:
        """Return the identity of the addition; of integers, the one that their type holds."""
        if self.add not in ("min", "max"):
            return 0
        if dtype.kind == "f":
            return float("inf") if self.add == "min" else float("-inf")
        return int(np.iinfo(dtype).max if self.add == "min" else np.iinfo(dtype).min)


SEMIRINGS = {
    one.name: one
    for one in (
        Semiring("plus_times", 0, "plus", "times", "bifuc"),
        Semiring("min_plus", 1, "min", "plus", "iuf"),
        Semiring("max_plus", 2, "max", "plus", "iuf"),
        Semiring("max_min", 3, "max", "min", "iuf"),
        Semiring("or_and", 0, "or", "and", "bifuc", "bool"),
        Semiring("any_pair", 0, "any", "pair", "bifuc", "bool"),
        Semiring("plus_pair", 0, "plus", "pair", "bifuc", "int64"),
    )
}


def lookup_semiring(name: object) -> Semiring:
    """Return the semiring called `name`; ValueError lists the names."""
    return SEMIRINGS[word("semiring", name, *SEMIRINGS)]


def precision_of(semiring: Semiring, chosen: Precision, named: bool, kinds: tuple[np.dtype, np.dtype]) -> Precision:
    """Return the precision of the sums of a product over a semiring, of values of two kinds.

    That of sums of products is `chosen`, and `named` if the caller named it.  Raises TypeError if the values have no
    identity of the semiring, and ValueError if the precision is one that the semiring has not.
    """
    if semiring.name == "plus_times":
        return chosen
    for name, kind in zip("AB", kinds, strict=True):
        if kind.kind not in semiring.kinds:
            raise TypeError(
                f"{name} holds {kind} values, which have no identity of {semiring.add}: the semiring {semiring.name} "
                "is of real numbers and integers"
            )
    if semiring.value is not None:
        if named:
            raise ValueError(f"the semiring {semiring.name} gives {semiring.value} values: it has no precision")
        return INTEGER["int64"] if semiring.value == "int64" else lookup("float32")
    if named and chosen.name != chosen.value:
        raise ValueError(f'precision="{chosen.name}" is of plus_times; {semiring.name} has float64 and float32')
    return chosen
