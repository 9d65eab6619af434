"""Launches that do not depend on each other, on several streams, and threads of the host that have their own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class _Kept(threading.local):
    """Streams and events of one host thread, by device."""

    def __init__(self) -> None:
        self._by_device: dict[int, list[tuple[Any, Any]]] = {}

    def get(self, count: int) -> list[tuple[Any, Any]]:
        import cupy

        kept = self._by_device.setdefault(cupy.cuda.runtime.getDevice(), [])
        while len(kept) < count:
            kept.append((cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)))
        return kept


_kept = _Kept()


@functools.cache
def pool(name: str, workers: int) -> ThreadPoolExecutor:
    """Return threads of the host that stay, and with them their streams and plans; no work waits for its own pool."""
    return ThreadPoolExecutor(workers, f"spectile-{name}")


def own_streams(count: int) -> list[Any]:
    """Return streams of this thread and the current device; CuPy keeps freed memory for the stream that it was of."""
    return [stream for stream, _ in _kept.get(count)[:count]]


def side_by_side(launches: Sequence[Callable[..., None]], beside: Sequence[Callable[..., None]]) -> None:
    """Launch one after the other on the current stream, and each of `beside` on another; the current one waits for all.

    A launch is given its stream, None for the current one.
    """
    if not launches:
        launches, beside = beside[:1], beside[1:]
    if not beside:
        for launch in launches:
            launch(None)
        return
    import cupy

    main = cupy.cuda.get_current_stream()
    (_, begin), *others = _kept.get(len(beside) + 1)[: len(beside) + 1]
    begin.record(main)
    for launch, (stream, event) in zip(beside, others, strict=True):
        stream.wait_event(begin)
        launch(stream.ptr)
        event.record(stream)
    for launch in launches:
        launch(main.ptr)
    for _, event in others:
        main.wait_event(event)
