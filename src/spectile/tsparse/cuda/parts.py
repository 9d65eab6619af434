"""Rows of C that are made together, where C has more entries than 32-bit offsets reach or than there is memory for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spectile.core.cupy_parts import has_wide_indices

MOST_ENTRIES = 2**31 - 1  # of C, or of some rows of it, that 32-bit offsets reach
PART_ENTRIES = 2**28  # of C that are made at a time where C is too large for one piece


def row_pointer(counts: list[np.ndarray]) -> np.ndarray:
    """Return the row pointer of rows with so many entries, with 64 bits."""
    return np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64)


def parts(starts: np.ndarray, chunk: int, most: int, empty: bool = False) -> Iterator[tuple[int, int, slice]]:
    """Yield successive rows [a, b) of C and their places: at most `chunk` rows, of `most` entries if more than one.

    Those without entries are left out, unless `empty`.
    """
    a, rows = 0, len(starts) - 1
    while a < rows:
        end = starts[a] + min(most, MOST_ENTRIES)
        b = max(min(a + chunk, int(np.searchsorted(starts, end, side="right")) - 1, rows), a + 1)
        if starts[b] - starts[a] > MOST_ENTRIES:
            raise MemoryError(f"row {a} of C has {starts[b] - starts[a]} entries, more than 32-bit offsets reach")
        if empty or starts[a] < starts[b]:
            yield a, b, slice(int(starts[a]), int(starts[b]))
        a = b


def require_wide_indices(entries: int) -> None:
    """Raise MemoryError where cupyx has no matrices with 64-bit indices and C needs them."""
    if entries > MOST_ENTRIES and not has_wide_indices():
        raise MemoryError(
            f"C has {entries} entries, beyond the 32-bit indices of cupyx matrices before CuPy 14: "
            "pass scipy matrices, and C is gathered on the host"
        )
