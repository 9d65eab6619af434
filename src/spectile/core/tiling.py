"""Whole numbers of tiles, blocks and pieces."""

from __future__ import annotations


def ceil_div(count: int, size: int) -> int:
    """Return how many pieces of `size` hold `count` items.

    Examples
    --------
    >>> ceil_div(9, 4), ceil_div(8, 4), ceil_div(0, 4)
    (3, 2, 0)
    """
    return -(-count // size)
