"""Lists of the products of each entry of C, for many products with the same patterns (``list.cu``)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.launch import Shape, kernel
from spectile.tsparse.cuda import units
from spectile.tsparse.cuda.plans import Addresses
from spectile.tsparse.cuda.rows.count import Phase
from spectile.tsparse.types import Factor

#: Products of an entry of C, in the mean, from which the kernels for known columns read fewer bytes.
_MANY = 12
#: Entries of a row of A, and so products of an entry of C, whose list one thread still sorts in good time.
_LONGEST_ROW = 2**14
_THREADS, _READERS, _MOST_BLOCKS = 256, 8, 2**15


class ProductLists:
    """The products of each entry of C in the order of k: 8 bytes a product and 4 an entry; made by `make`.

    Calling it computes the values of C with one launch, without a wait.
    """

    def __init__(self, left: Factor, right: Factor, phase: Phase, indices: Any) -> None:
        import cupy

        entries = phase.entries
        patterns = (left.indptr, left.indices, right.indptr, right.indices, phase.indptr, indices)
        sizes, unit = (np.int32(left.nnz), np.int32(phase.rows)), units.LIST["float32"]
        shape = making(left.nnz)
        counts = cupy.zeros(entries, np.uint32)
        kernel(unit, "count_products")(shape, *sizes, *patterns, counts)
        self._starts = cupy.empty(entries + 1, np.uint32)
        self._starts[:1] = 0
        cupy.cumsum(counts, dtype=np.uint32, out=self._starts[1:])
        self._lists = cupy.empty(phase.products, np.uint64)
        kernel(unit, "list_products")(shape, *sizes, *patterns, counts, self._starts, self._lists)
        kernel(unit, "sort_lists")(each(entries), np.int32(entries), self._starts, self._lists)
        self._entries = entries
        self._bound = threading.local()  # no two threads write the same addresses
        cupy.cuda.get_current_stream().synchronize()  # later calls may be on other streams

    def __call__(self, data_a: Any, data_b: Any, out: Any) -> None:
        """Launch for values of A and B, both float32 or both float64 as `out` is."""
        kind = out.dtype.char
        kept = self._bound.__dict__.get(kind)
        if kept is None:
            kept = self._bound.__dict__[kind] = self._bind(str(out.dtype))
        addresses, launch = kept
        addresses.set(data_a.data.ptr, data_b.data.ptr, out.data.ptr)
        launch()

    def _bind(self, value: str) -> tuple[Addresses, Any]:
        addresses = Addresses(3)
        arguments = (np.int32(self._entries), self._starts, self._lists, *(addresses[i] for i in range(3)))
        return addresses, kernel(units.LIST[value], "numeric_list").bind(each(self._entries), *arguments)


def each(count: int) -> Shape:
    """Return the launch of a thread for each of so many."""
    return Shape((-(-count // _THREADS),), _THREADS)


def making(nnz_a: int) -> Shape:
    """Return the launches that count and list products, some lanes for each entry of A."""
    return Shape((min(-(-nnz_a * _READERS // _THREADS), _MOST_BLOCKS),), _THREADS)


def make(left: Factor, right: Factor, phase: Phase, indices: Any) -> ProductLists | None:
    """Return the lists of a product, or None where they are long or do not fit in half of the free memory."""
    if not phase.entries or phase.products > min(2**32 - 1, _MANY * phase.entries):
        return None
    if 8 * (phase.products + phase.entries) > memory.free_bytes() // 2:
        return None
    if int((left.indptr[1:] - left.indptr[:-1]).max()) > _LONGEST_ROW:
        return None
    return ProductLists(left, right, phase, indices)
