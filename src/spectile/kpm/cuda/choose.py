"""What is launched on which device: every threshold that was tuned, and the rules for devices that were not.

All of it is a function of the device's description, so that a machine without a GPU can check each choice against
the table of devices (``spectile.core.devices``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.devices import Device
from spectile.core.launch import Shape

# ---- rows through the caches (rows.cu)

#: Sites of a strip of the plane (``TopologicalInsulator.matrix``): the patch that one multiprocessor works on.
STRIP = 8
#: Height of SELL chunks: rows of a warp when a thread has a row of its own.
SELL_CHUNK = 32
#: Slots of SELL over entries beyond which one vector reads CSR, too.
MOST_FILL = 1.25


class RowShape(NamedTuple):
    """Shape of ``rows.cu`` for a width of the block vector.

    Attributes
    ----------
    lanes, columns : int
        Threads of a row, and vectors of a thread.
    unroll : int
        Entries in flight.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
    """

    lanes: int
    columns: int
    unroll: int
    threads: int
    blocks: int


# Widest block vector and the shape that was fastest for it on an H200 (docs/notes/kpm.md).
_ROW_SHAPES = (
    (1, RowShape(1, 1, 7, 768, 1)),
    (2, RowShape(2, 1, 4, 512, 2)),
    (4, RowShape(4, 1, 4, 1024, 1)),
    (8, RowShape(8, 1, 4, 512, 2)),
    (16, RowShape(8, 2, 2, 1024, 1)),
    (32, RowShape(8, 4, 4, 512, 1)),
)
# Two columns a thread and passes of 32 vectors: wider ones leave the L1 cache (measured).
_WIDE_ROW_SHAPE = RowShape(16, 2, 4, 640, 1)


def row_shape(num_vectors: int) -> RowShape:
    """Return the shape of ``rows.cu`` for R vectors; a multiprocessor of every device holds its threads."""
    return next((shape for most, shape in _ROW_SHAPES if num_vectors <= most), _WIDE_ROW_SHAPE)


def sell_shape(longest: int, dtype: Any) -> RowShape:
    """Return the shape of ``rows.cu`` for one vector and SELL: entries in flight by the longest row.

    Short rows of small numbers leave a thread few bytes on their way, so more of them work (measured on an H200).
    """
    if longest <= 3 and np.dtype(dtype).itemsize <= 8:
        return RowShape(1, 1, 3, 256, 6)
    return RowShape(1, 1, min(7, max(3, longest)), 512, 2)


def row_launch(shape: RowShape, num_vectors: int, device: Device) -> Shape:
    """Return the launch of ``aug_spmmv``: persistent blocks on every multiprocessor, for each chunk of vectors."""
    chunks = -(-num_vectors // (shape.lanes * shape.columns))
    return Shape((device.multiprocessors * shape.blocks, chunks), shape.threads)


# ---- rows of any CSR matrix (gather.cu, stream.cu)


class GatherShape(NamedTuple):
    """Shape of ``gather.cu`` for a width of the block vector; of ``stream.cu`` for one vector.

    Attributes
    ----------
    vector, lanes, pieces : int
        Adjacent vectors that a thread reads at once, threads of a row, and pieces of a thread.
    unroll : int
        Entries in flight.
    ahead : int
        1 if V and W come into the L2 cache before a warp's turn.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
    """

    vector: int
    lanes: int
    pieces: int
    unroll: int
    ahead: int
    threads: int
    blocks: int

    @property
    def columns(self) -> int:
        """Vectors of a row's threads."""
        return self.vector * self.lanes * self.pieces


# Threads of a block, one a multiprocessor: with two pieces a thread, few warps have enough loads in flight, and leave
# the L1 cache to the rows of V that come again (measured on an H200, docs/notes/kpm.md).
_GATHER_THREADS = {"narrow": 640, "short": 384, "long": 256}
# Where other shapes than the rule's were measured to be faster: by type, vectors of a row's threads and the entries in
# flight that the rule gives, those that are better, and the threads of a block.
_MEASURED_GATHERS = {
    ("complex64", 8, 7): (7, 512),
    ("float32", 32, 8): (4, 384),
    ("complex64", 32, 8): (4, 384),
    ("complex128", 32, 8): (4, 384),
}
# Longer rows of the matrix are faster by ``rows.cu``, whatever R.
_MOST_GATHERED = 8
#: Rows of so few entries meet too few others for waves of a plane to pay.
SHORT = 4


def gathers(num_vectors: int, longest: int) -> bool:
    """Return whether ``gather.cu`` (one vector: ``stream.cu``) takes R vectors and rows of so many entries at most."""
    return num_vectors == 1 or longest <= _MOST_GATHERED


def gather_shape(num_vectors: int, dtype: Any, longest: int) -> GatherShape:
    """Return the shape for R vectors and rows of so many entries at most.

    16 bytes a thread where R allows, twice from four threads a row on, and all entries of a row in flight up to eight.
    """
    item = np.dtype(dtype).itemsize
    if num_vectors == 1:
        return GatherShape(1, 1, 1, 4 if item <= 8 else 2, 0, 512, 2)
    vector = max(1, 16 // item)
    while num_vectors % vector:
        vector //= 2
    lanes = 1
    while lanes < 64 and lanes * vector < num_vectors:
        lanes *= 2
    if lanes < 4:
        return GatherShape(vector, lanes, 1, 4, 1, _GATHER_THREADS["narrow"], 1)
    unroll = min(max(4, longest), _MOST_GATHERED)
    threads = _GATHER_THREADS["long" if unroll > 7 or (unroll > 4 and item == 16) else "short"]
    # Rows of few entries find V and W in the L2 cache without being told.
    ahead = int(unroll > 4)
    unroll, threads = _MEASURED_GATHERS.get((str(np.dtype(dtype)), vector * lanes, unroll), (unroll, threads))
    return GatherShape(vector, lanes // 2, 2, unroll, ahead, threads, 1)


# Blocks whose scalar products are summed, at most, and adjacent rows of a block of ``stream.cu`` up to there.
_MOST_BLOCKS, _STREAM_ROWS = 2**15, 4096
# Waves of a plane (measured on an H200): how much longer than the mean the longest of the blocks' parts is, parts in a
# turn of a block, and bytes of a row of V.
_UNEVEN, _MOST_PARTS_A_TURN, _LEAST_WAVE_BYTES = 1.125, 13, 128
# Threads of a block and blocks of a multiprocessor where a turn takes several parts.
_STRIP_THREADS, _STRIP_BLOCKS = 256, 2


def _in_planes(shape: GatherShape, blocks: int, num_vectors: int, plane: int, item_bytes: int, device: Device) -> bool:
    """Return whether so many blocks of `shape` share each plane: evenly, and three parts of V fit into L1."""
    part, row_bytes = plane // blocks, num_vectors * item_bytes
    return (
        _MOST_PARTS_A_TURN * part >= shape.threads // shape.lanes
        and -(-plane // blocks) * blocks <= _UNEVEN * plane
        and row_bytes >= _LEAST_WAVE_BYTES
        and 3 * part * row_bytes * shape.blocks <= device.shared_bytes
    )


def strip_shape(shape: GatherShape, num_vectors: int, plane: int, item_bytes: int, device: Device) -> GatherShape:
    """Return the shape for planes that are no more than a line, of which a block has a strip; `shape` for others."""
    narrow = shape._replace(threads=_STRIP_THREADS, blocks=_STRIP_BLOCKS)
    blocks = device.multiprocessors * _STRIP_BLOCKS
    several = 2 * (plane // blocks) < _STRIP_THREADS // shape.lanes
    return narrow if several and _in_planes(narrow, blocks, num_vectors, plane, item_bytes, device) else shape


def gather_launch(
    shape: GatherShape, num_rows: int, num_vectors: int, device: Device, plane: int = 0, item_bytes: int = 0
) -> tuple[Shape, int]:
    """Return the launch of ``gather`` and the rows of a wave, or of ``stream`` and the adjacent rows of a block.

    `plane` is the distance between a row and the farthest one that it couples, or 0, `item_bytes` are those of a
    number: a wave is a plane where that brings rows of V back into L1.
    """
    once = shape.threads // shape.lanes  # rows of a block at a time
    resident = device.multiprocessors * shape.blocks
    if num_vectors > 1:
        # All blocks walk through the rows side by side, each with the same part of every wave.
        blocks = min(resident, -(-num_rows // once))
        near = _in_planes(shape, blocks, num_vectors, plane, item_bytes, device)
        return Shape((blocks, -(-num_vectors // shape.columns)), shape.threads), plane if near else blocks * once
    # Small matrices: every multiprocessor has its part.  Large ones: no more blocks than the sums are made for.
    even = -(-num_rows // resident)
    chunk = -(-max(min(_STREAM_ROWS, even), num_rows // _MOST_BLOCKS) // once) * once
    return Shape((-(-num_rows // chunk), 1), shape.threads), chunk


# ---- rows of about as many entries each (slots.cu)


class SlotShape(NamedTuple):
    """Shape of ``slots.cu`` for a width of the block vector.

    Attributes
    ----------
    vector, lanes, pieces : int
        Adjacent vectors that a thread reads at once, threads of a row, and pieces of a thread.
    keep : int
        1 if V and W stay in the L2 cache from step to step.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
    """

    vector: int
    lanes: int
    pieces: int
    keep: int
    threads: int
    blocks: int

    @property
    def columns(self) -> int:
        """Vectors of a row's threads."""
        return self.vector * self.lanes * self.pieces


# Vectors up to which ``slots.cu`` is faster than ``gather.cu`` whatever the rows, and for rows that meet few others;
# and bytes of a row of V below which it is whatever R (measured on an H200).
_SLOTTED_VECTORS, _SLOTTED_SHORT_VECTORS, _SLOTTED_BYTES = 8, 16, 128
# Registers of a multiprocessor.
_REGISTERS = 65536


def slotted(num_vectors: int, dtype: Any, longest: int, num_rows: int, entries: int) -> bool:
    """Return whether ``slots.cu`` takes R vectors: short rows, as many slots as 1.25 times the entries at most."""
    most = _SLOTTED_SHORT_VECTORS if longest <= SHORT else _SLOTTED_VECTORS
    if num_vectors > most and num_vectors * np.dtype(dtype).itemsize >= _SLOTTED_BYTES:
        return False
    return 0 < longest <= _MOST_GATHERED and num_rows * longest <= min(MOST_FILL * entries, 2**31 - 2**16)


def slot_shape(num_vectors: int, dtype: Any, longest: int, num_rows: int, device: Device) -> SlotShape:
    """Return the shape for R vectors and rows of so many entries at most."""
    item = np.dtype(dtype).itemsize
    keep = int(2 * num_rows * num_vectors * item <= device.l2_bytes // 2)
    if num_vectors == 1:
        vector, lanes, pieces = 1, 1, 1
    else:
        gathered = gather_shape(num_vectors, dtype, longest)
        vector, lanes, pieces = gathered.vector, gathered.lanes, gathered.pieces
    # Registers: two rows' slots, V and W; one row's other rows of V; sums in float64; addresses.
    number, own = item // 4, vector * pieces * item // 4
    needed = 2 * longest * (1 + number) + (5 + longest) * own + 4 * vector * pieces + (26 if num_vectors > 1 else 12)
    # The sums of the warps are static shared memory.
    threads = min(1024, _REGISTERS // (needed + 3) // 128 * 128, 48 * 1024 // (16 * vector * lanes * pieces) * 32)
    return SlotShape(vector, lanes, pieces, keep, max(128, threads), 1)


def slot_launch(shape: SlotShape, num_rows: int, num_vectors: int, device: Device) -> Shape:
    """Return the launch of ``slots``: its blocks go through the rows side by side."""
    once = shape.threads // shape.lanes
    blocks = min(device.multiprocessors * shape.blocks, -(-num_rows // once))
    return Shape((blocks, -(-num_vectors // shape.columns)), shape.threads)


# ---- groups of rows with the same columns (grouped.cu)

#: Rows of a group: the height of the tensor core's operand.
MOST_GROUPED = 8
#: Rows of a group, on average, from which reading each row of V once for all of them pays.
LEAST_GROUPED = 2.5


class GroupedShape(NamedTuple):
    """Shape of ``grouped.cu`` for a width of the block vector.

    Attributes
    ----------
    columns : int
        Vectors of a warp.
    unroll : int
        Steps of four entries in flight.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
    thirds : int
        1 for TF32 in three parts (``thirds.cu``), whose steps are of eight columns; float32 and complex64 only.
    """

    columns: int
    unroll: int
    threads: int
    blocks: int
    thirds: int = 0


def groups(num_vectors: int, dtype: Any, longest: int, device: Device) -> bool:
    """Return whether ``grouped.cu`` takes R vectors, for a matrix with so many entries in a row at most.

    It computes in float64, sixteen real columns at a time (or just eight), and does not pay for short rows.
    """
    parts = 2 if np.dtype(dtype).kind == "c" else 1
    whole = num_vectors * parts % 16 == 0 or (num_vectors == 8 and parts == 1)
    return device.fast_fp64 and longest > _MOST_GATHERED and whole


# By bytes of a real number: real columns of a warp up to which a shape is fastest, and its steps in flight, threads and
# blocks (measured on an H200).
_GROUPED_SHAPES = {
    4: ((8, (4, 512, 2)), (16, (4, 256, 3)), (32, (4, 256, 2)), (64, (4, 512, 1))),
    8: ((8, (4, 256, 3)), (32, (4, 256, 2)), (64, (2, 384, 1))),
}


# By type and columns: where TF32 in three parts is faster, and its steps in flight, threads and blocks (measured, too).
_THIRDS_SHAPES = {
    ("float32", 32): (2, 384, 2),
    ("complex64", 16): (4, 128, 4),
    ("complex64", 32): (4, 128, 3),
}


def grouped_shape(num_vectors: int, dtype: Any) -> GroupedShape:
    """Return the shape for R vectors: the widest that divides R, of 32 at most."""
    columns = next(each for each in (32, 16, 8) if num_vectors % each == 0)
    if thirds := _THIRDS_SHAPES.get((str(np.dtype(dtype)), columns)):
        return GroupedShape(columns, *thirds, thirds=1)
    parts = 2 if np.dtype(dtype).kind == "c" else 1
    shapes = _GROUPED_SHAPES[np.dtype(dtype).itemsize // parts]
    return GroupedShape(columns, *next(shape for most, shape in shapes if columns * parts <= most))


#: Entries of the longest row from which Lanczos steps on groups read values of 16 bits instead of SELL.
_LEAST_PACKED = 24
#: Threads of a block of ``packed.cu``, and blocks of a multiprocessor, which leave a thread registers for all that a
#: group reads at once.
PACKED_THREADS, PACKED_BLOCKS = 256, 4


def packs(longest: int) -> bool:
    """Return whether Lanczos steps on groups of rows read packed values (``packed.cu``): rows fill most of a warp."""
    return longest >= _LEAST_PACKED


def packed_launch(groups: int, device: Device) -> Shape:
    """Return the launch of ``pack`` and ``packed_product``: as many blocks as run together take turns of groups."""
    blocks = min(device.multiprocessors * PACKED_BLOCKS, -(-groups * 32 // PACKED_THREADS))
    return Shape((blocks,), PACKED_THREADS)


def grouped_launch(shape: GroupedShape, groups: int, num_vectors: int, device: Device) -> Shape:
    """Return the launch of ``grouped``: as many blocks as run together take turns of groups side by side."""
    warps = shape.threads // 32
    blocks = min(device.multiprocessors * shape.blocks, -(-groups // warps))
    return Shape((blocks, num_vectors // shape.columns), shape.threads)


# ---- groups of rows, V through shared memory (boxed.cu)

#: Boxes of a tile at most.
MOST_BOXES = 64
#: Threads of a block of its inspector (``boxes.cu``).
BOXES_THREADS = 256


class BoxedShape(NamedTuple):
    """Shape of ``boxed.cu`` for a width of the block vector.

    Attributes
    ----------
    columns : int
        Vectors of a warp.
    unroll : int
        Steps of eight entries in flight.
    tile : int
        Groups of a tile at most, each of which a warp takes.
    sets : int
        Tiles at work.
    depth : int
        Tiles in flight or at work, a multiple of `sets`.
    box : int
        Rows of a box, a multiple of eight.
    """

    columns: int
    unroll: int
    tile: int
    sets: int
    depth: int
    box: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.tile * self.sets


# By type and columns of a warp: steps in flight, groups of a tile, tiles at work and in flight, rows of a box
# (measured on an H200, docs/notes/kpm.md).
_BOXED_SHAPES = {
    ("float32", 16): (2, 4, 4, 8, 24),
    ("float32", 32): (2, 8, 2, 4, 24),
    ("float64", 16): (2, 8, 1, 2, 24),
    ("float64", 32): (2, 8, 1, 2, 24),
    ("complex64", 8): (2, 8, 2, 4, 24),
    ("complex64", 16): (2, 4, 4, 4, 24),
    ("complex64", 32): (1, 4, 4, 4, 24),
    ("complex128", 8): (2, 8, 1, 2, 24),
    ("complex128", 16): (2, 4, 2, 2, 24),
    ("complex128", 32): (1, 4, 2, 2, 24),
}
# Groups of a tile, of those that it may have, below which ``grouped.cu`` should be faster: other warps are idle.
_LEAST_FILLED = 0.75
# Bytes of codes that are not compared with the matrix's.
_FREE_CODES = 2**20


def _boxed_columns(num_vectors: int, dtype: Any) -> int:
    """Return the vectors of a warp: the most that divide R, or 0 where a row of V is too short for the tensor core."""
    name = str(np.dtype(dtype))
    return next((n for n in (32, 16, 8) if num_vectors % n == 0 and (name, n) in _BOXED_SHAPES), 0)


def boxes(num_vectors: int, dtype: Any, longest: int, device: Device) -> bool:
    """Return whether ``boxed.cu`` takes R vectors where ``grouped.cu`` would, if what a tile names fits.

    It takes copies of boxes and float64 products of 16 rows, which begin with Hopper, and rows of V of 64 bytes and
    more (float64: 128).
    """
    if device.compute_capability < (9, 0) or not groups(num_vectors, dtype, longest, device):
        return False
    if not _boxed_columns(num_vectors, dtype):
        return False
    return boxed_room(boxed_shape(num_vectors, dtype), dtype, longest, device).slots > 0


def boxed_shape(num_vectors: int, dtype: Any) -> BoxedShape:
    """Return the shape for R vectors of a width that ``boxed.cu`` takes."""
    columns = _boxed_columns(num_vectors, dtype)
    return BoxedShape(columns, *_BOXED_SHAPES[str(np.dtype(dtype)), columns])


class BoxedRoom(NamedTuple):
    """How ``boxed.cu`` divides shared memory.

    Attributes
    ----------
    length : int
        Codes of a group's columns: entries of the longest row and more.
    pieces : int
        Parts of a warp's row of V, 128 bytes or 64, which lie apart in a box.
    slots : int
        Boxes of a tile at most: none if values and codes leave no space.
    shared_bytes : int
        All of it.
    """

    length: int
    pieces: int
    slots: int
    shared_bytes: int


def boxed_room(shape: BoxedShape, dtype: Any, longest: int, device: Device) -> BoxedRoom:
    """Return how shared memory is divided, for a matrix with so many entries in a row at most."""
    item, whole = np.dtype(dtype).itemsize, 8 * shape.unroll
    length = max(1, -(-longest // whole)) * whole
    values = shape.tile * (MOST_GROUPED * length * item + 16)
    stage = values + shape.tile * (length + MOST_GROUPED) * 2
    row = shape.columns * item
    box = shape.box * row
    # Boxes begin at multiples of 1024 bytes; barriers are static.
    left = device.shared_bytes - 1024 - _STATIC_BYTES - shape.depth * stage
    slots = max(0, min(left // (shape.depth * box), MOST_BOXES))
    return BoxedRoom(
        length, row // 128 if row % 128 == 0 else row // 64, slots, 1024 + shape.depth * (slots * box + stage)
    )


def most_tiles(shape: BoxedShape, room: BoxedRoom, groups: int, value_bytes: int) -> int:
    """Return how many tiles there may be: nearly full ones, whose codes take no more memory than the matrix's values.

    Small matrices may have longer codes.
    """
    tile_bytes = shape.tile * (2 * (room.length + MOST_GROUPED) + 16) + 4 * (room.slots + 2)
    return min(math.ceil(-(-groups // shape.tile) / _LEAST_FILLED), max(value_bytes, _FREE_CODES) // tile_bytes)


def boxed_launch(shape: BoxedShape, room: BoxedRoom, tiles: int, num_vectors: int, device: Device) -> Shape:
    """Return the launch of ``boxed``: a block a multiprocessor takes tiles in turn."""
    chunks = num_vectors // shape.columns
    # The sums of the scalar products take the boxes' place.
    shared = max(room.shared_bytes, 1024 + 2 * shape.columns * 8 * shape.tile * shape.sets)
    return Shape((min(max(1, device.multiprocessors // chunks), tiles), chunks), shape.threads, shared)


# ---- V staged through shared memory (staged.cu)

#: Slots that the inspector keeps in order, and a code can name: 16 bits are a slot and one of its four rows.
MOST_SLOTS = 512
PAGE = 4
_STATIC_BYTES = 1024  # barriers, and what the driver keeps of a block's shared memory
#: Threads of a block of the inspector (``inspector.cu``): four tiles, whose pages lie in shared memory.
INSPECTOR_THREADS = 128
# Rows of less than this are faster through the caches.
_LEAST_ROW_BYTES = 128
# Entries of the longest row for which staging V pays: fewer are gathered as fast, more do not fit.
_STAGED_ENTRIES = (10, 32)
# It pays for a cube's rows, too, where V has rows of so many bytes (measured for complex128 and R = 32): what the L1
# cache misses of V is more than what is copied, if that is no more than so many times each row.
_STAGED_CUBE, _CUBE_ROW_BYTES, _MOST_CUBE_COPIES = 7, 512, 3.0


class StagedShape(NamedTuple):
    """Shape of ``staged.cu`` for a width of the block vector.

    Attributes
    ----------
    vector : int
        Numbers of 16 bytes.
    pieces : int
        16-byte pieces of a row that a thread holds.
    tile, depth : int
        Pages of a tile, tiles in flight or at work.
    workers, producers : int
        Warps that compute, and warps that issue copies.
    """

    vector: int
    pieces: int
    tile: int
    depth: int
    workers: int
    producers: int

    @property
    def columns(self) -> int:
        """Vectors of a block."""
        return 8 * self.pieces * self.vector

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in shared memory."""
        return 128 * self.pieces

    @property
    def groups(self) -> int:
        """Tiles at work."""
        return self.workers // self.tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.workers + self.producers)


# Pieces, and the shape that was fastest for them on an H200.  Tiles of a narrow block have many pages: a tile costs
# about 0.25 us, however short its rows are (measured).  Tiles of a cube name more pages for each of theirs.
_STAGED_SHAPES = ((1, (16, 4, 16, 8)), (2, (12, 4, 12, 8)), (4, (4, 5, 12, 4)))
_CUBE_SHAPE = (4, 4, 8, 4)


def stages(num_vectors: int, dtype: Any, longest: int, device: Device) -> bool:
    """Return whether a block of R vectors goes through shared memory, for a matrix of so many entries in a row at most.

    It takes bulk copies, rows of whole 16 bytes, and a matrix whose rows are gathered often enough to pay the
    inspector, but fit into shared memory.
    """
    row = num_vectors * np.dtype(dtype).itemsize
    cube = longest == _STAGED_CUBE and str(np.dtype(dtype)) == "complex128" and row % _CUBE_ROW_BYTES == 0
    return (
        device.compute_capability >= (9, 0)
        and row >= _LEAST_ROW_BYTES
        and row % 16 == 0
        and (cube or _STAGED_ENTRIES[0] <= longest <= _STAGED_ENTRIES[1])
    )


def staging_pays(longest: int, copies: float) -> bool:
    """Return whether copying each row of V so many times is less than what a gather reads, for rows that `stages`."""
    return longest != _STAGED_CUBE or copies <= _MOST_CUBE_COPIES


def staged_shape(num_vectors: int, dtype: Any, longest: int = _STAGED_ENTRIES[1]) -> StagedShape:
    """Return the shape of ``staged.cu`` for R vectors and a matrix of so many entries in a row at most."""
    vector = 16 // np.dtype(dtype).itemsize
    pieces, shape = next((each for each in _STAGED_SHAPES if num_vectors <= 8 * each[0] * vector), _STAGED_SHAPES[-1])
    if longest == _STAGED_CUBE and pieces == _STAGED_SHAPES[-1][0]:
        shape = _CUBE_SHAPE
    return StagedShape(vector, pieces, *shape)


class StagedRoom(NamedTuple):
    """How ``staged.cu`` divides rows and shared memory.

    Attributes
    ----------
    slots : int
        Pages of V in shared memory: none, or fewer, if the codes and values of a stage leave too little space.
    code_bytes, value_bytes : int
        Bytes of a stage's codes and values.
    workers : int
        Thread blocks that share the rows, for each chunk of vectors.
    turns : int
        Parts of each: three planes of a part, and what lies around it, fit into the slots.
    """

    slots: int
    code_bytes: int
    value_bytes: int
    workers: int
    turns: int


def staged_room(
    shape: StagedShape, num_vectors: int, pages: int, longest: int, wave: int, item_bytes: int, table_bytes: int,
    device: Device,
) -> StagedRoom:  # fmt: skip
    """Return how rows and shared memory are divided.

    Parameters
    ----------
    shape : StagedShape
        The kernel's shape.
    num_vectors : int
        R.
    pages : int
        Pages of rows to compute.
    longest : int
        Entries of the longest row.
    wave : int
        Pages of a wave, a plane of the lattice.
    item_bytes, table_bytes : int
        Bytes of a stored value, and of the table of values (then none is stored; zero without one).
    device : Device
        The device.
    """
    workers = min(max(1, device.multiprocessors // -(-num_vectors // shape.columns)), pages)
    code_bytes = shape.tile * (16 + -(-longest // 4) * 32 * (2 if table_bytes else 1))
    value_bytes = 0 if table_bytes else shape.tile * PAGE * longest * item_bytes
    left = device.shared_bytes - _STATIC_BYTES - shape.depth * (code_bytes + value_bytes) - table_bytes
    slots = min(left // (PAGE * shape.row_bytes), MOST_SLOTS)
    turns = max(1, math.ceil(wave / (workers * 0.3 * max(1, slots))))
    return StagedRoom(slots, code_bytes, value_bytes, workers, turns)


def staged_launch(shape: StagedShape, room: StagedRoom, num_vectors: int, table_bytes: int) -> Shape:
    """Return the launch of ``staged``."""
    shared = room.slots * PAGE * shape.row_bytes + shape.depth * (room.code_bytes + room.value_bytes) + table_bytes
    # The sums of the scalar products take the slots' place.
    shared = max(shared, 2 * shape.columns * 8 * shape.workers)
    return Shape((room.workers, -(-num_vectors // shape.columns)), shape.threads, shared)


# ---- the stencil (stencil.cu)

# More threads than this a block leave each too few registers.
_MOST_SWEEP_THREADS = {1: 480, 2: 380}
_MOST_LINES = 64


class SweepTile(NamedTuple):
    """Tile of ``stencil.cu``: lines of a plane, planes ahead, and Chebyshev steps of a sweep."""

    lines: int
    ahead: int
    steps: int

    def threads(self, nz: int) -> int:
        """Return the threads of a block."""
        return -(-(self.lines + 2 * (self.steps - 1)) * nz // 32) * 32

    def shared_bytes(self, nz: int, item_bytes: int) -> int:
        """Return the dynamic shared memory of a block."""
        inner = self.lines + 2 * (self.steps - 1)
        planes = (self.ahead + 2) * (self.lines + 2 * self.steps)
        planes += (self.ahead + 1 + 2 * (self.steps - 1)) * inner
        return planes * 4 * nz * item_bytes


def sweep_tile(ny: int, nz: int, steps: int, item_bytes: int, device: Device) -> SweepTile:
    """Return the tile that makes the fewest lines be read, within one block.

    Raises
    ------
    MemoryError
        If not even one line fits into a block.
    """
    best, choice = math.inf, None
    for lines in range(1, min(ny, _MOST_LINES) + 1):
        if (lines + 2 * (steps - 1)) * nz > (_MOST_SWEEP_THREADS[steps] if lines > 1 else 1024):
            break
        # Two planes on their way where the sweep computes twice a plane and memory allows it.
        for ahead in (2, 1) if steps == 2 else (1,):
            tile = SweepTile(lines, ahead, steps)
            if tile.shared_bytes(nz, item_bytes) <= device.shared_bytes - _STATIC_BYTES:
                # The last tile's idle threads cost nothing where the memory bus is the limit: lines read count.
                cost = ny / lines * (lines + 2 * steps)
                if cost <= best:
                    best, choice = cost, tile
                break
    if choice is None:
        raise MemoryError(f"nz={nz} is too high for the matrix-free kernel: pass sample.matrix() instead")
    return choice


def most_steps_a_sweep(ny: int, nz: int, item_bytes: int, device: Device) -> int:
    """Return two Chebyshev steps for one pass over the vectors where a block holds their planes, else one.

    Raises
    ------
    MemoryError
        If a block does not hold those of one step.
    """
    sweep_tile(ny, nz, 1, item_bytes, device)
    try:
        sweep_tile(ny, nz, 2, item_bytes, device)
    except MemoryError:
        return 1
    return 2


def sweep_launch(tile: SweepTile, ny: int, nz: int, planes: int, item_bytes: int, device: Device) -> tuple[Shape, int]:
    """Return the launch of ``sweep``, and the groups into which the vectors' planes are divided."""
    shared, threads = tile.shared_bytes(nz, item_bytes), tile.threads(nz)
    resident = device.multiprocessors * max(1, min(device.shared_bytes // shared, 1024 // threads))
    tiles = -(-ny // tile.lines)
    groups = sweep_groups(tiles, resident, planes)
    return Shape((groups * tiles,), threads, shared), groups


def sweep_groups(tiles: int, resident: int, planes: int) -> int:
    """Return into how many groups of blocks the vectors' planes are divided.

    Whole rounds of resident blocks, and segments much longer than the three planes that each reads before it writes.
    """
    best, choice = 0.0, 1
    for groups in range(1, max(2, 8 * resident // tiles + 2)):
        blocks = groups * tiles
        length = planes / groups
        if length < 1:
            break
        score = blocks / (-(-blocks // resident) * resident) * length / (length + 3)
        if score > best + 1e-9:
            best, choice = score, groups
    return choice
