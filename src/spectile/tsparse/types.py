"""What the modules of sparse products share: the table of precisions, and the factors as they pass them on."""

from __future__ import annotations

import functools
import reprlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from spectile.core.precisions import canonical

FormatName = Literal["csr", "csc", "coo", "bsr", "dense"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
PrecisionName = Literal["float64", "float32", "tf32", "float16", "fp64", "fp32", "fp16"]


@dataclass(frozen=True)
class HalfRange:
    """What the arithmetic of ``precision="float16"`` holds, and how rows and columns are scaled into it."""

    #: Sizes between which nonzero entries need no scaling, as long as those of the other factor need none.
    least: float
    most: float
    top: int  #: A scaled row has its largest entry in [2**(top - 1), 2**top).
    lost: float  #: Scaled entries below this size would be lost.


#: Entry by entry: no sum of 2**31 products is above 2**127, and what a product loses below float32's normal range is
#: what float32 loses.  Once scaled, a loss would grow with the way back: no product of scaled entries is below 2**-124.
BY_ENTRY = HalfRange(2.0**-126, 2.0**48, 48, 2.0**-62)


@dataclass(frozen=True)
class Precision:
    """One precision of the product."""

    name: str
    #: Name of the type of C and of the sums: {"float32", "float64", "complex64", "complex128", "int32", "int64",
    #: "bool"}.
    value: str
    #: Unit roundoff of one operation of the sum.  Tensor cores may truncate, which doubles float32's; integers that
    #: are not refused are exact.
    unit: float

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """Type of C and of the sums."""
        return np.dtype(self.value)


#: All that is known of a precision; what rounds to it stands in ``rounding.py``, ``half.cuh`` and ``check.cu``.
PRECISIONS = {
    row.name: row
    for row in (
        Precision("float64", "float64", 2.0**-53),
        Precision("float32", "float32", 2.0**-24),
        Precision("tf32", "float32", 2.0**-23),
        Precision("float16", "float32", 2.0**-23),
    )
}
#: Of complex factors, by the precision of real and imaginary parts.
COMPLEX = {
    "float64": Precision("float64", "complex128", 2.0**-53),
    "float32": Precision("float32", "complex64", 2.0**-24),
}
#: Of integer factors that no precision is named for.
INTEGER = {name: Precision(name, name, 0.0) for name in ("int32", "int64")}
#: Of sums that count as True or False, and of those on the host, in bytes.
BOOLEAN, BYTES = Precision("bool", "bool", 0.0), Precision("bool", "uint8", 0.0)


def of_values(dtype: np.dtype) -> Precision:
    """Return the precision of sums of floats of a type, real or complex, without rounding."""
    return next(one for one in (*PRECISIONS.values(), *COMPLEX.values()) if one.value == dtype.name)


def lookup(name: str) -> Precision:
    """Return the precision called `name`, in either spelling; ValueError lists the names."""
    try:
        return PRECISIONS[canonical(name)]
    except (KeyError, TypeError):
        raise ValueError(f"precision is {reprlib.repr(name)}; choose one of {', '.join(PRECISIONS)}") from None


@dataclass
class Places:
    """Where a caller's matrix stores the entries of a checked factor, for values that come later."""

    shape: tuple[int, ...]  #: Of the values as stored.
    order: Any = None  #: The stored place of each entry, by row and column; None where they are stored so.
    first: Any = None  #: The first place in `order` of each entry, where some have duplicates.


@dataclass
class Operand:
    """A checked CSR factor on the host: sorted rows without duplicates."""

    shape: tuple[int, int]
    indptr: np.ndarray  #: Row pointer, (rows + 1,) int64.
    indices: np.ndarray  #: (nnz,) int32, or int64 where 32 bits do not hold the columns.
    #: Empty where the values were not asked for; integers, where no precision is named, as they are, and Booleans as
    #: uint8; (nnz,) float32, float64, complex64 or complex128.
    data: np.ndarray
    array: bool  #: Whether the caller's matrix is a sparse array of SciPy rather than a matrix.
    places: Places
    largest: int | None = None  #: The largest size of the values, where these are integers.
    #: What sums of duplicates and large integers may have lost in float64, for the bound; None for nothing: (nnz,)
    #: float64 or None.
    lost: np.ndarray | None = None

    def row_of_entries(self) -> np.ndarray:
        """Return the row of each stored entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))


@dataclass
class Factor:
    """A CSR factor on the device whose values are rounded to the precision of the product."""

    shape: tuple[int, int]
    indptr: Any  # int32
    indices: Any  # int32
    data: Any
    exponents: Any = None  # of the rows of A or the columns of B, where float16 needed scaling: both factors or none
    given: Any = None  # what the caller gave, `spectile.tsparse.cuda.given.Given`

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)


class SymbolicProduct(Protocol):
    """The pattern of C = A B, kept for further products of matrices with the patterns of A and B.

    Attributes
    ----------
    shape : tuple of int
        Shape of C.
    nnz : int
        Stored entries of C.
    indptr, indices : array
        Row pointer and sorted columns of C, where A and B are: read-only on the host.  On a GPU, where arrays cannot
        be, do not change them.
    products : int
        Multiplications of one product.
    """

    shape: tuple[int, int]
    products: int

    @property
    def nnz(self) -> int:
        """Stored entries of C."""

    @property
    def indptr(self) -> Any:
        """Row pointer of C."""

    @property
    def indices(self) -> Any:
        """Sorted columns of C."""

    def multiply(self, A: Any, B: Any, *, precision: PrecisionName | None = None, check_finite: bool = True) -> Any:
        """Return C = A B for factors with the analysed patterns, which is checked; options as for ``spgemm``.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of `spectile.tsparse.spgemm`.
        """

    def numeric(self, data_a: Any, data_b: Any, *, out: Any = None) -> Any:
        """Return the values of C, on `indptr` and `indices`, for values of A and B on the analysed patterns.

        Nothing is checked but types and sizes: the patterns are those that were analysed, and entries that are not
        finite make entries of C that are not.  On a GPU the call does not
        wait for the device, but for the first, which lists the products of each entry of C: 4 bytes a multiplication
        and 2 an entry of C are kept (8 and 4 where a word of 32 bits cannot hold the places in A and B), unless a
        `memory_limit` was given, half of the free memory is less than three times that, the entries of C have more than
        24 products (12) in the mean, or a row of A has more than 65,535 entries.

        Parameters
        ----------
        data_a, data_b : array
            The values of A and of B as the analysed matrices store them, ``A.data`` of another matrix with the very
            same arrays of indices: of CSR, CSC and COO (nnz,), of BSR (blocks, rows, columns), in whatever order, and
            duplicates are summed in float64.  Of other formats (nnz,), those of ``A.tocsr()``.  Of one
            type, float32, float64, complex64 or complex128, in the arithmetic of which C is computed.
        out : (nnz of C,) array, optional
            Where the values of C are written; it may share memory with `data_a` and `data_b`.

        Returns
        -------
        (nnz of C,) array

        Raises
        ------
        TypeError, ValueError
            If an array is no array of floats of one type, or its shape or layout is another, or it or the current
            device is not the device of the pattern.
        """
