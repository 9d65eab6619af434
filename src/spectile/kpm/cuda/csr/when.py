"""When rows of any length are multiplied from CSR (``kernel.cu``), in which shape, and what that costs."""

from __future__ import annotations

import functools
from typing import NamedTuple

from spectile.core.devices import Device
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import Lanes, Problem, enqueued, lanes_of, loads_of, seconds, streamed, threads_of

# Bytes of a row of V from which a thread has twice the entries in flight, and up to which threads share entries.
_WIDE_ROW, _SHARED_ROW = 128, 64
# Entries of a row on average up to which one thread takes them all, and entries of each of several.
_ALONE, _SHARE = 16, 4
# Turns of a thread's entries in a piece of a row that is cut; seconds of a turn of the longest row, for which others
# wait; how much longer a step takes whose rows are cut (20 matrices on an H200).
_PIECE, _TURN, _CUT = 4, 0.7e-6, 1.25
# Bytes that take as long as one that must move (docs/how/kpm.md); loads of a thread from V come on top.
_STREAM = 0.87


class CsrShape(NamedTuple):
    """Shape of the kernel."""

    lanes: Lanes  #: How threads share a row of V.
    split: int  #: Threads that share a row's entries.
    unroll: int  #: Entries of a thread in flight.
    threads: int  #: Threads of a block, of which a multiprocessor has one.


def applies(problem: Problem, device: Device) -> str:
    """Return why the kernel does not take this; it takes everything."""
    return ""


def widths(problem: Problem) -> tuple[int, ...]:
    """Return the widths that R vectors may have: as many as they are, or whole loads of a thread."""
    return loads_of(problem)


@functools.lru_cache(maxsize=1024)
def shape(problem: Problem) -> CsrShape:
    """Return the shape: each thread has four to eight entries of a row, fewer threads share them where V is wide."""
    lanes = lanes_of(problem, paired=False)
    split = 1
    if problem.mean > _ALONE and problem.row_bytes <= _SHARED_ROW:
        each = _SHARE * max(1, problem.row_bytes // 16)
        split = min(32 // lanes.lanes, 1 << (int(problem.mean / each) | 1).bit_length() - 1)
    unroll = 8 if problem.row_bytes >= _WIDE_ROW else 4
    # Two rows' entries; V and W of a row, the rows of V that its entries name, and the sum; sums in float64; addresses.
    number, own = problem.item // 4, lanes.vector * lanes.pieces * problem.item // 4
    registers = 2 * unroll * (1 + number) + (3 + unroll) * own + 4 * lanes.vector * lanes.pieces + 40
    return CsrShape(lanes, split, unroll, threads_of(registers, lanes.columns))


@functools.lru_cache(maxsize=1024)
def cut_at(problem: Problem, device: Device) -> int:
    """Return from how many entries on rows are cut into pieces of as many; 0: none, as waiting for them costs less.

    Their products are the step of an earlier launch.
    """
    one = shape(problem)
    turn = one.unroll * one.split
    even = _even_seconds(problem, device)
    return _PIECE * turn if max(2 * enqueued(device), _CUT * even) < even + _waiting(problem) else 0


def _waiting(problem: Problem) -> float:
    """Return the seconds of the longest row's turns beyond those of a usual one, for which the others wait."""
    one = shape(problem)
    return _TURN * max(0, ceil_div(problem.longest, one.unroll * one.split) - 2 * _PIECE)


def walks(problem: Problem, device: Device) -> bool:
    """Return whether many steps are one launch: where all its blocks run at once, and one takes the host longer."""
    chunks = ceil_div(problem.vectors, lanes_of(problem, paired=False).columns)
    return chunks == 1 and not cut_at(problem, device) and cost(problem, device) <= enqueued(device)


def cost(problem: Problem, device: Device) -> float:
    """Return the seconds that a step should take, its longest row cut or waited for."""
    even = _even_seconds(problem, device)
    # Of many steps in one launch none waits for the host, and one of rows that are cut is two launches.
    if cut_at(problem, device):
        return max(2 * enqueued(device), _CUT * even)
    chunks = ceil_div(problem.vectors, lanes_of(problem, paired=False).columns)
    return max(enqueued(device) if chunks > 1 else 0.0, even + _waiting(problem))


def _even_seconds(problem: Problem, device: Device) -> float:
    """Return the seconds of a step on rows of like lengths."""
    lanes = lanes_of(problem, paired=False)
    chunks = ceil_div(problem.vectors, lanes.columns)
    loads = problem.entries * lanes.lanes * lanes.pieces * chunks
    return seconds(problem, device, _STREAM * streamed(problem, problem.entries, chunks), 0, loads)
