"""MAGMA's methods beside ours: the whole solver, the tridiagonalization, the band reduction and the chasing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import cupy

from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.evd import magma
from spectile_study.cases.evd.common import (
    LONGEST_S,
    MAGMA_RATE,
    ONCE_S,
    VALUES,
    chasing_flops,
    chasing_seconds,
    flops,
    magma_seconds,
    too_long,
)
from spectile_study.cases.evd.cuda.inputs import matrix_of

LEFT_OUT = "left out of this row: MAGMA takes many seconds a call at this order"
WARM_ORDER = 512
Check = Callable[[Any], Mapping[str, float]]


def skipped(row: Mapping[str, Any]) -> str | None:
    """Return why MAGMA is not measured in this row; None where it is, and then it is warm."""
    if not row["magma"]:
        return LEFT_OUT
    if row["precision"] != "float64":
        return "MAGMA is built and measured in float64 alone"
    reason = magma.reason(row["n"], vectors=row["vectors"])
    if reason is None:
        _warm()
    return reason


@functools.cache
def _warm() -> None:
    """Solve a small problem: the first call of a process starts MKL's threads and cuBLAS."""
    solve = magma.Syevdx(WARM_ORDER, vectors=True)
    solve.restore(matrix_of(WARM_ORDER, 0))
    solve()


def _on_device(check: Check) -> Check:
    """Return `check` of a result on the device, for one that lies on the host."""

    def checked(result: Any) -> Mapping[str, float]:
        return check(tuple(map(cupy.asarray, result)) if isinstance(result, tuple) else cupy.asarray(result))

    return checked


def solver(
    row: Mapping[str, Any], threads: int, source: Callable[[], Any], check: Check, limits: Mapping[str, float]
) -> Method | Skipped:
    """MAGMA's dsyevdx_2stage from and to pinned host memory, as its own tester calls it.

    Parameters
    ----------
    row : mapping
        Of the run sheet.
    threads : int
        Of the host, for the chasing.
    source : callable
        Returns the matrix on the device, column-major.
    check, limits
        As of a :class:`Method`, for a result on the device.
    """
    reason = skipped(row)
    if reason is not None:
        return Skipped("magma", reason)
    n, vectors = row["n"], row["vectors"]
    solve = magma.Syevdx(n, vectors=vectors)
    work = flops(n, vectors=vectors)
    memory = solve.device_bytes
    seconds = magma_seconds(n, magma.bandwidth(solve.library, n), threads, vectors=vectors)
    return Method(
        "magma",
        solve,
        _on_device(check),
        limits,
        flops=work,
        memory_bytes=memory,
        prepare=lambda: solve.restore(source()),
        once=seconds > ONCE_S,
    )


def tridiagonalization(
    row: Mapping[str, Any], threads: int, source: Callable[[], Any], check: Check, limits: Mapping[str, float]
) -> Method | Skipped:
    """MAGMA's sy2sb and sb2st; parameters as of `solver`."""
    reason = skipped(row)
    if reason is not None:
        return Skipped("magma", reason)
    n = row["n"]
    reduce = magma.Sytrd(n)
    return Method(
        "magma",
        reduce,
        check,
        limits,
        flops=flops(n),
        prepare=lambda: reduce.restore(source()),
        once=magma_seconds(n, reduce.b, threads) > ONCE_S,
    )


def band_reduction(
    row: Mapping[str, Any],
    threads: int,
    source: Callable[[], Any],
    check_band: Check,
    check: Check,
    limits: Mapping[str, float],
) -> list[Method | Skipped]:
    """MAGMA's sy2sb at the row's bandwidth, whose block is as wide, and its sb2st on the band that comes of it.

    Parameters
    ----------
    row, threads, source, limits
        As of `solver`.
    check_band, check : callable
        Of a band on the host, and of a diagonal and subdiagonal.
    """
    names = ("magma", "magma_chasing")
    n, b = row["n"], row["bandwidth"]
    reason = "MAGMA's block is its bandwidth: measured in the row with nb = b" if row["block"] != b else skipped(row)
    reduces, chases = flops(n) / MAGMA_RATE, chasing_seconds(n, b, threads)
    if reason is None and reduces > LONGEST_S:
        reason = too_long(reduces)
    if reason is not None:
        return [Skipped(name, reason) for name in names]
    reduction = magma.Sytrd(n, b)
    bands: list[Any] = []

    def reduce() -> Any:
        band = reduction.reduce()
        bands[:] = [band]
        return band

    def chase() -> Any:
        return magma.chase(reduction.library, bands[0].copy(), b)

    return [
        Method(
            names[0],
            reduce,
            check_band,
            limits,
            flops=flops(n),
            prepare=lambda: reduction.restore(source()),
            once=reduces > ONCE_S,
        ),
        Method(names[1], chase, check, limits, flops=chasing_flops(n, b), once=chases > ONCE_S)
        if chases <= LONGEST_S
        else Skipped(names[1], too_long(chases)),
    ]


def chasing(
    row: Mapping[str, Any], threads: int, band: Any, check: Check, limits: Mapping[str, float] = VALUES
) -> Method | Skipped:
    """MAGMA's sb2st on a band of the host."""
    reason = skipped(row)
    if reason is not None:
        return Skipped("magma", reason)
    n, b = row["n"], row["bandwidth"]
    library = magma.installed()
    return Method(
        "magma",
        lambda: magma.chase(library, band.copy(), b),
        check,
        limits,
        flops=chasing_flops(n, b),
        once=chasing_seconds(n, b, threads) > ONCE_S,
    )
