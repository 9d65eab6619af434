"""Whether a product goes by tiles or by rows: what ``method="auto"`` decides by.

Tiles cost a conversion and more launches and waits than rows, some 0.1 ms that only much work in full tiles brings
back.
"""

from __future__ import annotations

#: Entries of A from which its tiles are counted, which costs 0.1 ms more.
LEAST_ENTRIES = 2**20
#: Entries of a row of A, on average, from which its tiles are counted.
LEAST_ROW = {"float64": 48, "tf32": 80, "float32": 80}
#: Entries of a tile, on average, from which tiles are faster (docs/notes/tsparse.md).  float16 stays by rows, which
#: need no scaling where tiles do.
LEAST_FILLED = {"float64": 20.0, "tf32": 32.0, "float32": 40.0}


def may_pay(nnz: int, rows: int, precision: str) -> bool:
    """Whether A has so many entries, and so many in a row, that its tiles are worth counting."""
    return precision in LEAST_ROW and nnz >= max(LEAST_ENTRIES, LEAST_ROW[precision] * rows)


def pay(nnz: int, tiles: int, precision: str) -> bool:
    """Whether the tiles of A are so full that the product by tiles is faster."""
    return nnz >= LEAST_FILLED[precision] * tiles
