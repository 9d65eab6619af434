"""The zero and the unit of energy of a stored matrix: those in which the recurrence loses no digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.kpm.bounds import RANGE, least_half
from spectile.kpm.operators.protocol import namespace
from spectile.kpm.types import Array

# A spectrum so many half widths from zero is moved there: energies then lie within a factor of two of its center, and
# their differences from it are exact.
FAR = 16


@dataclass(frozen=True)
class Frame:
    """The zero and the unit of energy in which an engine holds a stored matrix: H = offset + unit H'."""

    #: Zero but for a spectrum far from zero.  There the recurrence would subtract numbers that are much larger than
    #: their difference; the entries of H' are exact.
    offset: float = 0.0
    #: A power of two; one but for matrices whose squares, or the inverse of whose width, leave the range of
    #: floating-point numbers.
    unit: float = 1.0

    @classmethod
    def around(cls, certain: tuple[float, float], dtype: Any) -> Frame:
        """Return the frame of a matrix of this dtype whose spectrum lies between `certain`, Gershgorin's bounds."""
        low, high = certain
        half, center = high / 2 - low / 2, low / 2 + high / 2
        if not np.isfinite(half):
            return cls()
        real = np.empty(0, dtype).real.dtype
        least, most = RANGE[real.itemsize]
        offset = float(real.type(center)) if abs(center) > FAR * half else 0.0
        half = max(half, least_half(low, high, real, offset))
        unit = 1.0 if least < half < most else 2.0 ** min(max(math.frexp(half)[1], -1020), 1023)
        return cls(offset, unit)

    def inside(self, matrix: Any, first_row: int = 0, *, unlike: bool = False) -> Any:
        """Return H' of a CSR matrix without duplicates, or of rows of one from `first_row` on; H itself where equal.

        Of a whole matrix which may be `unlike` its adjoint, as rounding of large entries makes it, the Hermitian part
        where the spectrum is far from zero: there the difference may be as large as the spectrum is wide.
        """
        if self == Frame():
            return matrix
        xp: Any = namespace(matrix.data)
        data = matrix.data.copy()
        if self.offset:
            row = xp.searchsorted(matrix.indptr, xp.arange(data.size), side="right") - 1
            data[matrix.indices == row + first_row] -= data.dtype.type(self.offset)
        exponent = 1 - math.frexp(self.unit)[1]
        for part in (exponent // 2, exponent - exponent // 2):  # numbers of single precision hold each, and not both
            data *= data.real.dtype.type(2.0**part)
        held = type(matrix)((data, matrix.indices, matrix.indptr), shape=matrix.shape)
        return (held + held.conj().T.tocsr()) * held.data.real.dtype.type(0.5) if self.offset and unlike else held

    def scaling(self, a: float, b: float) -> tuple[float, float]:
        """Return the a and b with which a (H' − b) is what a (H − b) is with these."""
        return a * self.unit, (b - self.offset) / self.unit

    def energies(self, alphas: Array, betas: Array) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps with H from those with H'."""
        return self.offset + self.unit * alphas, self.unit * betas
