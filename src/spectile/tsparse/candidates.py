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
from spectile.tsparse.cpu.one_pass import LARGEST_RESERVE
from spectile.tsparse.cpu.symmetric import worth
from spectile.tsparse.types import Operand, Precision

_PRODUCT_S, _ENTRY_S, _ROW_S = 0.8e-9, 7e-9, 13e-9  # of one thread of a CPU
_COUNTED = 1.5  # times as long where rows are counted before they are filled
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


def on_cpu(
    work: Work, precision: Precision, threads: int, limited: bool, related: bool = False, entries: int = 0
) -> list[Candidate]:
    """Return the ways on a CPU: rows filled in one pass, in room for all products, or counted before.

    Where B is the transpose or adjoint of A (`related`), which has so many entries, also a triangle that is mirrored.
    """
    seconds = (_PRODUCT_S * work.products + _ENTRY_S * work.entries + _ROW_S * work.rows) / threads
    made_of = f"{work.products:.3g} products, {work.entries:.3g} entries of C expected, {threads} threads"
    room = work.products * (4 + precision.dtype.itemsize)
    refusal = (
        "a memory_limit is given" if limited
        else f"room for all products takes {room} bytes" if room > LARGEST_RESERVE
        else None
    )  # fmt: skip
    half = (work.products + entries) // 2
    triangle = (
        "B is not A transposed" if not related
        else refusal if refusal
        else None if worth(half, entries)
        else "there are too few products for each entry"
    )  # fmt: skip
    ways = [
        Candidate("cpu: one pass", None if refusal else seconds, refusal or made_of),
        Candidate("cpu: counted, then filled", _COUNTED * seconds, made_of),
    ]
    mirrored = seconds / 2 + (_MIRROR_S * work.entries + _ROW_S * work.rows / 2) / threads
    return [
        *ways,
        Candidate("cpu: a triangle, mirrored", None if triangle else mirrored, triangle or f"{half:.3g} products"),
    ]


def on_gpu(work: Work, precision: Precision, device: Device) -> Candidate:
    """Return the way on a GPU."""
    entry = 4 + precision.dtype.itemsize
    traffic = work.products * (4 + entry) + work.entries * entry + 4 * work.factors * entry + _ROW_BYTES * work.rows
    seconds = _LAUNCHES_S + traffic / (_EFFICIENCY * device.bytes_per_second)
    return Candidate("cuda: rows by bins", seconds, f"{traffic:.3g} bytes of device memory, {device.name}")
