"""Lists of the products of each entry of C, for many products with the same patterns (``list.cu``)."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.plans import Addresses
from spectile.tsparse.cuda.rows.count import Phase
from spectile.tsparse.types import Factor

#: Products of an entry of C, in the mean, up to which lists of words of 32 and of 64 bits beat the kernels for known
#: columns, over products of both float types (docs/notes/tsparse.md).
_MOST_PACKED, _MOST = 24, 12
#: Entries of a row of A, and so products of an entry of C, which packed lists count in 16 bits.
_LONGEST_ROW = 2**16 - 1
_WORD_BITS = 32  # of a packed product
_THREADS, _READERS, _MOST_BLOCKS = 256, 8, 2**15


class ProductLists:
    """The products of each entry of C in the order of k, made by `make`: 4 bytes a product and 2 an entry, or 8 and 4.

    A word of 32 bits holds the entry of B, and that of A counted from the first which 32 entries of C meet; where these
    lie too far apart, a word has 64 bits.  Calling it computes the values of C with one launch, without a wait.
    """

    def __init__(self, left: Factor, right: Factor, phase: Phase, indices: Any) -> None:
        import cupy

        entries = phase.entries
        patterns = (left.indptr, left.indices, right.indptr, right.indices, phase.indptr, indices)
        sizes, unit = (np.int32(left.nnz), np.int32(phase.rows)), units.LIST["float32"]
        shape = making(left.nnz)
        counts = cupy.zeros(entries, np.uint32)
        kernel(unit, "count_products")(shape, *sizes, *patterns, counts)
        starts = cupy.empty(entries + 1, np.uint32)
        starts[:1] = 0
        cupy.cumsum(counts, dtype=np.uint32, out=starts[1:])
        words = cupy.empty(phase.products, np.uint64)
        kernel(unit, "list_products")(shape, *sizes, *patterns, counts, starts, words)
        kernel(unit, "sort_lists")(choose.lanes_each(entries), np.int32(entries), starts, words)
        del counts
        self._name, self._arguments = self._packed(entries, right.nnz, starts, words)
        self._entries, self._array = entries, cupy.ndarray
        self._bound = threading.local()  # no two threads write the same addresses
        cupy.cuda.get_current_stream().synchronize()  # later calls may be on other streams

    @staticmethod
    def _packed(entries: int, nnz_b: int, starts: Any, words: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the kernel and its arguments before the values: for words of 32 bits if those hold each product."""
        import cupy

        unit, shape, count = units.LIST["float32"], choose.lanes_each(entries), np.int32(entries)
        heads, widest = cupy.empty((ceil_div(entries, 32), 2), np.uint32), cupy.zeros(1, np.uint32)
        kernel(unit, "find_heads")(shape, count, starts, words, heads, widest)
        bits = (nnz_b - 1).bit_length()
        if bits + int(widest[0]).bit_length() > _WORD_BITS:
            return "numeric_list", (count, starts, words)
        counts, packed = cupy.empty(entries, np.uint16), cupy.empty(len(words), np.uint32)
        kernel(unit, "pack_lists")(shape, count, np.int32(bits), starts, words, heads, counts, packed)
        return "numeric_packed", (count, np.int32(bits), heads, counts, packed)

    @property
    def is_packed(self) -> bool:
        """Whether a product takes a word of 32 bits."""
        return self._name == "numeric_packed"

    def __call__(self, data_a: Any, data_b: Any, out: Any) -> None:
        """Launch for values of A and B, both float32 or both float64 as `out` is."""
        kind = out.dtype.char
        bound = self._bound.__dict__
        kept = bound.get(kind)
        if kept is None:
            kept = bound[kind] = self._bind(str(out.dtype))
        addresses, launch = kept
        bound["last"] = None  # whatever stops this call
        addresses.set(address(data_a), address(data_b), address(out))
        if type(data_a) is type(data_b) is type(out) is self._array:  # whose memory and type of values never change
            bound["last"] = weakref.ref(data_a), weakref.ref(data_b), weakref.ref(out), launch
        launch()

    def again(self, data_a: Any, data_b: Any, out: Any) -> bool:
        """Launch again if this thread launched for the very same arrays last, and return whether it did."""
        last = self._bound.__dict__.get("last")
        if last is None or data_a is None or data_b is None or out is None:
            return False
        if last[0]() is data_a and last[1]() is data_b and last[2]() is out:
            last[3]()
            return True
        return False

    def _bind(self, value: str) -> tuple[Addresses, Any]:
        addresses = Addresses(3)
        arguments = (*self._arguments, *(addresses[i] for i in range(3)))
        return addresses, kernel(units.LIST[value], self._name).bind(choose.lanes_each(self._entries), *arguments)


def making(nnz_a: int) -> Shape:
    """Return the launches that count and list products, some lanes for each entry of A."""
    return Shape((min(ceil_div(nnz_a * _READERS, _THREADS), _MOST_BLOCKS),), _THREADS)


def make(left: Factor, right: Factor, phase: Phase, indices: Any) -> ProductLists | None:
    """Return the lists of a product, or None where they are long or do not fit in half of the free memory."""
    if not phase.entries or phase.products > min(2**32 - 1, _MOST_PACKED * phase.entries):
        return None
    if 12 * (phase.products + phase.entries) > memory.free_bytes() // 2:
        return None
    if int((left.indptr[1:] - left.indptr[:-1]).max()) > _LONGEST_ROW:
        return None
    lists = ProductLists(left, right, phase, indices)
    return lists if lists.is_packed or phase.products <= _MOST * phase.entries else None
