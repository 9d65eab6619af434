"""Device memory: how large the pieces are that the stages work in, and what a whole solution takes."""

from __future__ import annotations

import math

from spectile.core.devices import Device
from spectile.evd.cuda.choose import LEAF, reduction_parameters
from spectile.evd.types import Scalar

#: Below this order work space is at most 2 GB, and pieces are as large as is fastest.
SMALL_ORDER = 8192


def padded_order(n: int) -> tuple[int, int]:
    """Return the levels, and the order, a multiple of 2^levels, that `divide_and_conquer` pads n to.

    As few levels as the largest leaves allow, or one more, whichever takes less time.
    """
    least = max(0, math.ceil(math.log2(n / LEAF)))
    ways = ((levels, -(-n // 2**levels) * 2**levels) for levels in (least, least + 1))
    return min(ways, key=lambda way: _merging_us(*way))


def _merging_us(levels: int, order: int) -> float:
    """Return about how many microseconds leaves, the launches of merges and their products take (an H200)."""
    leaf = order >> levels
    return 0.16 * leaf**2 + 70 * levels + 1e-7 * order**3


def _spare_elements(n: int) -> int:
    """Return how many elements a work space of 2.2 n² leaves beside the matrix, its panels and Q."""
    return int(1.2 * n * n) - 128 * n - padded_order(n)[1] ** 2


def merge_sizes(n: int) -> tuple[int, int]:
    """Return how many columns of the rank-one eigenvectors `divide_and_conquer` makes at a time, and for how many rows
    of each half the last merge does so.

    The last merge makes them again for each group of rows.  So many that the work space is 2.2 n² elements from
    SMALL_ORDER on, the matrix included.
    """
    order = padded_order(n)[1]
    if n < SMALL_ORDER:  # not worth making the rank-one eigenvectors again
        return min(order, 1024), order // 2
    left = _spare_elements(n)
    columns = min(max(192, min(left // order // 2, 1024)), order)
    rows = max(192, min((left - order * columns) // (order + 2 * columns), order // 8))
    return columns, min(rows, order // 2)


def tile_bytes(n: int) -> int:
    """Return how many bytes of tiles `apply_chasing` makes at a time, if one group of sweeps needs no more."""
    return 2**25 if n < SMALL_ORDER else min(2**27, 8 * _spare_elements(n))


def back_columns(n: int) -> tuple[int, int]:
    """Return how many reflectors of the band reduction `apply_panels` takes at a time, to how many columns of Z.

    To many, so that their products fill the device, as far as the work space of the merges has room.
    """
    reflectors = 512 if n >= 8192 else 256
    if n < SMALL_ORDER:
        return reflectors, n
    fitting = (_spare_elements(n) // reflectors - n) // 2
    return reflectors, min(8192, max(n // 4, min(n // 2, fitting)))


def workspace_bytes(n: int, scalar: Scalar, device: Device, *, vectors: bool, overwrite: bool = False) -> int:
    """Return the bytes of device memory that our stages need beyond their input.

    About n² elements, with eigenvectors 2.2 n² (from n = 16,384 on), and n² fewer in the input's own memory.  The
    eigenvectors of float32 and complex64 are formed in double precision, which takes 2 n² more.
    """
    itemsize, wide = scalar.itemsize, scalar.wide_bytes
    bandwidth, block = reduction_parameters(n, scalar, vectors=vectors, device=device)
    matrix = (0 if overwrite else itemsize * n * n) + n * (itemsize * bandwidth + 64 * 8)
    reduction = itemsize * 4 * block * n
    if not vectors:
        return matrix + reduction
    order = padded_order(n)[1]
    columns, rows = merge_sizes(n)
    # The last merge of a small matrix has another place for what it makes.
    merging = 8 * (order * (columns + order) if n < SMALL_ORDER else order * (columns + rows) + 2 * rows * columns)
    merging += 64 * 8 * order  # vectors of the merges, whose order is padded
    reflectors, width = back_columns(n)
    back = max(tile_bytes(n), itemsize * reflectors * (n + 2 * min(n, width)))
    narrow = 0 if itemsize == wide else itemsize * n * n
    return matrix + max(reduction, max(8 * order**2, wide * n * n) + max(merging, back + narrow))
