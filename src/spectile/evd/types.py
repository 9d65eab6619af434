"""What all parts of the eigensolver share: the dtypes, a wanted part of a spectrum, and what a call asks for."""

from __future__ import annotations

import bisect
import ctypes
import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spectile.core.pictures import ends_told, shown, shown_html


@dataclass(frozen=True, eq=False)
class Scalar:
    """A dtype of matrices."""

    name: str  #: The dtype's name.
    real: str  #: Dtype of the eigenvalues.
    wide: str  #: Dtype in which the eigenvectors are formed on CUDA.
    letter: str  #: LAPACK's and cuBLAS's prefix.
    itemsize: int  #: Bytes.
    bandwidths: tuple[int, ...]  #: Those that the CUDA kernels are compiled for, ascending.

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


_BY_CHARACTER = {np.dtype(name).char: scalar for name, scalar in SCALARS.items()}


class UnsupportedOperandError(TypeError, ValueError):
    """No dtype or array that is solved: a TypeError by its nature, and a ValueError because SciPy raises one."""


def working_dtype(dtype: Any, name: str = "a") -> Any:
    """Return the dtype in which a matrix of `dtype` is solved.

    Raises UnsupportedOperandError, with the name of the matrix, if there is none.
    """
    if not isinstance(dtype, np.dtype):
        dtype = np.dtype(dtype)
    if dtype.char in _BY_CHARACTER:
        return dtype if dtype.isnative else dtype.newbyteorder("=")
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype.char == "e":
        return np.dtype(np.float32)
    what = "object arrays are not supported" if dtype.kind == "O" else f"dtype {dtype} is not supported"
    raise UnsupportedOperandError(f"{what}: convert {name} to dtype float32, float64, complex64 or complex128")


def scalar_of(dtype: Any) -> Scalar:
    """Return the row of the table for a working dtype (its name takes NumPy a microsecond to make)."""
    return _BY_CHARACTER[dtype.char]


#: Roundoff of an eigenvalue, in units of the last place of the matrix's Frobenius norm.
END_ROUNDOFF = 4.0


@dataclass(frozen=True)
class Subset:
    """A wanted part of a spectrum in ascending order."""

    #: Whether `low` and `high` are the first and the last index, both included, or an interval (low, high].
    by_index: bool
    low: Any
    high: Any

    def of(self, w: np.ndarray, dtype: Any = None, scale: int = 0) -> slice:
        """Return which of all eigenvalues, ascending, of a matrix times 2**scale, solved in `dtype`, are wanted."""
        if self.by_index:
            return slice(self.low, self.high + 1)
        norm = math.hypot(*w.tolist())  # its squares are never out of range
        return self.inside(w, self.ends(norm, w.dtype if dtype is None else dtype, scale))

    @staticmethod
    def inside(w: np.ndarray, ends: tuple[float, float]) -> slice:
        """Return which eigenvalues, ascending, lie between two ends, of which the second belongs to the interval."""
        values = w.tolist()
        first, last = (bisect.bisect_right(values, end) for end in ends)
        return slice(first, max(first, last))

    def ends(self, norm: float, dtype: Any, scale: int) -> tuple[float, float]:
        """Return the ends of the interval for a matrix times 2**scale, of a Frobenius norm, moved up by roundoff.

        Of a multiple eigenvalue at an end roundoff puts some copies on either side.  So what is within roundoff of an
        end counts as equal to it: outside at `low`, inside at `high`.  An interval as narrow as roundoff is taken as
        it is.  Numbers of the matrix's dtype lie on the same side of an end and of the next such number below it, which
        is returned: LAPACK would round to the nearest.
        """
        low, high = float(self.low), float(self.high)
        if scale:
            with np.errstate(over="ignore", under="ignore"):
                low, high = (float(end) for end in np.ldexp((low, high), scale))
        limits = np.finfo(dtype)
        roundoff = END_ROUNDOFF * float(limits.eps) * norm
        moved = roundoff if high - low > 2 * roundoff else 0.0
        return rounded_down(low + moved, limits.dtype), rounded_down(high + moved, limits.dtype)

    def count(self) -> int:
        """Return how many eigenvalues an index subset keeps."""
        return int(self.high - self.low + 1)


def rounded_down(number: float, dtype: np.dtype) -> float:
    """Return the largest number of a dtype, float32 or float64, that is not above another."""
    near = number if dtype.char == "d" else ctypes.c_float(number).value
    if near <= number:
        return near
    (bits,) = struct.unpack("i", struct.pack("f", near))
    return float(struct.unpack("f", struct.pack("i", bits - 1 if near > 0 else bits + 1))[0])


class EighResult(NamedTuple):
    """Eigenvalues and eigenvectors, by the names of `numpy.linalg.eigh`.

    Attributes
    ----------
    eigenvalues : array, shape (..., m)
        Ascending.
    eigenvectors : array, shape (..., n, m)
        In columns.
    """

    eigenvalues: Any
    eigenvectors: Any

    def __repr__(self) -> str:
        return shown(self)

    def _repr_html_(self) -> str:
        return shown_html(self)

    def _told(self) -> list[str]:
        """Return what is told of eigenvalues and of eigenvectors; no device is waited for."""
        w, v = self
        return [ends_told("eigenvalues", w), f"eigenvectors {' x '.join(f'{n:,}' for n in v.shape)} {v.dtype}"]


class Options(NamedTuple):
    """What a call asks of the solver of one standard problem."""

    lower: bool = True  #: Which triangle is read.
    vectors: bool = True  #: Whether eigenvectors are wanted (or, from a tridiagonalization, Q).
    overwrite: bool = False  #: Whether the memory of the matrix may be used.
    check_finite: bool = True  #: Whether NaN and infinity raise ValueError, or LinAlgError.
    subset: Subset | None = None  #: None for the whole spectrum.
    driver: str | None = None  #: LAPACK's routine that a caller names, without its prefix.


class Definite(NamedTuple):
    """The second matrix of a generalized problem."""

    b: Any  #: Hermitian and positive definite: array, shape (..., n, n).
    kind: int = 1  #: A x = λ B x, A B x = λ x, or B A x = λ x: {1, 2, 3}.
    overwrite: bool = False  #: Whether the memory of `b` may be used.


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

    def __repr__(self) -> str:
        return shown(self)

    def _repr_html_(self) -> str:
        return shown_html(self)

    def _told(self) -> list[str]:
        order = " x ".join(f"{n:,}" for n in (*self.d.shape, self.d.shape[-1]))
        return [f"{order} {self.d.dtype}", "without Q" if self.q is None else f"Q {self.q.dtype}"]


def require_finite(largest: float, lower: bool, check_finite: bool, name: str = "a") -> None:
    """Raise ValueError, or LinAlgError without `check_finite`, where a matrix's largest entry is NaN or infinity."""
    if not math.isfinite(largest):
        raise not_finite(f"the {'lower' if lower else 'upper'} triangle of {name}", check_finite)


def not_finite(what: str, check_finite: bool) -> ValueError | np.linalg.LinAlgError:
    """Return SciPy's error of what holds NaN or infinity, or LAPACK's of what was not checked."""
    error = ValueError if check_finite else np.linalg.LinAlgError
    return error(f"array must not contain infs or NaNs, and {what} holds NaN or infinity")


def exponent_near_one(largest: float) -> int:
    """Return the exponent of the power of two that brings the largest entry near 1; 0 where it is near enough."""
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    return 0 if -16 <= scale <= 16 else scale


def exponent_for_squares(n: int) -> int:
    """Return below which power of two the entries of a matrix leave squares in float32 the widest range.

    The Frobenius norm of n by n entries is then at most 2**61.
    """
    return 61 - (n - 1).bit_length()


def out_of_range(dtype: Any) -> OverflowError:
    """Return the error of an eigenvalue that its own dtype cannot hold."""
    return OverflowError(
        f"an eigenvalue is beyond the range of {np.dtype(dtype).name}: scale the matrix, or pass a wider dtype"
    )


def not_definite(minor: int) -> np.linalg.LinAlgError:
    """Return the error of a second matrix whose leading minor of order `minor` is not positive definite."""
    return np.linalg.LinAlgError(
        f"The leading minor of order {minor} of B is not positive definite. The factorization of B could not be "
        "completed and no eigenvalues or eigenvectors were computed."
    )


def not_converged(info: int) -> np.linalg.LinAlgError:
    """Return the error of an iteration that did not converge; `info` is what the vendor's solver reports."""
    return np.linalg.LinAlgError(f"cuSOLVER ended with info = {info}: no convergence")


def not_ascending() -> np.linalg.LinAlgError:
    """Return the error of a vendor's solver whose eigenvalues are not what it promises."""
    return np.linalg.LinAlgError(
        "cuSOLVER returned eigenvalues of a matrix that are not ascending numbers: solve it on the CPU"
    )
