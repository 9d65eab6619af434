"""Hub rows of C, each of which a block would work on for longer than all others do: a sort of products (``hub.cu``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.types import Factor


class HubRows:
    """The products of the hub rows of C in the order of row, column and k, whose number they have counted.

    The rows of C are counted from row `first` of A; `sizes` are hub rows, their entries of A, and their products.  At
    `listed` are the hub rows, and at `counts` the entries of each row of C, of which those of the hub rows are written.
    """

    def __init__(
        self, A: Factor, B: Factor, first: int, sizes: tuple[int, int, int], listed: np.uint64, counts: np.uint64
    ) -> None:
        import cupy

        count, entries, products = sizes
        hubs, of_a = np.int32(count), (np.int32(count), np.int32(entries))
        self._products, self._sizes = products, (np.int32(products), np.int32(B.shape[1]))
        unit, indptr = units.HUB["float32"], A.indptr[first:]
        rows, starts, before = (cupy.empty(size, np.int32) for size in (count, count + 1, entries + 1))
        kernel(unit, "hub_starts")(choose.lanes_each(count + 1), hubs, listed, indptr, rows, starts)
        pattern = indptr, A.indices, B.indptr
        kernel(unit, "hub_lengths")(choose.lanes_each(entries), *of_a, rows, starts, *pattern, before)
        cupy.cumsum(before, dtype=np.int32, out=before)
        words, ranks = cupy.empty(products, np.uint64), cupy.empty(products, np.int32)
        each = choose.lanes_each(products)
        kernel(unit, "hub_products")(each, *of_a, *self._sizes, rows, starts, before, *pattern, B.indices, words)
        words.sort()
        kernel(unit, "hub_heads")(each, self._sizes[0], words, ranks)
        cupy.cumsum(ranks, dtype=np.int32, out=ranks)
        kernel(unit, "hub_entries")(choose.lanes_each(count), hubs, rows, starts, before, ranks, counts)
        self._arrays = words, ranks, rows, starts, before

    def fill(self, A: Factor, B: Factor, first: int, product: Sequence[Any]) -> None:
        """Write columns and values of the hub rows; `product` is row pointer, columns and values of C."""
        import cupy

        (indptr, indices, data), unit = product, units.HUB[product[2].dtype.name]
        factors = A.indptr[first:], A.indices, A.data, B.indptr, B.indices, B.data
        runs = self._products // choose.HUB_RUN  # that are long, at most
        longs = cupy.zeros(1 + runs, np.int32)
        arguments = (*self._sizes, *self._arrays, *factors, indptr)
        kernel(unit, "hub_values")(choose.lanes_each(self._products), *arguments, indices, data, longs)
        if runs:
            kernel(unit, "hub_long")(choose.hub_long(runs, describe()), *arguments, data, longs)
