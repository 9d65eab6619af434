"""The ways in which a product may be made, and what each is predicted to take, from the patterns alone.

The constants are fitted to the recorded products of two machines (results/recorded: xeon2 on one thread, h200): half of
the predictions are within a third of what was measured on the CPU, and within 1.7 times on the GPU, where short rows
are slower than the traffic of their products says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.tsparse.cpu.masked import TURN_COST, costs
from spectile.tsparse.cpu.one_pass import LARGEST_RESERVE
from spectile.tsparse.cpu.symmetric import worth
from spectile.tsparse.types import Operand, Precision

_PRODUCT_S, _ENTRY_S, _ROW_S = 0.8e-9, 7e-9, 13e-9  # of one thread of a CPU
_COUNTED = 1.5  # times as long where rows are counted before they are filled
_CONVERT_S, _SELECT_S = 10e-9, 30e-9  # of one thread, for an entry that changes its place or is judged in NumPy
_MIRROR_S = 3e-9  # of one thread, for an entry of a product of which a triangle is made and mirrored
_LAUNCHES_S = 60e-6  # of all launches of a product on a GPU and its wait
_EFFICIENCY = 0.14  # of the bandwidth of a GPU's memory
_ROW_BYTES = 60  # that the phases read and write of a row


@dataclass(frozen=True)
class Work:
    """The work of a product: rows, entries of both factors, multiplications, and the entries of C to be expected."""

    rows: int
    factors: int
    products: int
    entries: float


def work_of(A: Operand, B: Operand) -> Work:
    """Return the work of a product.

    p products of a row meet ``s (1 - exp(-p / s))`` of the s columns of B, if they meet them at random.
    """
    lengths = np.diff(B.indptr)
    products = np.bincount(A.row_of_entries(), lengths[A.indices], minlength=A.shape[0])
    columns = max(B.shape[1], 1)
    entries = -columns * np.expm1(-products / columns)
    return Work(A.shape[0], len(A.indices) + len(B.indices), int(products.sum()), float(entries.sum()))


def on_cpu(work: Work, precision: Precision, threads: int, limited: bool, dense: bool = False) -> list[Candidate]:
    """Return the ways on a CPU: rows filled in one pass, in room for all products, or counted before, or dense."""
    seconds = (_PRODUCT_S * work.products + _ENTRY_S * work.entries + _ROW_S * work.rows) / threads
    made_of = f"{work.products:.3g} products, {work.entries:.3g} entries of C expected, {threads} threads"
    if dense:
        return [Candidate("cpu: dense", _PRODUCT_S * work.products / threads, made_of)]
    room = work.products * (4 + precision.dtype.itemsize)
    refusal = (
        "a memory_limit is given" if limited
        else f"room for all products takes {room} bytes" if room > LARGEST_RESERVE
        else None
    )  # fmt: skip
    return [
        Candidate("cpu: one pass", None if refusal else seconds, refusal or made_of),
        Candidate("cpu: counted, then filled", _COUNTED * seconds, made_of),
    ]


def triangle(work: Work, one_pass: Candidate, related: bool, entries: int, threads: int) -> Candidate:
    """Return the way of one pass over a triangle, where B is the transpose or adjoint of A, of so many entries."""
    half = (work.products + entries) // 2
    refusal = (
        "B is not A transposed" if not related
        else one_pass.why if one_pass.seconds is None
        else None if worth(half, entries)
        else "there are too few products for each entry"
    )  # fmt: skip
    seconds = (one_pass.seconds or 0) / 2 + (_MIRROR_S * work.entries + _ROW_S * work.rows / 2) / threads
    return Candidate("cpu: a triangle, mirrored", None if refusal else seconds, refusal or f"{half:.3g} products")


def converted(ways: list[Candidate], entries: float, name: str = "") -> list[Candidate]:
    """Return ways with the time that bringing entries of A, B or C into another order takes, and a name for it."""
    return [
        one._replace(
            kernel=one.kernel + name,
            seconds=None if one.seconds is None else one.seconds + _CONVERT_S * entries,
            why=f"{one.why}, {entries:.3g} entries converted" if entries and one.seconds is not None else one.why,
        )
        for one in ways
    ]


def masked(A: Operand, B: Operand, mask: tuple[np.ndarray, np.ndarray], threads: int) -> list[Candidate]:
    """Return the ways to the entries of a mask on a CPU: by rows of B alone, or also by columns."""
    by_rows, by_columns = costs((A.indptr, A.indices, A.data), (B.indptr, B.indices, B.data), mask, B.shape[1])
    rows, either = int(by_rows.sum()), int(np.minimum(by_rows, by_columns).sum()) + TURN_COST * len(B.indices)
    both = Candidate("cpu: mask, by rows and columns of B", _PRODUCT_S * either / threads, f"{either:.3g} entries met")
    if either >= rows:
        both = both._replace(seconds=None, why="turning B meets more entries than it saves")
    return [Candidate("cpu: mask, by rows of B", _PRODUCT_S * rows / threads, f"{rows:.3g} entries met"), both]


def selected(work: Work, precision: Precision, threads: int) -> Candidate:
    """Return the way in blocks of rows of which a part is kept."""
    (one, _) = on_cpu(work, precision, threads, limited=False)
    seconds = (one.seconds or 0) + _SELECT_S * work.entries
    return Candidate("cpu: blocks of rows, then selected", seconds, f"{work.products:.3g} products, {threads} threads")


def on_gpu(work: Work, precision: Precision, device: Device) -> Candidate:
    """Return the way on a GPU."""
    entry = 4 + precision.dtype.itemsize
    traffic = work.products * (4 + entry) + work.entries * entry + 4 * work.factors * entry + _ROW_BYTES * work.rows
    seconds = _LAUNCHES_S + traffic / (_EFFICIENCY * device.bytes_per_second)
    return Candidate("cuda: rows by bins", seconds, f"{traffic:.3g} bytes of device memory, {device.name}")
