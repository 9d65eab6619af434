"""The ways in which a product may be made, and what each is predicted to take, from the patterns alone.

The constants are fitted to recorded products on one thread of a CPU and on an H200.  Half of the predictions are 0.86
to 1.73 of what one thread of another CPU took (results/recorded/epyc2), and on the GPU within 1.7 times of what was
measured, where short rows are slower than the traffic of their products says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.core.placement import GATHERED_SHARE, SCALAR_RATE
from spectile.core.placement import Work as Placed
from spectile.tsparse.cpu.masked import TURN_COST, costs
from spectile.tsparse.cpu.one_pass import LARGEST_RESERVE
from spectile.tsparse.cpu.symmetric import worth
from spectile.tsparse.types import Operand, Precision

_PRODUCT_S, _ENTRY_S, _ROW_S = 0.8e-9, 7e-9, 13e-9  # of one thread of a CPU
_COUNTED = 1.5  # times as long where rows are counted before they are filled
_CONVERT_S, _SELECT_S = 10e-9, 30e-9  # of one thread, for an entry that changes its place or is judged in NumPy
_MIRROR_S = 3e-9  # of one thread, for an entry of a product of which a triangle is made and mirrored
_LAUNCHES_S = 60e-6  # of all launches of a product on a GPU and its wait
_WORTH_A_SAMPLE, _SAMPLE, _SAMPLE_ENTRIES = 10_000, 16, 256  # entries from which rows are drawn, how many, and of each
_LINK = 25e9  # bytes a second from a GPU to the host
_DENSE_PRODUCT_S, _DENSE_EFFICIENCY = 0.4e-9, 0.5  # of a product with a dense block, of a thread and of a GPU's memory
_MAPPED = 3  # times as long as over the link alone, for what arrives in memory that a host has yet to map
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


def sampled(A: Any, B: Any) -> Work:
    """Return about the work of a product of host matrices: of drawn rows in CSR, or by the sizes alone.

    What a sample meets outside of B is left for the check of the factors to refuse.
    """
    rows, columns, factors = A.shape[0], B.shape[1], A.nnz + B.nnz
    whole = A.format == B.format == "csr" and all(len(one.indptr) == one.shape[0] + 1 for one in (A, B))
    if whole and A.nnz >= _WORTH_A_SAMPLE:
        met = [_met(A, B, row) for row in np.linspace(0, rows - 1, min(rows, _SAMPLE)).astype(int)]
        products, entries = (rows * sum(part) / len(met) for part in zip(*met, strict=True))
    else:
        products, cells = A.nnz * B.nnz / max(A.shape[1], 1), max(rows * columns, 1)
        entries = -cells * math.expm1(-products / cells)
    return Work(rows, factors, int(products), entries)


def _met(A: Any, B: Any, row: int) -> tuple[float, float]:
    """Return the products of a row, and about how many entries they become."""
    own = A.indices[A.indptr[row] : A.indptr[row + 1]]
    some = own[:: len(own) // _SAMPLE_ENTRIES + 1]
    some = some[(some >= 0) & (some < B.shape[0])]
    if not len(some):
        return 0.0, 0.0
    found = [B.indices[B.indptr[k] : B.indptr[k + 1]][:_SAMPLE_ENTRIES] for k in some.tolist()]
    share = sum(map(len, found)) / max(1, len(own))
    products = float(np.maximum(B.indptr[some + 1] - B.indptr[some], 0).mean()) * len(own)
    distinct = len(np.unique(np.concatenate(found)))
    return products, min(products * distinct / max(1.0, share * len(own)), float(B.shape[1]))


def placed(A: Any, B: Any, precision: Precision) -> Placed:
    """Return what a product of host matrices costs on the host and on a GPU."""
    work, kind = sampled(A, B), precision.dtype
    return Placed(
        real="float64" if kind.itemsize > 4 * (1 + (kind.kind == "c")) else "float32",
        flops=0,
        streamed=0,
        scalar=0,
        steps=1,
        moved=(work.factors + _MAPPED * work.entries) * (4 + kind.itemsize),
        split=SCALAR_RATE * _seconds(work),
        gathered=_traffic(work, precision),
    )


def _seconds(work: Work) -> float:
    """Return the seconds of one thread of a CPU."""
    return _PRODUCT_S * work.products + _ENTRY_S * work.entries + _ROW_S * work.rows


def _traffic(work: Work, precision: Precision) -> float:
    """Return the bytes that pass the memory of a GPU."""
    entry = 4 + precision.dtype.itemsize
    return work.products * (4 + entry) + work.entries * entry + 4 * work.factors * entry + _ROW_BYTES * work.rows


def on_cpu(work: Work, precision: Precision, threads: int, limited: bool, dense: bool = False) -> list[Candidate]:
    """Return the ways on a CPU: rows filled in one pass, in room for all products, or counted before, or dense."""
    seconds = _seconds(work) / threads
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
    by_rows, least = costs((A.indptr, A.indices, A.data), (B.indptr, B.indices, B.data), mask, B.shape[1])
    rows, either = int(by_rows.sum()), int(least.sum()) + TURN_COST * len(B.indices)
    both = Candidate("cpu: mask, by rows and columns of B", _PRODUCT_S * either / threads, f"{either:.3g} entries met")
    if either >= rows:
        both = both._replace(seconds=None, why="turning B meets more entries than it saves")
    return [Candidate("cpu: mask, by rows of B", _PRODUCT_S * rows / threads, f"{rows:.3g} entries met"), both]


def selected(work: Work, precision: Precision, threads: int) -> Candidate:
    """Return the way in blocks of rows of which a part is kept."""
    (one, _) = on_cpu(work, precision, threads, limited=False)
    seconds = (one.seconds or 0) + _SELECT_S * work.entries
    return Candidate("cpu: blocks of rows, then selected", seconds, f"{work.products:.3g} products, {threads} threads")


def on_gpu(work: Work, precision: Precision, device: Device, columns: int | None = None, devices: int = 1) -> Candidate:
    """Return the way on a GPU, or by rows on several; into a dense C where its columns are given."""
    traffic, itemsize = _traffic(work, precision), precision.dtype.itemsize
    if columns is not None:
        traffic += work.rows * columns * itemsize + 2 * work.entries * (4 + itemsize)
    seconds = _LAUNCHES_S + traffic / (GATHERED_SHARE * device.bytes_per_second * devices)
    name = "cuda: rows by bins" + (", then dense" if columns is not None else "")
    name += f", on {devices} devices" if devices > 1 else ""
    return Candidate(name, seconds, f"{traffic:.3g} bytes of device memory, {device.name}")


def in_blocks(way: Candidate, work: Work, precision: Precision, host: bool) -> Candidate:
    """Return the way of a product that is given block of rows by block, copied to the host where the factors are."""
    copied = work.entries * (4 + precision.dtype.itemsize) if host else 0.0
    seconds = None if way.seconds is None else max(way.seconds, copied / _LINK)
    why = f"{way.why}, {copied:.3g} bytes copied to the host" if copied else way.why
    return Candidate(f"{way.kernel}, in blocks of rows", seconds, why)


def dense_block(entries: int, rows: int, columns: int, itemsize: int, threads: int, device: Device | None) -> Candidate:
    """Return the way of a sparse matrix times a dense one of so many columns, on a device or on a CPU."""
    products = entries * columns
    if device is None:
        seconds = (_DENSE_PRODUCT_S * products + _ROW_S * rows) / threads
        return Candidate("cpu: rows times a dense block", seconds, f"{products:.3g} products, {threads} threads")
    traffic = entries * (4 + itemsize) + (products + rows * columns) * itemsize
    seconds = _LAUNCHES_S + traffic / (_DENSE_EFFICIENCY * device.bytes_per_second)
    why = f"{traffic:.3g} bytes of device memory, {device.name}"
    return Candidate("cuda: rows times a dense block, long ones in pieces", seconds, why)
