"""Whether a product is made by rows, or by columns as the transpose of a product: whichever converts fewer entries."""

from __future__ import annotations

import math
from typing import Any

from spectile.tsparse.types import Precision


def conversions(A: Any, B: Any, form: str) -> tuple[float, float]:
    """Return the entries that are brought to another order by rows, and by columns, for C in the format `form`.

    Rows or columns of C that are walked count as entries.  Those of C are those of columns that are met at random.
    """
    counts = [int(matrix.nnz) for matrix in (A, B)]
    rows, columns = (
        float(sum(count for count, matrix in zip(counts, (A, B), strict=True) if matrix.format != kept))
        for kept in ("csr", "csc")
    )
    places = max(A.shape[0] * B.shape[1], 1)
    entries = -places * math.expm1(-counts[0] * counts[1] / max(A.shape[1], 1) / places)
    return A.shape[0] + rows + entries * (form == "csc"), B.shape[1] + columns + entries * (form != "csc")


def by_columns(A: Any, B: Any, form: str, precision: Precision, limited: bool) -> bool:
    """Return whether C is made as the transpose of B^T A^T, which needs no copy of matrices in CSC.

    Where memory is `limited`, there is no room for C in another order.
    """
    formats = {A.format, B.format}
    if formats == {form} == {"csr"} or not formats <= {"csr", "csc"} or form == "dense" or precision.name == "float16":
        return False
    if limited:
        return form == "csc"
    rows, columns = conversions(A, B, form)
    return columns < rows
