"""The bins that rows of C go to, declared once: `SYMBOLIC` and `NUMERIC`.

A row goes to a bin twice: in the symbolic phase, which counts its entries, by its products and its window of columns;
in the numeric phase, which fills it, by its entries, too.  A bin says what it holds, and how many lanes or threads take
a row; of bins of a family, the first that holds a row takes it.  The kernels learn of them through the header that
`spectile.tsparse.cuda.shared` makes, the host from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

GROUP_THREADS = 128  # of a block whose groups of lanes take a row each
#: Names of a table's measures in a bin's `holds`, in the order of the arguments of its function in the header.
Holds = Mapping[str, int]


def padded(length: int, lanes: int) -> int:
    """Return the length of a group's table in shared memory, with the padding that keeps groups in different banks."""
    return length + lanes if lanes < 32 else length


@dataclass(frozen=True)
class Symbolic:
    """A bin of the symbolic phase.

    Attributes
    ----------
    name : str
    family : {"window", "table", "block", "hub", "sort"}
        What counts a row: a bitmap of its window, a table of its columns, a bitmap by a whole block, a sort; rows that
        would keep a block for long are counted by blocks or by a sort of all of their products (`choose.hub_ways`).
    holds : dict
        Columns of the window, products or columns, or products of a row, at most; a block takes any row.
    lanes : int
        Of a row; fewest, where the mean length of B's rows decides.
    words : int
        Of a row in shared memory.
    filled_by : tuple of str
        Numeric bins that its rows go to if few columns are met twice: what is compiled while rows are counted.
    """

    name: str
    family: str
    holds: Holds
    lanes: int
    words: int
    filled_by: tuple[str, ...]


SYMBOLIC = (
    Symbolic("WINDOW_2048", "window", {"columns": 2048}, 8, 64, ("WINDOW_2048_FEW", "WINDOW_2048")),
    Symbolic("WINDOW_8192", "window", {"columns": 8192}, 32, 256, ("WINDOW_8192", "BLOCK_SMALL")),
    # Three quarters of a table are filled at most, and half of those of the numeric phase.
    Symbolic("TABLE_32", "table", {"entries": 24}, 8, 32, ("TABLE_32", "TABLE_64")),
    Symbolic("TABLE_64", "table", {"entries": 48}, 8, 64, ("TABLE_64", "TABLE_256")),
    Symbolic("TABLE_256", "table", {"entries": 192}, 32, 256, ("TABLE_256", "TABLE_512")),
    Symbolic("TABLE_1024", "table", {"entries": 768}, 32, 1024, ("TABLE_512", "TABLE_1024", "BLOCK_SMALL")),
    Symbolic("BLOCK", "block", {}, 256, 0, ("BLOCK_SMALL", "BLOCK_LARGE")),
    Symbolic("HUB", "hub", {}, 256, 0, ("BLOCK_LARGE",)),
    Symbolic("SORT_4", "sort", {"products": 4}, 1, 4, ("SORT_4",)),
    Symbolic("SORT_16", "sort", {"products": 16}, 4, 16, ("SORT_16",)),
    Symbolic("SORT_32", "sort", {"products": 32}, 8, 32, ("SORT_32",)),
    Symbolic("SORT_64", "sort", {"products": 64}, 16, 64, ("SORT_64",)),
    Symbolic("SORT_128", "sort", {"products": 128}, 32, 128, ("SORT_128",)),
)


class Kernel(NamedTuple):
    """A kernel of the numeric phase, the only one of its unit: its function, the lanes of a row, its defines."""

    name: str
    lanes: int
    defines: dict[str, str]


@dataclass(frozen=True)
class Window:
    """Rows with a narrow window: a bitmap of its columns and the sums in shared memory, some lanes a row.

    Of several numbers of `lanes` the mean length of B's rows decides.
    """

    name: str
    columns: int
    entries: int
    lanes: tuple[int, ...]
    family: ClassVar[str] = "window"

    @property
    def holds(self) -> Holds:
        """What a row has at most."""
        return {"columns": self.columns, "entries": self.entries}

    @property
    def words(self) -> int:
        """Words of the bitmap."""
        return self.columns // 32

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """One for each number of lanes."""
        return tuple(
            _kernel(self.name, lanes, LANES=lanes, WORDS=self.words, SUMS=self.entries) for lanes in self.lanes
        )

    def row_bytes(self, lanes: int, itemsize: int) -> int:
        """Return the shared memory of a row, as ``window.cu`` divides it."""
        return 8 * padded(self.words, lanes) + itemsize * padded(self.entries, lanes)


@dataclass(frozen=True)
class Table:
    """Short rows with a wide window: a hash table of their columns, filled to a half, and a sort; some lanes a row."""

    name: str
    slots: int
    lanes: int
    family: ClassVar[str] = "table"

    @property
    def holds(self) -> Holds:
        """What a row has at most."""
        return {"entries": self.slots // 2}

    @property
    def log(self) -> int:
        """The logarithm of the slots."""
        return self.slots.bit_length() - 1

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel, whatever the family it is compiled for."""
        return (_kernel(self.name, self.lanes, LANES=self.lanes, TABLE_LOG=self.log),)

    def row_bytes(self, lanes: int, itemsize: int) -> int:
        """Return the shared memory of a row, as ``hash.cu`` divides it."""
        return (4 + itemsize) * padded(self.slots, lanes) + 2 * self.slots


@dataclass(frozen=True)
class Block:
    """Long rows with a wide window: a bitmap of it and the sums, in shared memory or global; a block a row.

    Attributes
    ----------
    threads : int
        Of a block.
    shared_words, shared_sums : bool
        Whether the bitmap and the sums are in shared memory.
    most_bytes : int
        Of shared memory, where that is less than a block may have.
    """

    name: str
    threads: int
    shared_words: bool
    shared_sums: bool
    most_bytes: int = 0
    family: ClassVar[str] = "block"

    @property
    def holds(self) -> Holds:
        """Nothing that is a number of the row alone."""
        return {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel."""
        places = {"SHARED_WORDS": int(self.shared_words), "SHARED_SUMS": int(self.shared_sums)}
        return (_kernel(self.name, self.threads, BLOCK_THREADS=self.threads, **places),)


@dataclass(frozen=True)
class Sort:
    """Rows of few products: all of them side by side in the registers of some lanes, four each, sorted by column."""

    name: str
    products: int
    family: ClassVar[str] = "sort"

    @property
    def holds(self) -> Holds:
        """What a row has at most."""
        return {"products": self.products}

    @property
    def lanes(self) -> int:
        """Lanes of a row."""
        return self.products // 4

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel."""
        return (_kernel(self.name, self.lanes, LANES=self.lanes),)

    def row_bytes(self, lanes: int, itemsize: int) -> int:
        """Return the shared memory of a row, as ``sort.cu`` divides it."""
        return (8 * itemsize + 24) * lanes + 8


Numeric = Window | Table | Block | Sort

NUMERIC: tuple[Numeric, ...] = (
    Window("WINDOW_2048_FEW", 2048, 256, lanes=(8, 16, 32)),
    Window("WINDOW_2048", 2048, 2048, lanes=(32,)),
    Window("WINDOW_8192", 8192, 1024, lanes=(32,)),
    Table("TABLE_32", 32, lanes=8),
    Table("TABLE_64", 64, lanes=8),
    Table("TABLE_256", 256, lanes=32),
    Table("TABLE_512", 512, lanes=32),
    Table("TABLE_1024", 1024, lanes=32),
    Block("BLOCK_SMALL", 128, shared_words=True, shared_sums=True, most_bytes=48 * 1024),
    Block("BLOCK_LARGE", 512, shared_words=True, shared_sums=True),
    Block("BLOCK_GLOBAL_SUMS", 512, shared_words=True, shared_sums=False),
    Block("BLOCK_GLOBAL", 256, shared_words=False, shared_sums=False),
    Sort("SORT_4", 4),
    Sort("SORT_16", 16),
    Sort("SORT_32", 32),
    Sort("SORT_64", 64),
    Sort("SORT_128", 128),
)
WINDOWS = tuple(one for one in NUMERIC if isinstance(one, Window))
TABLES = tuple(one for one in NUMERIC if isinstance(one, Table))
BLOCKS = tuple(one for one in NUMERIC if isinstance(one, Block))
SORTS = tuple(one for one in NUMERIC if isinstance(one, Sort))
#: Places of the bins in the lists and counters of a phase, by name.
SYMBOLIC_PLACES = {one.name: place for place, one in enumerate(SYMBOLIC)}
NUMERIC_PLACES = {one.name: place for place, one in enumerate(NUMERIC)}


def _kernel(name: str, lanes: int, **defines: int) -> Kernel:
    return Kernel(f"numeric_{name.lower()}_{lanes}", lanes, {key: str(value) for key, value in defines.items()})


def family_places(family: str) -> slice:
    """Return the places of the symbolic bins of a family, which lie side by side."""
    places = [place for place, one in enumerate(SYMBOLIC) if one.family == family]
    return slice(places[0], places[-1] + 1)
