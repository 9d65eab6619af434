"""Steps on which threads of the CPU meet."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import extending, types

from spectile.core.jit import njit
from spectile.core.threads import pool

# Untyped: mypy would want the typing context, which Numba supplies, of every caller.
intrinsic: Any = extending.intrinsic


@intrinsic
def _atomic_add(typingctx: Any, array: Any, value: Any) -> Any:
    """Add to the first element of an array of int64, seen by all threads at once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw(
            "add", context.make_array(signature.args[0])(context, builder, args[0]).data, args[1], "seq_cst"
        )
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def _atomic_load(typingctx: Any, array: Any) -> Any:
    """Return the first element of an array of int64 as other threads last wrote it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(context.make_array(array)(context, builder, args[0]).data, "acquire", 8)

    return types.int64(array), codegen


@njit(nogil=True)
def _arrive(arrived, value):  # type: ignore[no-untyped-def]
    _atomic_add(arrived, value)


@njit(nogil=True)
def _reached(arrived, total, spins):  # type: ignore[no-untyped-def]
    """Return whether so many threads have arrived, looking a limited number of times."""
    seen = _atomic_load(arrived)
    while seen < total and spins:
        spins -= 1
        seen = _atomic_load(arrived)
    return seen >= total


_TEAM = threading.Lock()  # a second team in the same pool would wait for threads that wait for it


def _after_fork() -> None:
    """Forget a lock that a thread of the parent may hold."""
    global _TEAM
    _TEAM = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
_STOP = 1 << 40  # more than all arrivals of a run; several threads may add it
SPINS = 20_000


def side_by_side(threads: int, steps: int, work: Callable[[int, int], None], after: Callable[[int], None]) -> None:
    """Do steps on several threads, this one among them, that meet after each one.

    ``work(n, m)`` does thread n's part of step m, and ``after(m)`` is called by this thread when all have done step m;
    the others go on meanwhile.  They spin until they meet: threads that sleep between short steps are woken on the core
    of the one that wakes them, and stay there together while another core has nothing to do.
    """
    arrived = np.zeros(1, dtype=np.int64)

    def run(n: int) -> None:
        try:
            _spread(n, threads)
            for m in range(steps):
                work(n, m)
                _arrive(arrived, 1)
                while not _reached(arrived, threads * (m + 1), SPINS):
                    give_way()
                if arrived[0] >= _STOP:
                    return
                if n == 0:
                    after(m)
        except BaseException:
            _arrive(arrived, _STOP)
            raise

    with _TEAM:
        others = [pool(threads - 1).submit(run, n) for n in range(1, threads)]
        try:
            run(0)
        finally:
            for other in others:
                other.result()


def _spread(n: int, threads: int) -> None:
    """Move this thread to processor n where the team has them all; it is free to move on from there."""
    if hasattr(os, "sched_setaffinity"):
        processors = os.sched_getaffinity(0)
        if len(processors) == threads:
            os.sched_setaffinity(0, {sorted(processors)[n]})
            os.sched_setaffinity(0, processors)


#: Let another thread or process have this core, if one waits for it.
give_way: Callable[[], None] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
