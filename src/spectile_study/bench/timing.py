"""Timing loops: all methods of a case interleaved in rounds, on one clock each.

A sample is the time of one call.  Wall-clock samples of very short calls are means over an inner loop; CUDA samples are
event times after the 60 MB second-level cache was overwritten; samples of calls are means over calls one after another,
with one synchronisation at their end; graph samples replay one captured call back to back, the
launch-bound limit in which both sides keep what fits the cache.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spectile_study.bench.case import Method

#: Inner loops are sized so that a wall-clock sample lasts at least this long.
SHORTEST_SAMPLE_S = 2e-3
#: Calls of a GPU function follow one another for at least this long, so that the last wait weighs little.
SHORTEST_LOOP_S = 5e-3
#: Bytes overwritten before an event-timed call: several times the largest second-level cache.
FLUSH_BYTES = 256 << 20
#: Before a wall-clock sample the threads of the process are looked at this often, until they rest.
REST_S = 1e-3
MOST_RESTS = 500
#: A method slower than this gets `SLOW_ROUNDS` rounds.
SLOW_S = 20.0
SLOW_ROUNDS = 2
#: With no warm-up calls asked for, a method whose check ran longer than this is timed without an estimating call.
WARM_S = 1.0


class Plan(NamedTuple):
    """How often a case is measured: rounds, untimed calls before them, and the time that all rounds may take."""

    rounds: int
    warmup: int
    budget_s: float


def interleave(
    methods: Sequence[Method],
    plan: Plan,
    announce: Callable[[str], None] = lambda name: None,
    checked: Mapping[str, float] | None = None,
) -> dict[str, list[float]]:
    """Time `methods` in rounds; return the samples of each in seconds, in the order of the rounds.

    Every round calls each method once; the order rotates from round to round.  Rounds stop early when `plan.budget_s`
    is used up, but not before three.  The sample of a method that is called `once` is the call for its check.

    Parameters
    ----------
    methods : sequence of Method
        Methods that passed their check, with distinct names.
    plan : Plan
        Rounds, warm-up calls and time budget.
    announce : callable
        Called with the method's name before each call (the supervisor's watchdog listens).
    checked : mapping, optional
        Seconds that the call for the check took, by name.
    """
    timers: dict[str, Callable[[], float]] = {}
    estimate: dict[str, float] = {}
    once = {method.name: [checked[method.name]] for method in methods if method.once and checked}
    methods = [method for method in methods if method.name not in once]
    for method in methods:
        timers[method.name] = timer = _TIMERS[method.clock](method)
        took = (checked or {}).get(method.name, 0.0)
        if plan.warmup == 0 and took > WARM_S:
            estimate[method.name] = took
            continue
        announce(method.name)
        estimate[method.name] = timer()
        warm_until = time.perf_counter() + min(1.0, plan.budget_s / 10)
        for _ in range(plan.warmup - 1):
            if time.perf_counter() > warm_until:
                break
            announce(method.name)
            timer()
    samples: dict[str, list[float]] = {method.name: [] for method in methods}
    start = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for index in range(plan.rounds):
            if index >= 3 and time.perf_counter() - start > plan.budget_s:
                break
            shift = index % len(methods) if methods else 0
            for method in [*methods[shift:], *methods[:shift]]:
                if index >= SLOW_ROUNDS and estimate[method.name] > SLOW_S:
                    continue
                announce(method.name)
                samples[method.name].append(timers[method.name]())
    finally:
        gc.enable()
    return samples | once


def _repeated(seconds: Callable[[int], float], shortest: float) -> Callable[[], float]:
    """Return what makes a sample, the mean of as many runs as last so many seconds together; `seconds` times them."""
    runs = 1

    def sample() -> float:
        nonlocal runs
        elapsed = seconds(runs)
        mean = elapsed / runs
        if elapsed < shortest:
            runs = min(1000, int(shortest / max(mean, 1e-9)) + 1)
        return mean

    return sample


def _wall(method: Method) -> Callable[[], float]:
    prepare = method.prepare

    def seconds(runs: int) -> float:
        if prepare is not None:
            prepare()
        _wait()
        _rest()
        start = time.perf_counter()
        for _ in range(runs):
            method.run()
        _wait()
        return time.perf_counter() - start

    return _repeated(seconds, SHORTEST_SAMPLE_S if prepare is None else 0.0)


def _wait() -> None:
    """Wait for the device: a call may return before its work is done, which would be the next one's time."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and cupy.cuda.is_available():
        cupy.cuda.runtime.deviceSynchronize()


def _rest() -> None:
    """Wait until no thread of this process works: OpenBLAS's spin for 0.1 s after a call, on cores of the next one."""
    for _ in range(MOST_RESTS):
        if not _others_work():
            return
        time.sleep(REST_S)


def _others_work() -> bool:
    """Return whether another thread of this process runs at this moment, where the system tells (Linux)."""
    own = str(threading.get_native_id())
    for stat in Path("/proc/self/task").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            if stat.parent.name != own and stat.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def _external(method: Method) -> Callable[[], float]:
    def sample() -> float:
        if method.prepare is not None:
            method.prepare()
        _, seconds = method.run()
        return float(seconds)

    return sample


def _events(method: Method) -> Callable[[], float]:
    import cupy

    flush = _flush_buffer()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()

    def sample() -> float:
        if method.prepare is not None:
            method.prepare()
        flush.fill(1)
        begin.record()
        method.run()
        end.record()
        end.synchronize()
        return cupy.cuda.get_elapsed_time(begin, end) * 1e-3

    return sample


def _graph(method: Method) -> Callable[[], float]:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        method.run()
        stream.synchronize()
        stream.begin_capture()
        method.run()
        graph = stream.end_capture()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()

    def seconds(runs: int) -> float:
        begin.record(stream)
        for _ in range(runs):
            graph.launch(stream)
        end.record(stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)

    return _repeated(seconds, SHORTEST_SAMPLE_S)


def _calls(method: Method) -> Callable[[], float]:
    import cupy

    def seconds(runs: int) -> float:
        if method.prepare is not None:
            method.prepare()
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(runs):
            method.run()
        cupy.cuda.Device().synchronize()
        return time.perf_counter() - start

    return _repeated(seconds, SHORTEST_LOOP_S)


_TIMERS: Mapping[str, Callable[[Method], Callable[[], float]]] = {
    "wall": _wall,
    "external": _external,
    "calls": _calls,
    "events": _events,
    "graph": _graph,
}


def _flush_buffer() -> Any:
    import cupy

    global _FLUSH
    if _FLUSH is None:
        _FLUSH = cupy.empty(FLUSH_BYTES // 4, dtype=cupy.float32)
    return _FLUSH


_FLUSH: Any = None
