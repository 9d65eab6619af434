"""Whether a product goes by tiles or by rows: what ``method="auto"`` decides by.

Tiles cost a conversion and more launches and waits than rows, some 0.1 ms that only much work in full tiles brings
back.
"""

from __future__ import annotations

#: Entries of A, and entries of a row of it, from which its tiles are counted.
LEAST_ENTRIES, LEAST_ROW = 2**20, 48
#: Entries of a tile, on average, from which tiles are faster (docs/notes/tsparse.md).  float16 stays by rows, which
#: need no scaling where tiles do.
LEAST_FILLED = {"float64": 20.0, "tf32": 24.0, "float32": 40.0}


def may_pay(nnz: int, rows: int, precision: str) -> bool:
    """Whether A has so many entries, and so many in a row, that its tiles are worth counting."""
    return precision in LEAST_FILLED and nnz >= max(LEAST_ENTRIES, LEAST_ROW * rows)


def pay(nnz: int, tiles: int, precision: str) -> bool:
    """Whether the tiles of A are so full that the product by tiles is faster."""
    return nnz >= LEAST_FILLED[precision] * tiles
