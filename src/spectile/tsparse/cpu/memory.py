"""What sizes of a product on the host take, and where its columns and rows get numbers of their own."""

from __future__ import annotations

from typing import Any

#: Columns from which they may be renumbered, and how many times more than entries there have to be.
_MANY_COLUMNS, _EMPTY_COLUMNS = 2**16, 64
#: The logarithms of the columns for which a bitmap of the work space has a word.
LEVELS = 6, 12, 18


def workspace(columns: int, itemsize: int) -> int:
    """Return the bytes of one thread's marks, bitmaps, columns met and sums."""
    bitmaps = sum(8 * ((columns >> bits) + 1) for bits in LEVELS)
    return columns * (4 + itemsize) + bitmaps + (columns + 17) * (8 if columns >= 2**32 else 4)


def renumbers(columns: int, entries: int, limited: bool) -> bool:
    """Return whether the columns of B are renumbered, which costs a sort, so that work space has not their length."""
    if columns >= 2**31:
        return True
    if limited:
        return columns > 4 * entries
    return columns > max(_MANY_COLUMNS, _EMPTY_COLUMNS * entries)


def narrows(A: Any, B: Any) -> bool:
    """Return whether the rows of B, far more than its entries and without a pointer, get numbers of their own."""
    inner = B.shape[0]
    if B.format not in ("csc", "coo"):
        return False
    return inner >= 2**31 or inner > max(_MANY_COLUMNS, _EMPTY_COLUMNS * (int(A.nnz) + int(B.nnz)))
