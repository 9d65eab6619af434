"""The time of each phase of a product on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.tsparse.types import lookup
from spectile_study.bench.case import Value

#: The parts of the paper's method that its Figure 11 shows.
TASK_PHASES = ("task list", "sorting", "counting", "multiplication", "compaction")
#: Calls of which the times of phases are medians.
CALLS = 9


def phases_of_tasks(A: Any, B: Any, precision: Any, unit: Any) -> Callable[[Any], Mapping[str, Value]]:
    """Return what times the paper's phases (Section 6.3) of one product of tiles, each phase synchronised."""

    def phases(result: Any) -> Mapping[str, Value]:
        import cupy

        from spectile_study.cases.tsparse.tiles import product as tasks

        times = np.zeros((CALLS, len(TASK_PHASES)))

        def timed(call: int, phase: int, part: Callable[..., Any], *arguments: Any) -> Any:
            cupy.cuda.runtime.deviceSynchronize()
            before = time.perf_counter()
            made = part(*arguments)
            cupy.cuda.runtime.deviceSynchronize()
            times[call, phase] += time.perf_counter() - before
            return made

        for call in range(CALLS):
            lists = tasks.list_tasks(A, B)
            while (listed := timed(call, 0, next, lists, None)) is not None:  # more than one where memory asks for it
                timed(call, 1, tasks.sort_tasks, listed)
                segments = timed(call, 0, tasks.segment, listed)
                C = timed(call, 2, tasks.count_elements, A, B, segments, precision, unit)
                cancelled = timed(call, 3, tasks.multiply, A, B, segments, C, unit)
                timed(call, 4, tasks.compact, C, cancelled, unit)
                del listed, segments, C
        return {"phases": list(TASK_PHASES), "phases_s": np.median(times, axis=0).tolist()}

    return phases


def phases_of(G: Any, name: Any) -> Callable[[Any], Mapping[str, Value]]:
    """Return what times the phases of one product on the device (their medians, each phase synchronised)."""

    def phases(result: Any) -> Mapping[str, Value]:
        import cupy

        from spectile.tsparse.cuda.factors import with_checked_factors
        from spectile.tsparse.cuda.rows.count import count_rows
        from spectile.tsparse.cuda.rows.fill import fill_rows

        precision = lookup(name)
        marks: list[float] = []

        def mark() -> None:
            cupy.cuda.runtime.deviceSynchronize()
            marks.append(time.perf_counter())

        def product(left: Any, right: Any, counters: Any) -> None:
            mark()
            phase = count_rows(left, right, 0, G.shape[0], precision.dtype.name, counters)
            mark()
            indices = cupy.empty(phase.entries, np.int32)
            data = cupy.empty(phase.entries, precision.dtype)
            mark()
            fill_rows(left, right, phase, indices, data)
            mark()

        times = []
        for _ in range(CALLS):
            marks.clear()
            mark()
            with_checked_factors(G, G, precision, product)
            times.append(np.diff(marks[-5:]))
        labels = ["check and rounding", "symbolic", "allocation", "numeric"]
        return {"phases": labels, "phases_s": np.median(times, axis=0).tolist()}

    return phases
