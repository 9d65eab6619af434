"""When entries of CSR are taken side by side, whatever their rows (``kernel.cu``), and what that costs."""

from __future__ import annotations

from typing import NamedTuple

from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import Lanes, Problem, lanes_of, loads_of, seconds, streamed

# Threads of a block and blocks of a multiprocessor; bytes that a thread has in flight of V.
_THREADS, _BLOCKS, _FLIGHT = 256, 4, 64
# Seconds of a chunk of a row longer than those of other blocks.  Fit beside `csr` and `sliced` to 26 random matrices
# and three lattices on an H200, as in ``csr/when.py`` (docs/how/kpm.md).
_CHUNK, _STREAM = 0.7e-6, 0.82


class FlatShape(NamedTuple):
    """Shape of the kernel.

    Attributes
    ----------
    lanes : Lanes
        What a thread reads of a row of V: all of it.
    split : int
        Threads that sum a row's products.
    unroll : int
        Entries of a thread in flight.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
    """

    lanes: Lanes
    split: int
    unroll: int
    threads: int = _THREADS
    blocks: int = _BLOCKS

    @property
    def chunk(self) -> int:
        """Entries of a block at a time."""
        return self.threads * self.unroll

    @property
    def tile(self) -> int:
        """Entries and rows of a tile together, so that what the last row has beyond them mostly fits into a chunk."""
        return self.chunk - self.chunk // 16


def applies(problem: Problem, device: Device) -> str:
    """Return why the kernel does not take this, in a few words; empty if it does."""
    lanes = lanes_of(problem, paired=False)
    return "" if lanes.lanes * lanes.pieces == 1 else f"a row of V is {lanes.lanes * lanes.pieces} loads"


def widths(problem: Problem) -> tuple[int, ...]:
    """Return the widths that R vectors may have: as many as they are, or whole loads of a thread."""
    return loads_of(problem)


def shape(problem: Problem) -> FlatShape:
    """Return the shape: as many threads sum a row as there are for each row of a chunk."""
    unroll = max(4, min(8, _FLIGHT // problem.row_bytes))
    share = max(1, int((problem.mean + 1) / unroll))
    return FlatShape(lanes_of(problem, paired=False), min(32, 1 << share.bit_length() - 1), unroll)


def tiles(problem: Problem) -> int:
    """Return how many tiles the rows are."""
    return max(1, ceil_div(problem.entries + problem.rows, shape(problem).tile))


def launch(shape: FlatShape, tiles: int, device: Device) -> Shape:
    """Return the launch on so many tiles, which blocks go through side by side."""
    return Shape((max(1, min(shape.blocks * device.multiprocessors, tiles)),), shape.threads)


def cost(problem: Problem, device: Device) -> float:
    """Return the seconds that a step should take, the chunks of its longest row waited for."""
    moved = _STREAM * streamed(problem, problem.entries)
    return seconds(problem, device, moved, loads=problem.entries) + _CHUNK * (problem.longest // shape(problem).chunk)
