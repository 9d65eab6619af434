"""When rows are multiplied from sliced ELLPACK (``kernel.cu``), in which shape, and what that costs."""

from __future__ import annotations

from typing import NamedTuple

from spectile.core.devices import Device
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import Lanes, Problem, copying, lanes_of, loads_of, seconds, streamed, threads_of

#: Rows of a slice.
SLICE = 32
#: Slots over entries beyond which the form takes too much memory, and up to which all slices are of one length.
MOST_FILL, EVEN_FILL = 1.5, 1.25
# Most slots of a row in flight where all slices have as many, and where they do not; threads that hide the latency.
_MOST_EVEN, _MOST_UNROLL, _ENOUGH = 12, 8, 384
# Bytes of a row of V above which a thread reads two pieces.
_PAIRED_ROW = 32
# Seconds of the host while the form is made, at least (an H200).
_FORMING = 1e-4
# As in ``csr/when.py``, for each byte that must move, and each row.
_STREAM, _ROW = 0.58, 7.0


class SlicedShape(NamedTuple):
    """Shape of the kernel."""

    lanes: Lanes  #: How threads share a row of V.
    unroll: int  #: Slots of a row in flight.
    uniform: bool  #: Whether all slices have `unroll` slots a row.
    keep: bool  #: Whether V and W stay in the L2 cache from step to step.
    threads: int  #: Threads of a block, of which a multiprocessor has one.


def even_slots(rows: int, longest: int) -> int:
    """Return the slots where every slice is as long as the longest row."""
    return ceil_div(rows, SLICE) * SLICE * max(1, longest)


def is_even(rows: int, entries: int, longest: int) -> bool:
    """Return whether all slices may be as long as the longest row."""
    return 0 < longest <= _MOST_EVEN and rows * longest <= EVEN_FILL * entries


def applies(problem: Problem, device: Device) -> str:
    """Return why the kernel does not take this, in a few words; empty if it does."""
    if problem.slots > MOST_FILL * problem.entries + SLICE * ceil_div(problem.rows, SLICE):
        return f"rows of unlike lengths would fill {problem.slots / max(1, problem.entries):.1f} times the memory"
    return ""


def widths(problem: Problem) -> tuple[int, ...]:
    """Return the widths that R vectors may have: as many as they are, or whole loads of a thread."""
    return loads_of(problem)


def shape(problem: Problem, device: Device) -> SlicedShape:
    """Return the shape: as many slots in flight as leave enough threads their registers."""
    lanes = lanes_of(problem, paired=problem.row_bytes > _PAIRED_ROW)
    keep = 2 * problem.rows * problem.row_bytes <= device.l2_bytes // 2
    uniform = is_even(problem.rows, problem.entries, problem.longest)
    unroll = problem.longest if uniform else min(_MOST_UNROLL, max(1, problem.longest))
    while not uniform and unroll > 2 and threads_of(_registers(problem, lanes, unroll), lanes.columns) < _ENOUGH:
        unroll -= 1
    return SlicedShape(lanes, unroll, uniform, keep, threads_of(_registers(problem, lanes, unroll), lanes.columns))


def _registers(problem: Problem, lanes: Lanes, unroll: int) -> int:
    """Return a thread's registers: two rows' slots, V and W; the rows of V that one names; float64 sums; addresses."""
    number, own = problem.item // 4, lanes.vector * lanes.pieces * problem.item // 4
    addresses = 26 if problem.vectors > 1 else 12
    return 2 * unroll * (1 + number) + (5 + unroll) * own + 4 * lanes.vector * lanes.pieces + addresses


def cost(problem: Problem, device: Device) -> float:
    """Return the seconds that a step should take, its part of making the form included."""
    lanes = lanes_of(problem, paired=problem.row_bytes > _PAIRED_ROW)
    chunks = ceil_div(problem.vectors, lanes.columns)
    forming = _FORMING + copying((problem.entries + problem.slots) * (problem.item + 4), device)
    loads = problem.slots * lanes.lanes * lanes.pieces * chunks
    moved = _STREAM * streamed(problem, problem.slots, chunks) + _ROW * problem.rows * chunks
    return forming / problem.steps + seconds(problem, device, moved, loads=loads)
