"""The rank-2k update of Algorithm 3 by itself, as Table 1 and Figure 8 measure it."""

from __future__ import annotations

from typing import Any

from spectile.core import device
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas, add_lower
from spectile.evd.cuda.choose import tuning
from spectile.evd.cuda.matrix import Matrix

#: A and B are stored next to each other up to this many columns, and from this order on.
JOINED = (256, 8192)


def syr2k(a: Any, b: Any, c: Any, *, alpha: float = 1.0, block: int | None = None) -> None:
    """Add alpha (A Bᴴ + B Aᴴ) to the lower triangle of C in place, by growing batched products (Algorithm 3).

    Parameters
    ----------
    a, b : cupy.ndarray, shape (n, k), column-major
    c : cupy.ndarray, shape (n, n), column-major
        Overwritten; the diagonal blocks are written whole.
    alpha : float
    block : int, optional
        Size of the diagonal blocks; by default as the band reduction's.
    """
    import cupy

    n, k = a.shape
    block = block or tuning(device.describe()).syr2k_block
    blas = Blas(c.dtype)
    target = Matrix(address(c), c.strides[1] // c.itemsize, c.itemsize, c)
    if k <= JOINED[0] and n >= JOINED[1]:
        # [A B] [B A]ᴴ in one pass over C, which is what a thin update costs.
        v, x = (cupy.concatenate([left.T, right.T]) for left, right in ((a, b), (b, a)))
        add_lower(blas, n, 2 * k, alpha, address(v), n, address(x), n, target, 0, block)
        return
    pointers = [(address(x), x.strides[1] // x.itemsize) for x in (a, b)]
    for left, right in (pointers, pointers[::-1]):
        add_lower(blas, n, k, alpha, *left, *right, target, 0, block)
