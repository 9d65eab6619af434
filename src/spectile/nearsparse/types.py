"""What all of SpAMM shares: the table of precisions, and the request that a call makes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from spectile.core.copies import Fixed
from spectile.core.pictures import ends_told, shown, shown_html

PrecisionName = Literal[
    "float16", "float16c16", "float32", "float64", "tf32x3", "complex64", "complex128",
    "fp16", "fp16c16", "fp32", "fp64",
]  # fmt: skip
Split = Literal["rows", "columns"]
Method = Literal["spamm", "auto"]
#: Rows, columns and depth, in tiles of the norm maps, that are multiplied together when one of their products is valid.
Grain = tuple[int, int, int]


@dataclass(frozen=True)
class Precision:
    """One arithmetic of the product."""

    #: Dtype of A and B, and of C.
    dtype: str
    output: str
    norm: str  #: Dtype of norms on a device and of their sums of squares; the CPU takes norms in float64.
    sum_roundoff: float  #: Unit round-off of the sums.
    #: Relative error of one product before it is summed, where it is not exact to the sums' round-off.
    product_roundoff: float = 0.0
    #: Absolute error of one multiply-add where it underflows: half the smallest subnormal of the sums; 0 where the
    #: products of the smallest operands do not.
    product_underflow: float = 0.0
    #: Unit round-off of C and half its smallest subnormal, where the sums are rounded to another dtype.
    result_roundoff: float = 0.0
    result_underflow: float = 0.0
    largest_operand: float = float("inf")  #: Above it an entry of A or B may become infinite before it is multiplied.
    #: Tensor cores align the products of a sum by the exponents of their operands, and smaller entries, subnormal
    #: numbers, have that of this one: a sum is rounded as if they were so large.
    least_operand: float = 0.0
    on_cpu: bool = True  #: Whether the CPU has it.
    parts: int = 1  #: Real numbers in an entry: 2 of a complex one.

    @property
    def sums(self) -> str:
        """Dtype of the sums, which are real ones."""
        return {"float16": "float32", "complex64": "float32", "complex128": "float64"}.get(self.dtype, self.dtype)


PRECISIONS = {
    "fp16": Precision("float16", "float32", "float32", 2.0**-24, least_operand=2.0**-14),
    "fp16c16": Precision(
        "float16", "float16", "float32", 2.0**-24,
        result_roundoff=2.0**-11, result_underflow=2.0**-25, least_operand=2.0**-14,
    ),
    # The norms of float32 and their products stay within float64, whatever the entries are.
    "fp32": Precision("float32", "float32", "float64", 2.0**-24, product_underflow=2.0**-150),
    # 3xTF32 drops low*low and the last bits of both lows, below 3 * 2^-21 of a product; the tensor core truncates its
    # sums of 32 k, and what a product loses to underflow it may lose three times, wholly.  The high part of an entry
    # above TF32's largest number rounds to infinity, and the low part of one below 2^-115 is subnormal and may be lost:
    # 2^-126, which is product_roundoff of the least operand.
    "tf32x3": Precision(
        "float32", "float32", "float64", 2.0**-24,
        product_roundoff=2.0**-19, product_underflow=3 * 2.0**-126, largest_operand=2.0**128 - 2.0**117,
        least_operand=2.0**-107, on_cpu=False,
    ),
    "fp64": Precision("float64", "float64", "float64", 2.0**-53, product_underflow=2.0**-1074),
}  # fmt: skip

# Complex products are real ones of the real and imaginary parts, in a precision of these.
OF_PARTS = {"complex64": "fp32", "complex128": "fp64"}
COMPLEX = {
    name: dataclasses.replace(PRECISIONS[key], dtype=name, output=name, parts=2) for name, key in OF_PARTS.items()
}
ALL = PRECISIONS | COMPLEX

# The precision of a dtype where none is named.
OF_DTYPE = {"float16": "fp16", "float32": "fp32", "float64": "fp64"} | {name: name for name in COMPLEX}


#: What says how much is left out: a call gives one.
ASKED = ("tau", "valid_ratio", "atol", "rtol_factors", "rtol")


@dataclass(frozen=True)
class Request:
    """A product as :func:`spectile.nearsparse.spamm` takes it; one of the first four after it is given.

    An error relative to C (rtol) becomes an absolute one before there is a request.
    """

    precision: str
    tau: float | None = None
    valid_ratio: float | None = None
    atol: float | None = None
    rtol_factors: float | None = None
    alpha: float = 1.0
    beta: float = 0.0
    block: int = 32
    strict: bool = False
    check_finite: bool = False
    method: Method = "spamm"
    #: Norms of the tiles of A and of B, where both are kept.
    norms: tuple[Any, Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def arithmetic(self) -> Precision:
        """The row of the table."""
        return ALL[self.precision]

    @property
    def real(self) -> Request:
        """The real product by which this one is made: itself, or of complex matrices that of their parts."""
        if self.arithmetic.parts == 1:
            return self
        return dataclasses.replace(self, precision=OF_PARTS[self.precision])

    @property
    def asked(self) -> tuple[str, float]:
        """The name of what is given of tau, a ratio and an error, and its value."""
        return next((name, x) for name in ASKED[:-1] if (x := getattr(self, name)) is not None)

    @property
    def value(self) -> float:
        """What is given of tau, a ratio and an error."""
        return self.asked[1]

    def asking(self, value: float) -> Request:
        """Return the request with another value of what it asks."""
        return dataclasses.replace(self, **{self.asked[0]: value})  # type: ignore[arg-type]

    @property
    def within_error(self) -> bool:
        """Whether an error is asked for."""
        return self.tau is None is self.valid_ratio

    @property
    def norms_first(self) -> bool:
        """Whether norms are needed before anything is multiplied."""
        return self.tau is None or self.check_finite


@dataclass(frozen=True)
class Threshold:
    """What a threshold leaves of a product.

    Attributes
    ----------
    tau : float
        The tile product A_ik B_kj is skipped iff ``||A_ik|| ||B_kj|| < tau``.
    valid_ratio : float
        Share of the tile products that are not skipped.
    error_bound : float
        Guaranteed bound of ``||C_exact - c||_F``: skipped products and rounding.
    """

    tau: float
    valid_ratio: float
    error_bound: float


@dataclass(frozen=True)
class NormMap(Fixed):
    """The Frobenius norms of the tiles of a matrix, as :func:`spectile.nearsparse.norm_map` returns them.

    In place of its matrix it is an operand whose norms are not taken again.  A type of its own, so that no matrix is
    taken for one.  Whoever writes to the matrix takes its norms anew: those that are too small make the bound of a
    product too small, and those that are too large only keep more.

    Attributes
    ----------
    norms : array, shape (ceil(m / block), ceil(n / block))
        NumPy array, a read-only view, or GPU array, which is not to be written to; nothing below 0.
    block : int
        Tile size.
    matrix : array or None
        Whose norms these are; None where that is not known.
    """

    norms: Any
    block: int = 32
    matrix: Any = None

    def __post_init__(self) -> None:
        Fixed.__setattr__(self, "norms", self.norms)

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        return [ends_told(f"norms of tiles of {self.block}", self.norms)]
