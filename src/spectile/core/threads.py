"""Threads of the CPU: how many a call may use, and a pool that stays for the next call.

Compiled code runs on them without the GIL.  Products of dense tiles and the eigensolver take as many as BLAS is set to
(``threadpoolctl``), sparse products and spectral densities as many as Numba is set to (``numba.set_num_threads``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from spectile.core.progress import PARTS, counted_in

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """Return the threads that Numba is set to."""
    import numba

    return int(numba.get_num_threads())


def blas_threads() -> int:
    """Return the threads that BLAS is set to, at most the processors."""
    return max(1, min([cores(), *(library["num_threads"] for library in _blas().info())]))


@functools.cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


@functools.cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads beside the caller's, which stay."""
    return ThreadPoolExecutor(threads, thread_name_prefix="spectile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # a forked process has no threads


def each(items: Iterable[T], threads: int, work: Callable[[T], object]) -> None:
    """Call ``work(item)`` for every item, on so many threads, of which the caller is one.

    What one of them raises, KeyboardInterrupt in the caller's included, stops all at their next item and is raised
    once no thread is at work any more.  A call that counts its parts is told of them.

    Examples
    --------
    >>> squares = [0] * 4
    >>> each(range(4), 2, lambda i: squares.__setitem__(i, i * i))
    >>> squares
    [0, 1, 4, 9]
    """
    wanted, call = list(items), counted_in(PARTS)
    left, ended = iter(wanted), False
    others: list[Future[None]] = []
    done: list[None] = []  # one for each item
    before = 0 if call is None else call.done
    if call is not None:
        call.total = before + len(wanted)

    def tell() -> None:
        if call is not None:
            call.add(before + len(done) - call.done)

    def drain(after: Callable[[], None] = lambda: None) -> None:
        nonlocal ended
        try:
            for item in left:
                if ended:
                    return
                work(item)
                done.append(None)
                after()
        except BaseException:
            ended = True
            raise

    try:
        for _ in range(min(threads, len(wanted)) - 1):
            others.append(pool(max(1, cores() - 1)).submit(drain))
        drain(tell)  # in the thread of the call alone
    finally:
        ended = True  # no item is left, or none is wanted
        _wait(others)
        tell()
    for other in others:
        if not other.cancelled():
            other.result()


def results(items: Iterable[T], threads: int, function: Callable[[T], R]) -> list[R]:
    """Return what a function gives for every item, in their order; as :func:`each`."""
    wanted = list(items)
    found: dict[int, R] = {}
    each(range(len(wanted)), threads, lambda i: found.__setitem__(i, function(wanted[i])))
    return [found[i] for i in range(len(wanted))]


def _wait(others: list[Future[None]]) -> None:
    """Wait until no thread is at work, even if interrupted meanwhile: what they write to is used again."""
    interrupt = None
    for other in others:
        while not (other.cancel() or other.done()):
            try:
                wait([other])
            except KeyboardInterrupt as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
