"""Near-sparse products as the modules for PyTorch and JAX differentiate them.

C = A B has the derivatives ``dA B + A dB``, and with the cotangent G of C the gradients ``G Bᴴ`` and ``Aᴴ G``.  Each of
them is a near-sparse product of its own, with an error of its own: what a threshold skips in A B says nothing about
what matters in the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spectile import nearsparse
from spectile.core.options import number
from spectile.nearsparse import checks

#: Types of operands that have derivatives: C is of the same.
FLOATS = ("float32", "float64", "complex64", "complex128")


class NearSparseProduct(NamedTuple):
    """A product and the bound of its error, as ``spectile.torch.spamm`` and ``spectile.jax.spamm`` return them.

    Attributes
    ----------
    c : array, shape (..., m, n)
        C, which has derivatives.
    error_bound : array, shape (...)
        Guaranteed bound of ``||A B - C||_F`` for each product, rounding included; a constant to every derivative.
    """

    c: Any
    error_bound: Any


class Choices(NamedTuple):
    """How C is multiplied, and the products of which its derivatives are made."""

    kind: str
    value: float
    derived: float
    block: int
    backend: str

    @property
    def of_derivatives(self) -> Choices:
        """What derivatives are multiplied with: the error asked of them, or no threshold, which skips nothing."""
        kind = "rtol_factors" if self.derived > 0 else "tau"
        return self._replace(kind=kind, value=self.derived)


def choices(
    shapes: tuple[Any, Any], dtypes: tuple[str, str], asked: tuple[Any, Any, Any, Any], backward_rtol_factors: Any,
    block: int, backend: str,
) -> Choices:  # fmt: skip
    """Return how operands are multiplied, or raise where they, or an option, are none of a product.

    `asked` is what is given of ``types.ASKED``, in that order.  Raises TypeError for a dtype without derivatives, or
    several, and ValueError for shapes that do not multiply, and options out of range.
    """
    kind, value = checks.check_choice(*asked)
    block, _, _ = checks.check_scalars(block)
    checks.result_shape(tuple(shapes[0]), tuple(shapes[1]))
    if dtypes[0] != dtypes[1] or dtypes[0] not in FLOATS:
        raise TypeError(f"a is {dtypes[0]} and b is {dtypes[1]}, and both must be of one type: {', '.join(FLOATS)}")
    if backward_rtol_factors is None:
        derived = value if kind == "rtol_factors" else 0.0
    else:
        derived = number("backward_rtol_factors", backward_rtol_factors)
        if not 0 <= derived < np.inf:
            raise ValueError(
                f"backward_rtol_factors = {backward_rtol_factors} is not a tolerance: give a finite number >= 0"
            )
    return Choices(kind, value, derived, block, backend)


def multiply(a: Any, b: Any, how: Choices, finite: bool | None) -> tuple[Any, Any]:
    """Return C and the bound of its error, a float64 array of the host; `finite` is ``check_finite`` of spamm."""
    wanted: dict[str, Any] = {how.kind: how.value}
    backend: Any = how.backend
    result = nearsparse.spamm(a, b, **wanted, block=how.block, check_finite=finite, backend=backend)
    return result.c, np.asarray(result.error_bound, np.float64)
