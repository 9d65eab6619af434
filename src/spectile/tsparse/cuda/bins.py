"""The bins that rows of C go to, declared once: `SYMBOLIC` and `NUMERIC`.

A row goes to a bin twice: in the symbolic phase, which counts its entries, by its products and its window of columns;
in the numeric phase, which fills it, by its entries, too.  A bin says what it holds, and how many lanes or threads take
a row; of bins of a family, the first that holds a row takes it.  The kernels learn of them through the header that
`spectile.tsparse.cuda.shared` makes, the host from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

GROUP_THREADS = 128  # of a block whose groups of lanes take a row each
PITCH = 33  # from an entry to the next of a row that a thread fills: those side by side lie in different banks


class Kernel(NamedTuple):
    """A kernel of the numeric phase, the only one of its unit: its function, the lanes of a row, its defines."""

    name: str
    lanes: int
    defines: dict[str, str]


@dataclass(frozen=True)
class Bin:
    """A bin of one phase."""

    name: str
    #: How a row is gathered: a bitmap of a window, or a table of columns, by some lanes; a bitmap by a block; all
    #: products of a hub row, by blocks or a sort (`choose.hub_ways`); few products sorted in the registers of some
    #: lanes, four each, or by one thread, whose rows the analysis counts at once and no list names.  {"window",
    #: "table", "block", "hub", "sort", "few"}.
    family: str
    #: Columns of the window, products, or entries of a row, at most; a block takes any row.  In this order they are
    #: the arguments of the family's function in the header.
    holds: Mapping[str, int]
    lanes: tuple[int, ...]  #: Lanes or threads of a row; of several, the mean length of B's rows decides.
    words: int = 0  #: Of a row in shared memory where it is counted by lanes.
    #: Of the symbolic phase: numeric bins that its rows go to if few columns are met twice, which are compiled while
    #: rows are counted.
    filled_by: tuple[str, ...] = ()
    whole: bool = False  #: Whether a block has all of a row, its bitmap and its sums, in shared memory.
    sparse: bool = False  #: Whether a block holds those words of its bitmap alone that have bits.
    most_bytes: int = 0  #: Of a block's shared memory, where that is less than it may have.

    @property
    def slots(self) -> int:
        """Slots of a table of the numeric phase, which is filled to a half."""
        return 2 * self.holds["entries"]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those of the numeric phase, one for each number of lanes."""
        return tuple(
            Kernel(f"numeric_{self.name.lower()}_{lanes}", lanes, self._defines(lanes)) for lanes in self.lanes
        )

    def _defines(self, lanes: int) -> dict[str, str]:
        defines: dict[str, Any] = {"BLOCK_THREADS" if self.family == "block" else "LANES": lanes}
        if self.family == "window":
            defines |= {"WORDS": self.holds["columns"] // 32, "SUMS": self.holds["entries"]}
        elif self.family == "table":
            defines["TABLE_LOG"] = self.slots.bit_length() - 1
        elif self.family == "block":
            defines |= {"WHOLE": int(self.whole), "SPARSE": int(self.sparse)}
        return {name: str(value) for name, value in defines.items()}

    def row_bytes(self, lanes: int, itemsize: int) -> int:
        """Return the shared memory of a row of the numeric phase, as the family's kernel divides it."""
        if self.family == "window":
            return 8 * padded(self.holds["columns"] // 32, lanes) + itemsize * padded(self.holds["entries"], lanes)
        if self.family == "table":
            return (4 + itemsize) * padded(self.slots, lanes) + 2 * self.slots
        if self.family == "sort":
            return (8 * itemsize + 24) * lanes + 8
        return 2 * itemsize * self.holds["products"]


def padded(length: int, lanes: int) -> int:
    """Return the length of a group's table in shared memory, with the padding that keeps groups in different banks."""
    return length + lanes if lanes < 32 else length


#: Of rows that the analysis counts and a thread each fills: all rows are looked at, and those of other bins passed.
FEW = Bin("FEW", "few", {"products": 16}, (1,), filled_by=("FEW",))
SORTS = tuple(
    Bin(name := f"SORT_{products}", "sort", {"products": products}, (products // 4,), products, (name,))
    for products in (32, 64, 128)
)
SYMBOLIC = (
    Bin("WINDOW_2048", "window", {"columns": 2048}, (8,), 64, ("WINDOW_2048_FEW", "WINDOW_2048")),
    Bin("WINDOW_8192", "window", {"columns": 8192}, (32,), 256, ("WINDOW_8192", "BLOCK_SMALL")),
    # Three quarters of a table are filled at most, and half of those of the numeric phase.
    Bin("TABLE_32", "table", {"entries": 24}, (8,), 32, ("TABLE_32", "TABLE_64")),
    Bin("TABLE_64", "table", {"entries": 48}, (8,), 64, ("TABLE_64", "TABLE_256")),
    Bin("TABLE_256", "table", {"entries": 192}, (32,), 256, ("TABLE_256", "TABLE_512")),
    Bin("TABLE_1024", "table", {"entries": 768}, (32,), 1024, ("TABLE_512", "TABLE_1024", "BLOCK_SMALL")),
    Bin("BLOCK", "block", {}, (256,), filled_by=("BLOCK_SMALL", "BLOCK_LARGE")),
    Bin("HUB", "hub", {}, (256,), filled_by=("BLOCK_LARGE",)),
    # Of rows whose bitmap has several words for each product.
    Bin("BLOCK_TABLE", "block_table", {"entries": 6144}, (256,), 8192, ("TABLE_256", "TABLE_512", "BLOCK_SPARSE")),
    *SORTS,
    FEW,
)
WINDOWS = (
    Bin("WINDOW_2048_FEW", "window", {"columns": 2048, "entries": 256}, (8, 16, 32)),
    Bin("WINDOW_2048", "window", {"columns": 2048, "entries": 2048}, (32,)),
    Bin("WINDOW_8192", "window", {"columns": 8192, "entries": 1024}, (32,)),
)
TABLES = tuple(
    Bin(f"TABLE_{slots}", "table", {"entries": slots // 2}, (lanes,))
    for slots, lanes in ((32, 8), (64, 8), (256, 32), (512, 32), (1024, 32))
)
BLOCKS = (
    Bin("BLOCK_SMALL", "block", {}, (128,), whole=True, most_bytes=48 * 1024),
    # Of windows with several words for each entry.
    Bin("BLOCK_SPARSE", "block", {}, (256,), whole=True, sparse=True, most_bytes=48 * 1024),
    Bin("BLOCK_SPARSE_LARGE", "block", {}, (512,), whole=True, sparse=True),
    Bin("BLOCK_LARGE", "block", {}, (512,), whole=True),
    Bin("BLOCK_PARTS", "block", {}, (512,)),  # its sums in global memory, its window part by part
)
NUMERIC = (*WINDOWS, *TABLES, *BLOCKS, *SORTS)
#: Places of the bins in the lists and counters of a phase, by name.
SYMBOLIC_PLACES = {one.name: place for place, one in enumerate(SYMBOLIC)}
NUMERIC_PLACES = {one.name: place for place, one in enumerate(NUMERIC)}


def family_places(family: str) -> slice:
    """Return the places of the symbolic bins of a family, which lie side by side."""
    places = [place for place, one in enumerate(SYMBOLIC) if one.family == family]
    return slice(places[0], places[-1] + 1)
