"""The symbolic phase of the product by rows: analysis, entries of each row of C, row pointer (``rows.cuh``).

It ends with the one wait of a product: the host reads the entries of C and the bins of the numeric phase.  Nothing but
C, a few integers per row and bitmaps of narrow rows (`choose.kept_words`) is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.choice import cheapest
from spectile.core.compile import is_compiling
from spectile.core.device import describe
from spectile.core.launch import BoundLaunch, kernel, measured_device
from spectile.core.pointers import address
from spectile.tsparse.cuda import bins, choose, units
from spectile.tsparse.cuda.counters import FAMILIES, Counters, Head
from spectile.tsparse.cuda.plans import Addresses, plan
from spectile.tsparse.cuda.rows.hubs import HubRows
from spectile.tsparse.cuda.shared import CONSTANTS, HEAD, HEAD_WORDS
from spectile.tsparse.cuda.streams import side_by_side
from spectile.tsparse.types import Factor


@dataclass
class Phase:
    """What the symbolic phase of some rows leaves for the numeric phase; addresses point into `work`."""

    #: The first row of C and their number.
    first: int
    rows: int
    indptr: Any  #: Row pointer of these rows of C.
    head: Head  #: The counters.
    work: Any = None
    #: Addresses of the first column and the width of each row's window, of the place of its bitmap, of the rows of
    #: each bin, and of the bitmaps of the rows of window bins; a row whose words would lie beyond their end has
    #: none.
    low: int = 0
    span: int = 0
    slot: int = 0
    lists: int = 0
    kept: int = 0
    kept_words: int = 0  #: Words of `kept`.
    scratch_bytes: int = 0  #: Bytes of bitmaps in global memory, at most.
    hubs: HubRows | None = None  #: The products of the hub rows where these are sorted.
    entries: int = field(init=False)  #: Stored entries of these rows.

    def __post_init__(self) -> None:
        self.entries = self.head.wide("ENTRIES")

    @property
    def counts(self) -> Any:
        """Stored entries of each row, on the device."""
        import cupy

        return cupy.ndarray(self.rows, np.int32, self.work + 12 * self.rows) if self.rows else cupy.empty(0, np.int32)

    @property
    def products(self) -> int:
        """Multiplications of these rows."""
        return self.head.wide("PRODUCTS")


def count_rows(
    A: Factor,
    B: Factor,
    first: int,
    stop: int,
    value: str,
    counters: Counters | None = None,
    scratch_bytes: int | None = None,
) -> Phase:
    """Find the row pointer of rows `first` to `stop` of C.

    `counters` are those that the check of the factors wrote to; `Invalid` is raised if a flag is set.  Where the bytes
    of bitmaps that shared memory does not hold are limited, so is all other memory, and hub rows are blocks'.
    """
    import cupy

    rows = stop - first
    if counters is None:
        counters = Counters(rows)
    indptr = cupy.empty(rows + 1, np.int32)
    if not rows:
        indptr.fill(0)
        return Phase(first, 0, indptr, Head.empty())
    key = ("count", counters.device, value, rows, A.shape, A.nnz, B.shape[1], B.nnz)

    def made() -> _Launches:
        cold = is_compiling(units.SYMBOLIC_SORTS) or is_compiling(units.SYMBOLIC_TABLES)
        return _Launches(value, rows, A, B, _foresee(A, B, first, rows, value, counters) if cold else None)

    launches: _Launches = plan(key, made)
    work, kept_words = cupy.cuda.alloc(launches.work_bytes), launches.kept_words
    at = work.ptr
    low, span, slot, entries, lists = range(at, at + 20 * rows, 4 * rows)
    kept = at + 4 * (4 + choose.LISTS) * rows
    launches.addresses.set(
        address(A.indptr) + 4 * first, address(A.indices), address(B.indptr), address(B.indices),
        low, span, slot, entries, lists, kept, address(indptr), counters.head, counters.states, launches.hubs,
        *counters.ask(),
    )  # fmt: skip
    bitmaps = choose.SCRATCH_BYTES if scratch_bytes is None else scratch_bytes
    scratch = launches(counters, bitmaps)
    counted = counters.told()
    del scratch
    counted.raise_invalid()
    if launches.left_out(counted):
        del work, indptr  # before they are made anew
        return count_rows(A, B, first, stop, value, None, scratch_bytes)
    sorted_hubs = None
    if counted.hubs:
        room = _room if scratch_bytes is None else None
        ways = choose.hub_ways(counted, B.shape[1], np.dtype(value).itemsize, measured_device(), room)
        by_sort = cheapest("tsparse", ways) is ways[1]
        if launches.hubs == CONSTANTS["HUBS_OPEN"]:
            if by_sort:
                listed = lists + 4 * choose.list_start(bins.SYMBOLIC_PLACES["HUB"], rows, counted.hubs)
                sizes = counted.hubs, counted[HEAD["HUB_ENTRIES"]], counted.wide("HUB_PRODUCTS")
                sorted_hubs = HubRows(A, B, first, sizes, np.uint64(listed), np.uint64(entries))
            counted = launches.with_hubs(counters, counted, bitmaps, by_sort)
        launches.hubs = CONSTANTS["HUBS_OPEN" if by_sort else "HUBS_IN_BLOCKS"]
    return Phase(first, rows, indptr, counted, work, low, span, slot, lists, kept, kept_words, bitmaps, sorted_hubs)


def _room() -> int:
    """Return the bytes for the products of hub rows."""
    return memory.free_bytes() // 4


def _entries(A: Factor, rows: int) -> int:
    """Return the entries that so many rows of A hold, on average."""
    return min(max(A.nnz * rows // A.shape[0], 1), 2**31 - 1)


def _foresee(A: Factor, B: Factor, first: int, rows: int, value: str, counters: Counters) -> frozenset[str]:
    """Begin to compile what will fill the rows, while what counts them is being compiled; return the families of rows.

    Both are known from the analysis alone, which is made here once more, with counters of its own.
    """
    import cupy

    own, work = Counters(rows), cupy.cuda.alloc(4 * (4 + choose.LISTS) * rows)
    cupy.cuda.runtime.memcpyAsync(own.head, counters.head, 4 * HEAD_WORDS, 3, own.stream)  # 3: on the device
    low, span, slot, entries, lists = (np.uint64(work.ptr + 4 * rows * place) for place in range(5))
    pattern = A.indptr[first:], A.indices, B.indptr, B.indices
    _analysis(A, B, rows, *pattern, low, span, entries, slot, lists, np.uint64(own.head))(own.stream)
    head = own.read()
    mean_b = head.wide("PRODUCTS") / _entries(A, rows)
    units.prepare_numeric(value, choose.foreseen(head, B.shape[1], mean_b))
    return head.families()


def _analysis(A: Factor, B: Factor, rows: int, *addresses: Any) -> BoundLaunch:
    """Return the launch of the analysis of so many rows of A; `addresses` are the kernel's arguments from A's on."""
    log, shape = choose.analysis(rows, A.nnz / max(A.shape[0], 1))
    sizes = np.int32(rows), np.int32(B.shape[1]), np.int32(log), np.int32(choose.least_sorted(rows, describe()))
    return kernel(units.ANALYSIS, "analyse").bind(shape, *sizes, *addresses)


class _Launches:
    """The launches of the symbolic phase, for addresses that are set before."""

    def __init__(self, value: str, rows: int, A: Factor, B: Factor, foreseen: frozenset[str] | None = None) -> None:
        device = describe()
        nnz = _entries(A, rows)
        kept_words = self.kept_words = choose.kept_words(rows, nnz)
        self.work_bytes = 4 * (4 + choose.LISTS) * rows + 4 * kept_words
        self.addresses = Addresses(16)
        *pattern, low, span, slot, entries, lists, kept, indptr, head, states, hubs, host, call = (
            self.addresses[i] for i in range(16)
        )
        #: How the hub rows of the product before, of these sizes, were counted, if they were a block's.
        self.hubs = CONSTANTS["HUBS_OPEN"]
        count, size = np.int32(rows), np.int32(nnz)
        self._analyse = _analysis(A, B, rows, *pattern, low, span, entries, slot, lists, head)

        by_blocks, groups = choose.symbolic_groups(rows, nnz, device)
        rows_of = (count, size, lists, *pattern, low, span, slot, entries, kept, np.int32(kept_words), head)
        units_of = {
            "window": units.SYMBOLIC_WINDOWS[by_blocks], "table": units.SYMBOLIC_TABLES, "sort": units.SYMBOLIC_SORTS
        }  # fmt: skip
        #: Unit, function, shape and arguments of the kernel of a family of bins, and what is bound until now.
        self._kernels = {name: (unit, "symbolic_groups", groups, rows_of) for name, unit in units_of.items()}
        self._bound: dict[str, Any] = {}

        # How many rows fall into which bin stays on the device, and the kernels read it, so that the host need not
        # wait; only bitmaps that shared memory does not hold ask for their size.
        block_arguments = (count, size, lists, *pattern, low, span, entries, head)
        #: Of blocks, by the family of the bin whose rows they count.
        self._block_arguments = {
            one.lower(): (np.int32(bins.SYMBOLIC_PLACES[one]), *block_arguments) for one in ("BLOCK", "HUB")
        }
        table = np.int32(bins.SYMBOLIC_PLACES["BLOCK_TABLE"]), count, size, lists, *pattern, entries, head
        self._kernels["block_table"] = (
            units.SYMBOLIC_BLOCK, "symbolic_block_table", choose.symbolic_block_table(rows, device), table
        )  # fmt: skip
        columns = B.shape[1]
        block = choose.symbolic_block(rows, columns, device)
        if block is not None:  # not for hub rows, which blocks share
            given = self._block_arguments["block"]
            self._kernels["block"] = units.SYMBOLIC_BLOCK, "symbolic_block_shared", block, given
        # Families that are launched: all but those that had no rows in the product before, of these sizes.
        possible = frozenset(FAMILIES) if choose.blocks_possible(columns, B.nnz) else frozenset(units_of)
        self._wanted = possible if foreseen is None else foreseen
        self._once_left_out: frozenset[str] = frozenset()
        self._seen: bytes | None = None

        limit = np.int32(choose.shared_limit(device, np.dtype(value).itemsize))
        arguments = (count, limit, entries, span, slot, indptr, lists, head, states, hubs, host, call)
        self._scan = kernel(units.PLACE[value], "place").bind(choose.scan(rows), *arguments)

    def __call__(self, counters: Counters, scratch_bytes: int) -> Any:
        """Launch; return the bitmaps in global memory, if any."""
        stream = counters.stream
        self._analyse(stream)
        scratch, launches = [], ([], [])  # type: tuple[list[Any], tuple[list[Any], list[Any]]]
        wanted = [family for family in FAMILIES if family in self._wanted]
        for family in wanted if self.hubs == CONSTANTS["HUBS_OPEN"] else [*wanted, "hub"]:
            if family in self._kernels:
                launch = self._bound.get(family) or self.bind(family)
            else:
                bitmaps, launch = self._global(family, counters.read(), scratch_bytes)
                scratch.append(bitmaps)
            if launch:
                launches[family not in choose.SHORT_FAMILIES].append(launch)
        side_by_side(*launches)
        self._scan(stream)
        return scratch

    def with_hubs(self, counters: Counters, head: Head, scratch_bytes: int, by_sort: bool) -> Head:
        """Count the hub rows by blocks where no sort has, find the row pointer of all, and return the counters."""
        scratch = None
        if not by_sort:
            scratch, launch = self._global("hub", head, scratch_bytes)
            launch(counters.stream)
        self.addresses.replace(13, CONSTANTS["HUBS_SORTED" if by_sort else "HUBS_IN_BLOCKS"])
        self.addresses.replace(15, counters.ask()[1])
        self._scan(counters.stream)
        counted = counters.told()
        del scratch
        return counted

    def bind(self, family: str) -> Any:
        """Return the launch for a family of bins, from now on the same."""
        unit, name, shape, arguments = self._kernels[family]
        bound = self._bound[family] = kernel(unit, name).bind(shape, *arguments)
        return bound

    def left_out(self, head: Head) -> bool:
        """Tell whether rows of a family were left out, and choose for the next product of these sizes.

        A launch for bins without rows costs as much as any other, so none is made after a product that had none there;
        a product that has is counted again, and from then on the launch is made whatever the product.
        """
        if head.symbolic == self._seen:
            return False
        present = head.families()
        missing = present - self._wanted
        self._once_left_out |= missing
        self._wanted, self._seen = present | self._once_left_out, head.symbolic
        return bool(missing)

    def _global(self, family: str, head: Head, scratch_bytes: int) -> tuple[Any, Any]:
        """Return bitmaps in global memory and the launch for a bin of long rows; None where no row is in it."""
        import cupy

        head.raise_invalid()
        words, shares, shape = choose.symbolic_block_global(head, scratch_bytes, describe(), family.upper())
        if shape is None:
            return None, None
        at_once = shape.grid[0] // shares
        words += words % 2  # and two behind each bitmap, in which the blocks that share it sum
        scratch = (cupy.empty if shares == 1 else cupy.zeros)(at_once * (words + 2), np.uint32)
        block = kernel(units.SYMBOLIC_BLOCK, "symbolic_block_global")
        bitmaps = scratch, np.int32(words), np.int32(shares)
        return scratch, block.bind(shape, *self._block_arguments[family], *bitmaps)
