"""Work whose launches are the same in every call of a kind: captured in CUDA graphs, and repeated by one launch each.

A launch takes the host 2 to 20 µs, by the host; a call that makes hundreds of them may take longer there than on the
device.  A kind of call is known by a key, which names everything that the launches depend on but the numbers in memory.
Its first call runs as it is written, the second is captured, and later ones replay that::

    with replay.parts(key, nbytes) as part:
        a = part.space(lambda: cupy.empty((n, n)))
        a[...] = operand
        d = part(reduce, a, n)      # launches, allocates, never waits

What a captured part allocates is a pool of its own, which stays until it is dropped, so that addresses are valid in
the next call; results that leave the call are copied (``part.keeps`` says whether that is needed).

A thread that waits for the whole device while another one captures fails, and so does the capture.  So calls are
captured, and replayed, only where a process has one Python thread.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from spectile.core.cupy_parts import part
from spectile.core.device import describe
from spectile.core.launch import Kernel, noting_launches

#: What all kept calls of a device may hold is its memory over this.
SHARE = 64
#: Kinds of calls of which it is remembered when they are captured.
_MOST_SEEN = 256


class Direct:
    """Parts that run as they are called; `keeps` says whether memory of the parts is used again by a later call."""

    keeps = False

    def space(self, make: Callable[[], Any]) -> Any:
        """Return what `make` allocates: the same in each call of this kind, with what the last call left in it."""
        return make()

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``work(*arguments)``, which only allocates and launches, and depends on nothing but the key."""
        return work(*arguments)


DIRECT = Direct()


class Captured(Direct):
    """Parts that are captured when they are called first, and replayed after that, in the same order."""

    keeps = True

    def __init__(self) -> None:
        import cupy

        self._pool, self._stream = cupy.cuda.MemoryPool(), cupy.cuda.Stream(non_blocking=True)
        self._made: list[tuple[Any, Any, list[Kernel]]] = []
        self._next, self._ended = 0, cupy.cuda.Event(disable_timing=True)

    @property
    def nbytes(self) -> int:
        """Device memory that is kept."""
        return int(self._pool.total_bytes())

    def begin(self) -> None:
        """Begin a call on the current stream, after the last one on whatever stream."""
        import cupy

        self._next = 0
        cupy.cuda.get_current_stream().wait_event(self._ended)

    def end(self) -> None:
        """End a call."""
        import cupy

        cupy.cuda.get_current_stream().record(self._ended)

    def space(self, make: Callable[[], Any]) -> Any:
        """Allocate at the first call, and return the same memory after that."""
        import cupy

        if self._next == len(self._made):
            with cupy.cuda.using_allocator(self._pool.malloc):
                self._made.append((None, make(), []))
        return self._take()[1]

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Capture or replay a part; its results lie where they lay in the last call."""
        import cupy

        if self._next == len(self._made):
            self._made.append(self._capture(work, arguments))
        graph, results, kernels = self._take()
        for each in kernels:
            each.launched = True
        graph.launch(cupy.cuda.get_current_stream())
        return results

    def _take(self) -> tuple[Any, Any, list[Kernel]]:
        self._next += 1
        return self._made[self._next - 1]

    def _capture(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any, list[Kernel]]:
        import cupy

        part("get_cublas_handle")()  # made before the capture, which may not make it
        with noting_launches() as kernels, cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            self._stream.begin_capture()
            try:
                results = work(*arguments)
            finally:
                graph = self._stream.end_capture()
        return graph, results, kernels


class _Kept:
    """Captured calls that nobody runs now, the last used at the end, and what is known of each kind.

    A capture takes longer than a call as it is written.  So a kind that was dropped for want of room is captured again
    only after twice as many calls as before, and one that has no room by itself never: calls that take turns, too many
    for the room, would all be captured anew each time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[Hashable, Captured] = OrderedDict()
        #: By kind, the calls that run as they are before the next capture, and before the one after it.
        self._before: dict[Hashable, tuple[float, float]] = {}

    def take(self, key: Hashable) -> Captured | None:
        """Return a captured call for the use of one thread; None for one that runs as it is written."""
        with self._lock:
            known = self._idle.pop(key, None)
            if known is None:
                if key not in self._before and len(self._before) >= _MOST_SEEN:
                    self._before.clear()
                left, later = self._before.get(key, (1, 2))
                self._before[key] = max(0, left - 1), later
                if left > 0:
                    return None
        return known or Captured()

    def give_back(self, key: Hashable, call: Captured, limit: int) -> None:
        """Keep a call for later, and drop those that were used least lately beyond `limit` bytes."""
        dropped = []
        with self._lock:
            dropped.append(self._idle.pop(key, None))  # of another thread
            if call.nbytes > limit:
                self._before[key] = math.inf, math.inf
                return
            self._idle[key] = call
            while sum(each.nbytes for each in self._idle.values()) > limit:
                other, one = self._idle.popitem(last=False)
                dropped.append(one)
                later = self._before.get(other, (0, 1))[1]
                self._before[other] = later, 2 * later

    def nbytes(self) -> int:
        """Return how many bytes all hold."""
        with self._lock:
            return sum(each.nbytes for each in self._idle.values())

    def drop(self) -> None:
        """Free the memory of all."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
        idle.clear()


_KEPT = _Kept()


@contextmanager
def parts(key: Hashable, nbytes: int) -> Iterator[Direct]:
    """Give the parts of a call on the current device: as they are for the first of its kind, then captured.

    The key is all that the launches depend on.  Calls that allocate more than a device may keep are never captured, and
    none beside other Python threads.
    """
    import cupy

    limit = describe().memory_bytes // SHARE
    own = (cupy.cuda.runtime.getDevice(), key)
    alone = threading.active_count() == 1 and not cupy.cuda.get_current_stream().is_capturing()
    call = _KEPT.take(own) if alone and nbytes <= limit else None
    if call is None:
        yield DIRECT
        return
    call.begin()
    yield call  # a call that fails is not kept
    call.end()
    _KEPT.give_back(own, call, limit)


def kept_bytes() -> int:
    """Return how much device memory captured calls keep while nobody runs them."""
    return _KEPT.nbytes()


def drop() -> None:
    """Free the memory that captured calls keep; the next call of each kind is captured again."""
    _KEPT.drop()
