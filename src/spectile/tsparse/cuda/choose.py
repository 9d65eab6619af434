"""Which kernel takes which rows of a product by rows, with how many lanes, blocks and bytes of shared memory.

Nothing here needs a device: the shape of every launch follows from sizes, from what the analysis counted, and from a
`Device`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.placement import GATHERED_SHARE
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import bins
from spectile.tsparse.cuda.counters import Head
from spectile.tsparse.cuda.shared import CONSTANTS, GROUPED, HEAD

SCRATCH_BYTES = 1 << 28  # of bitmaps that shared memory does not hold
_GROUPED_BYTES = 72 * 1024  # of shared memory for rows that share a block: what every device has
#: Shared memory that the block kernels hold beside what they ask for, for values of up to 8 bytes and of 16.
_STATIC_BYTES = {8: 16 * 1024, 16: 20 * 1024}
_ROW_WORDS = 128  # words of bitmaps kept per row, at most on average
#: Integers of a row in the lists of the bins, two of which share room for all rows.
LISTS = ceil_div(max(len(bins.SYMBOLIC), len(bins.NUMERIC)), 2)
#: Bytes of work space that a row takes at most: 5 integers, its place in the lists of the bins, bitmaps.
ROW_BYTES = 4 * (5 + LISTS) + 4 * _ROW_WORDS
#: Entries beyond which a row of A that meets a dense matrix is cut into pieces, those of a piece, threads of its block.
LONG_ROW, PIECE, LONG_THREADS = 256, 1024, 256
#: Bytes of the sums of pieces: X is taken by as many columns at a time.
_SUM_BYTES, _LONG_BLOCKS = 1 << 26, 4
#: Products of an entry of C, in a hub row, that one thread sums at most; and threads of a block that sums more.
HUB_RUN, HUB_THREADS = 32, 512
_SYMBOLIC_THREADS = 256  # of a block that counts one row
_LEAST_WORDS = 32  # of a part of a row's window
_LISTED = 1 << 14  # entries of A that have a product in a part, which its block lists
_GROUP_WARPS = bins.GROUP_THREADS // 32


#: What hub rows take: a step of a block that fills, and its blocks on a multiprocessor; the host for the sort, where a
#: launch takes it `LAUNCH_SECONDS` at most; bytes that the sort holds of a product, and that it reads and writes, and
#: the share of the bandwidth that it reaches.
_STEP_S, _STEP_BLOCKS, _HUB_S = 0.08e-6, 2, 600e-6
_HUB_BYTES, _HUB_TRAFFIC, _HUB_EFFICIENCY = 24, 300, 0.6
_MOST_HUBS = 1024
#: Families whose rows have few products for their lanes, so that a kernel's last rows end soon: their kernels follow
#: each other on one stream.  Another stream would cost more than it saves, on the host and in waits for events.
SHORT_FAMILIES = {"few", "sort", "table", "hash", "wide_hash"}
MOST_PARTS, MOST_HUB_PARTS = 1 << 12, 1 << 22  # of long rows, a block each, and where hub rows are among them
# As measured (docs/notes/tsparse.md, steps 5 and 7 of the ladder), per multiprocessor or per row: the same everywhere.
#: Mean entries of a row of A up to which so many lanes, their logarithm, analyse a row.
_ANALYSIS_LANES = ((6, 0), (16, 3), (float("inf"), 5))
#: Mean entries of a row of A from which a block counts a row where a warp a row would leave warps without one.
_LONG_ROWS = 16
#: Blocks a multiprocessor of symbolic kernels: of groups of lanes, and with a bitmap in shared and in global memory.
_GROUP_BLOCKS, _BLOCK_BLOCKS, _GLOBAL_BLOCKS, _TABLE_BLOCKS = 24, 4, 2, 5


def shared_limit(device: Device, itemsize: int = 8) -> int:
    """Return the dynamic shared memory that a block kernel may ask for, for values of so many bytes."""
    return device.shared_bytes - _STATIC_BYTES[max(itemsize, 8)]


def bitmap_words(columns: int) -> int:
    """Return the words of a bitmap of `columns` columns."""
    return ceil_div(columns, 32)


def kept_words(rows: int, nnz: int) -> int:
    """Return the most words of bitmaps that a phase keeps; a row whose bitmap does not fit is gathered twice."""
    return min(_ROW_WORDS * rows, 3 * nnz + 1024, 2**31 - 2**10)


def loop(count: int) -> Shape:
    """Return the launch of a loop over so many, whose steps 32 bits hold."""
    return Shape((min(ceil_div(count, 256), 2048),), 256)


def lanes_each(count: int, log: int = 0) -> Shape:
    """Return the launch of 2^log lanes for each of so many."""
    return Shape((max(ceil_div(count << log, 256), 1),), 256)


def dense_lanes(mean: float, columns: int) -> tuple[int, int]:
    """Return how a row of A, of a mean length, meets columns of X: logarithms of its parts and of columns at a time."""
    across = min((columns - 1).bit_length(), 5)
    return min(row_lanes(mean), 5 - across), across


def long_rows(nnz: int, columns: int, itemsize: int, device: Device) -> tuple[int, int, int, Shape]:
    """Return how long rows of A meet X: the most pieces, those whose sums are kept, columns at a time, and the launch.

    A long row has a piece for each `PIECE` of its entries and one at most for the rest.
    """
    summed = 2 * nnz // PIECE
    pieces = summed + nnz // LONG_ROW
    count = min(columns, max(_SUM_BYTES // (max(summed, 1) * itemsize) // 32 * 32, 32))
    return pieces, summed, count, Shape((min(max(pieces, 1), _LONG_BLOCKS * device.multiprocessors),), LONG_THREADS)


def analysis(rows: int, mean_a: float) -> tuple[int, Shape]:
    """Return the logarithm of the lanes that analyse a row, and the launch."""
    log = next(log for most, log in _ANALYSIS_LANES if mean_a <= most)
    return log, Shape((ceil_div(rows, CONSTANTS["ANALYSIS_THREADS"] >> log),), CONSTANTS["ANALYSIS_THREADS"])


def least_sorted(rows: int, device: Device) -> int:
    """Return the products that a bin of sorted rows has room for at least: so few rows share one, which fills them.

    There are warps for all of them at once, so that fewer lanes for a row would leave others without one.
    """
    return bins.SORTS[-1].holds["products"] if 32 * rows <= device.multiprocessors * device.threads else 0


def symbolic_groups(rows: int, nnz: int, device: Device) -> tuple[bool, Shape]:
    """Return whether a block counts a row of a window bin, and the launch for all bins but the block's."""
    many = device.multiprocessors
    by_blocks = rows <= _GROUP_BLOCKS * _GROUP_WARPS * many and nnz >= _LONG_ROWS * rows
    blocks = min(rows if by_blocks else ceil_div(rows, 4), _GROUP_BLOCKS * many)
    return by_blocks, Shape((blocks,), bins.GROUP_THREADS)


def blocks_possible(columns: int, nnz_b: int) -> bool:
    """Return whether a row of C may have so many products that a block counts it, as ``symbolic_bin`` decides.

    A row meets each entry of B once at most.
    """
    return nnz_b >= CONSTANTS["BLOCK_PRODUCTS"] or min(columns, nnz_b) > GROUPED


def symbolic_block(rows: int, columns: int, device: Device) -> Shape | None:
    """Return the launch for the block bin with its bitmaps in shared memory, or None where they do not fit."""
    shared = 4 * bitmap_words(columns)
    if shared > shared_limit(device):
        return None
    return Shape((min(rows, _BLOCK_BLOCKS * device.multiprocessors),), _SYMBOLIC_THREADS, shared)


def symbolic_block_table(rows: int, device: Device) -> Shape:
    """Return the launch for the bin of rows that a block counts by a table."""
    return Shape((min(rows, _TABLE_BLOCKS * device.multiprocessors),), _SYMBOLIC_THREADS)


def symbolic_block_global(
    head: Head, scratch_bytes: int, device: Device, name: str = "BLOCK"
) -> tuple[int, int, Shape | None]:
    """Return the words of a row's bitmap in global memory, the blocks that share a row, and the launch for a bin.

    None where the bin has no rows.  Few rows are shared by as many blocks as the device runs at once.
    """
    rows, words = head[HEAD["SYMBOLIC"] + bins.SYMBOLIC_PLACES[name]], bitmap_words(head[HEAD["MAX_SPAN"]])
    if not rows:
        return 0, 1, None
    most = _GLOBAL_BLOCKS * device.multiprocessors
    at_once = min(rows, most, max(1, scratch_bytes // (4 * words)))
    shares = max(1, most // rows) if at_once == rows else 1
    return words, shares, Shape((shares * at_once,), _SYMBOLIC_THREADS)


def hub_long(runs: int, device: Device) -> Shape:
    """Return the launch that sums the products of so many long runs of hub rows at most, a block each."""
    return Shape((min(runs, 2 * device.multiprocessors),), HUB_THREADS)


def row_parts(rows: int, words: int, most_words: int, device: Device) -> tuple[int, int]:
    """Return into how many parts of so many words the windows of rows are cut, of which a block holds `most_words`.

    Few rows are cut further, so that each of half of the blocks that run at once has a part: a block looks at all of a
    row's entries of A for each, and adds its products alone.
    """
    parts = min(device.multiprocessors // max(rows, 1), words // _LEAST_WORDS)
    each = min(most_words, ceil_div(words, max(parts, 1)))
    return ceil_div(words, each), each


def row_steps(products: int, length: int) -> int:
    """Return the steps of the block that fills a row of so many entries of A, as ``row_steps`` of ``analysis.cu``."""
    if products <= CONSTANTS["SHORT_B"] * length:
        return (length + products) // CONSTANTS["SHORT_STEP"]
    return length + products // CONSTANTS["STEP_PRODUCTS"]


def hub_ways(
    head: Head, columns: int, itemsize: int, device: Device, room: Callable[[], int] | None
) -> list[Candidate]:
    """Return the ways of hub rows: a block each, beside all other rows, or a sort of their products before them.

    ``room()`` returns the bytes for the products of the hub rows, and is asked where these are many; None where there
    is none.
    """
    rows, products = head.hubs, head.wide("HUB_PRODUCTS")
    steps = row_steps(products, head[HEAD["HUB_ENTRIES"]])
    # Of each other product a column is read twice and a value once, and an entry of C may be written.
    traffic = (head.wide("PRODUCTS") - products) * (12 + 2 * itemsize)
    others = traffic / (GATHERED_SHARE * device.bytes_per_second)
    # Each part of a row meets all of its entries of A, and its own products.
    parts, _ = row_parts(rows, bitmap_words(columns), shared_limit(device, itemsize) // 8, device)
    of_part = row_steps(products // parts, head[HEAD["HUB_ENTRIES"]])
    longest = head[HEAD["MOST_STEPS"]] * of_part / max(steps, 1)
    in_blocks = _STEP_S * max(longest, parts * of_part / (_STEP_BLOCKS * device.multiprocessors))
    held = _HUB_BYTES * products
    refusal = (
        f"{rows} rows of {columns} columns have no number of 32 bits" if rows * columns >= 2**32 or rows > _MOST_HUBS
        else f"{products} products are beyond 32 bits" if products > 2**31 - 2**10
        else "memory is limited" if room is None
        else f"their products take {held} bytes, of {room()}" if held > SCRATCH_BYTES and held > room()
        else None
    )  # fmt: skip
    traffic = (_HUB_TRAFFIC + itemsize) * products
    seconds = _HUB_S * device.host_slowness + traffic / (_HUB_EFFICIENCY * device.bytes_per_second) + others
    told = f"{rows} hub rows of {products:.3g} products, all of them {head.wide('PRODUCTS'):.3g}"
    return [
        Candidate("cuda: hub rows by blocks", max(in_blocks, others), f"{told}, {head[HEAD['MOST_STEPS']]} steps"),
        Candidate("cuda: hub rows by a sort", None if refusal else seconds, refusal or told),
    ]


def masked(entries: int, counting: bool, device: Device) -> Shape:
    """Return the launch that fills, or counts, so many entries of a mask: its warps take pieces one after the other."""
    warps, blocks = (CONSTANTS[("COUNTING" if counting else "MASK") + of] for of in ("_WARPS", "_BLOCKS"))
    return Shape((min(ceil_div(entries, warps), blocks * device.multiprocessors),), 32 * warps)


def scan(rows: int) -> Shape:
    """Return the launch of the prefix scan."""
    return Shape((ceil_div(rows, CONSTANTS["SCAN_ROWS"]),), 256)


@dataclass(frozen=True)
class NumericLaunch:
    """A kernel of the numeric phase for the rows of one bin."""

    family: str  # of `spectile.tsparse.cuda.units.NUMERIC`
    name: str
    bin: int | None  # whose list it reads; None where it looks at all rows
    rows: int
    shape: Shape
    parts: int = 1  # blocks that share a row
    listed: int = 0  # entries of A that each of them lists at most


def numeric(
    head: Head, rows: int, columns: int, mean_b: float, itemsize: int, device: Device, most_parts: int = MOST_PARTS
) -> Iterator[NumericLaunch]:
    """Yield the launches of the numeric phase, long rows first, for what the symbolic phase counted of so many rows.

    `mean_b` is the mean length of the rows of B that A meets; a value of C takes `itemsize` bytes.  Blocks share long
    rows where these have `most_parts` parts in all, at most.
    """
    filled = head.bins()
    yield from _blocks(head, filled, columns, mean_b, itemsize, device, most_parts)
    for family, kernel, one in _of_groups(columns, mean_b):
        number = bins.NUMERIC_PLACES[one.name]
        if filled[number]:
            row_bytes = one.row_bytes(kernel.lanes, itemsize)
            per_block = bins.GROUP_THREADS // kernel.lanes
            while per_block * row_bytes > _GROUPED_BYTES and per_block * kernel.lanes > 32:
                per_block //= 2
            shape = Shape((ceil_div(filled[number], per_block),), per_block * kernel.lanes, per_block * row_bytes)
            yield NumericLaunch(family, kernel.name, number, filled[number], shape)
    few = head[HEAD["SYMBOLIC"] + bins.SYMBOLIC_PLACES["FEW"]]
    if few:
        threads, warp_bytes = bins.GROUP_THREADS, bins.PITCH * bins.FEW.row_bytes(1, itemsize)
        while threads // 32 * warp_bytes > _GROUPED_BYTES:
            threads //= 2
        shape = Shape((ceil_div(rows, threads),), threads, threads // 32 * warp_bytes)
        yield NumericLaunch("few", bins.FEW.kernels[0].name, None, few, shape)


def _of_groups(columns: int, mean_b: float) -> Iterator[tuple[str, bins.Kernel, bins.Bin]]:
    """Yield family, kernel and bin of each kernel that gives a row to a group of lanes, long rows first."""
    # A word sorts a column with its slot where it holds both; wider products have their slots looked up.
    hashed = "hash" if columns < 2**32 // bins.TABLES[-1].slots else "wide_hash"
    for family, listed in ((hashed, bins.TABLES[::-1]), ("window", bins.WINDOWS), ("sort", bins.SORTS[::-1])):
        for one in listed:
            lanes = _window_lanes(mean_b) if len(one.lanes) > 1 else one.lanes[0]
            yield from ((family, kernel, one) for kernel in one.kernels if kernel.lanes == lanes)


def _window_lanes(mean_b: float) -> int:
    """Return the lanes of a row of a window bin with several numbers of lanes."""
    return 32 if mean_b > CONSTANTS["LONG_MEAN"] else 16 if mean_b > CONSTANTS["MIDDLE_MEAN"] else 8


def foreseen(head: Head, columns: int, mean_b: float) -> tuple[tuple[str, str], ...]:
    """Return family and name of the kernels that `numeric` will ask for, as far as the analysis tells."""
    filled = {
        name for place, one in enumerate(bins.SYMBOLIC) if head[HEAD["SYMBOLIC"] + place] for name in one.filled_by
    }
    blocks = (("block", one.kernels[0], one) for one in bins.BLOCKS)
    possible = (*blocks, *_of_groups(columns, mean_b), ("few", bins.FEW.kernels[0], bins.FEW))
    return tuple((family, kernel.name) for family, kernel, one in possible if one.name in filled)


def list_start(number: int, rows: int, count: int) -> int:
    """Return where the rows of a bin begin in the lists, as ``list_of`` of ``shared.cuh``."""
    return number // 2 * rows + (rows - count if number % 2 else 0)


def _blocks(
    head: Head, rows: list[int], columns: int, mean_b: float, itemsize: int, device: Device, most_parts: int
) -> Iterator[NumericLaunch]:
    for place, one in reversed(tuple(enumerate(bins.BLOCKS))):
        number = bins.NUMERIC_PLACES[one.name]
        if not rows[number]:
            continue
        kernel, shared, parts, listed = one.kernels[0], head[HEAD["MAX_BYTES"] + place], 1, 0
        if not one.whole:
            parts, words = row_parts(rows[number], bitmap_words(columns), shared // 8, device)
            # A block has all parts of a row where so many rows are work enough, unless one of them is a hub row.
            parts = 1 if parts * rows[number] > most_parts else parts
            if parts > 1:
                shared, room = 8 * words, shared_limit(device, itemsize) - 8 * words
                # Not where most entries of A have products in each part.
                listed = _LISTED if room >= 4 * _LISTED and 2 * mean_b < parts else 0
        shape = Shape((parts * rows[number],), kernel.lanes, shared + 4 * listed)
        yield NumericLaunch("block", kernel.name, number, rows[number], shape, parts, listed)


def row_lanes(mean_b: float) -> int:
    """Return the logarithm of the lanes that read a row of B, as ``lanes_of`` of ``rows.cuh``: 4 to 32 lanes."""
    return next((log for log in range(2, 5) if mean_b <= 1 << log), 5)
