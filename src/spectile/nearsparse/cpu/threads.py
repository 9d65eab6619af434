"""Threads of the CPU backend: as many as BLAS is set to, each running compiled code without the GIL."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


@functools.cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def threads() -> int:
    """Return the threads to use: as many as BLAS is set to (threadpoolctl), at most the cores given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(library["num_threads"] for library in _blas().info())]))


def run_each(function: Callable[[Any], Any], items: Iterable[Any], parallel: bool) -> list[Any]:
    """Return what the function gives for each item, computed by threads where it pays."""
    count = threads() if parallel else 1
    if count == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, items))
