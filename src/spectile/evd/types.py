"""What all parts of the eigensolver share: the dtypes, a wanted part of a spectrum, and what a call asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Scalar:
    """A dtype of matrices.

    Attributes
    ----------
    name : str
        The dtype's name.
    real : str
        Dtype of the eigenvalues.
    wide : str
        Dtype in which the eigenvectors are formed on CUDA.
    letter : str
        LAPACK's and cuBLAS's prefix.
    itemsize : int
        Bytes.
    bandwidths : tuple of int
        Those that the CUDA kernels are compiled for, ascending.
    """

    name: str
    real: str
    wide: str
    letter: str
    itemsize: int
    bandwidths: tuple[int, ...]

    @property
    def is_complex(self) -> bool:
        """Whether a scalar has an imaginary part."""
        return self.name != self.real

    @property
    def parts(self) -> int:
        """Real numbers in a scalar."""
        return 2 if self.is_complex else 1

    @property
    def wide_bytes(self) -> int:
        """Bytes of a scalar in double precision."""
        return 8 * self.parts


SCALARS = {
    scalar.name: scalar
    for scalar in (
        Scalar("float64", "float64", "float64", "d", 8, (16, 32, 64)),
        Scalar("float32", "float32", "float64", "s", 4, (32,)),
        Scalar("complex128", "float64", "complex128", "z", 16, (32,)),
        Scalar("complex64", "float32", "complex128", "c", 8, (32,)),
    )
}


def working_dtype(dtype: Any) -> Any:
    """Return the dtype in which a matrix of `dtype` is solved.

    Raises
    ------
    TypeError
        If there is none.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype == np.float16:
        return np.dtype(np.float32)
    if dtype.name not in SCALARS:
        raise TypeError(f"dtype {dtype} is not supported: pass float32, float64, complex64 or complex128")
    return dtype


@dataclass(frozen=True)
class Subset:
    """A wanted part of a spectrum in ascending order.

    Attributes
    ----------
    by_index : bool
        Whether `low` and `high` are the first and the last index, both included, or an interval (low, high].
    low, high : int or float
    """

    by_index: bool
    low: Any
    high: Any

    def of(self, w: np.ndarray) -> slice:
        """Return which of all eigenvalues, ascending, are wanted."""
        if self.by_index:
            return slice(self.low, self.high + 1)
        first, last = np.searchsorted(w, [self.low, self.high], side="right")
        return slice(int(first), int(last))

    def count(self) -> int:
        """Return how many eigenvalues an index subset keeps."""
        return int(self.high - self.low + 1)


@dataclass(frozen=True)
class Options:
    """What a call asks of the solver of one standard problem.

    Attributes
    ----------
    lower : bool
        Which triangle is read.
    vectors : bool
        Whether eigenvectors are wanted (or, from a tridiagonalization, Q).
    overwrite : bool
        Whether the memory of the matrix may be used.
    check_finite : bool
        Whether NaN and infinity raise ValueError, or LinAlgError.
    subset : Subset, optional
        None for the whole spectrum.
    """

    lower: bool = True
    vectors: bool = True
    overwrite: bool = False
    check_finite: bool = True
    subset: Subset | None = None


class Tridiagonalization(NamedTuple):
    """A = Q T Qᴴ with T real and tridiagonal.

    Attributes
    ----------
    d : array, shape (n,)
        Diagonal of T.
    e : array, shape (n - 1,)
        Subdiagonal of T.
    q : array, shape (n, n), or None
        Unitary; None unless wanted.
    """

    d: Any
    e: Any
    q: Any


def require_finite(largest: float, lower: bool, check_finite: bool) -> None:
    """Raise ValueError, or LinAlgError without `check_finite`, where the largest entry is NaN or infinity."""
    if not math.isfinite(largest):
        error = ValueError if check_finite else np.linalg.LinAlgError
        raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")


def exponent_near_one(largest: float) -> int:
    """Return the exponent of the power of two that brings the largest entry near 1; 0 where it is near enough."""
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    return 0 if -16 <= scale <= 16 else scale
