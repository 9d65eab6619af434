"""float16 as the elements of tiles: what it holds, and the powers of two that bring rows and columns into its range."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from spectile.tsparse import bounds, errors
from spectile.tsparse.cpu.operands import operands
from spectile.tsparse.cpu.symbolic import symbolic
from spectile.tsparse.rounding import fits_half, half_exponents
from spectile.tsparse.types import HalfRange, lookup

MOST, NORMAL = 65504.0, 2.0**-14
#: Normal numbers of float16 need no scaling; once scaled, what would become zero is refused.
IN_TILES = HalfRange(NORMAL, MOST, 15, 2.0**-24)


class Scaled(NamedTuple):
    """Values of A and B in the range of float16, and the exponents that their rows and columns were divided by."""

    a: Any
    b: Any
    exponents: tuple[Any, Any] | None


def scaled(left: Any, right: Any, xp: Any = np) -> Scaled:
    """Return the values of two CSR factors as float16 holds them, not yet rounded.

    Parameters
    ----------
    left, right : object
        With ``shape``, ``indptr``, ``indices`` and ``data``, on the host or, with ``xp=cupy``, on the device.
    xp : module
        NumPy or CuPy.

    Raises
    ------
    ValueError
        If a row of A or a column of B spans more than float16 holds.
    """
    if fits_half(left.data, IN_TILES, xp) and fits_half(right.data, IN_TILES, xp):
        return Scaled(left.data, right.data, None)
    row = rows_of(left.indptr, len(left.data), xp)
    rows = half_exponents(left.data, row, left.shape[0], "row of A", IN_TILES, xp)
    columns = half_exponents(right.data, right.indices, right.shape[1], "column of B", IN_TILES, xp)
    return Scaled(xp.ldexp(left.data, -rows[row]), xp.ldexp(right.data, -columns[right.indices]), (rows, columns))


def rows_of(indptr: Any, nnz: int, xp: Any) -> Any:
    """Return the row of each of `nnz` entries."""
    return xp.searchsorted(indptr, xp.arange(nnz, dtype=indptr.dtype), side="right") - 1


def unscale(data: Any, indptr: Any, indices: Any, exponents: tuple[Any, Any] | None, first: int, xp: Any) -> Any:
    """Return rows of C, from row `first` on, multiplied by the powers of two that the inputs were divided by."""
    if exponents is None:
        return data
    rows, columns = exponents
    with np.errstate(over="ignore"):
        back = xp.ldexp(data, rows[first + rows_of(indptr, len(data), xp)] + columns[indices])
    if bool((xp.isfinite(data) & ~xp.isfinite(back)).any()):
        raise errors.beyond_float32("an entry of C is")
    return back


def error_bound(A: Any, B: Any) -> Any:
    """Bound the rounding error of each entry of a product by tiles in float16; as `spectile.tsparse.error_bound`."""
    left, right = operands(A, B)
    pattern = symbolic(left, right)
    a, b, exponents = scaled(left, right)
    rounded = (*(values.astype(np.float16).astype(np.float32) for values in (a, b)), exponents)
    bound = bounds.error_bound(left, right, lookup("float16"), rounded, pattern.values)
    return sp.csr_array((bound, pattern.indices, pattern.indptr), shape=pattern.shape)
