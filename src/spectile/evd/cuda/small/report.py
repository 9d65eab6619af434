"""What kernels say to the host: whether an entry was not finite, and what did not converge."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.evd.types import Options, not_converged, out_of_range, require_finite

_Status = ctypes.c_int32 * 4


class Report:
    """Four int32 in the host's memory, which kernels write to where something failed; read once at the end.

    At `address` the first is not 0 where an entry is not finite; the second is what the solver reports, and the third
    is not 0 where an eigenvalue is beyond the range of its dtype; of the fourth `disordered` tells.  Raises
    RuntimeError if the stream is captured in a graph, where nothing can be waited for.
    """

    def __init__(self) -> None:
        import cupy

        self._stream = cupy.cuda.get_current_stream()
        if self._stream.is_capturing():
            raise RuntimeError("matrices that cuSOLVER solves cannot be captured in a CUDA graph: solve them before it")
        self._memory = cupy.cuda.alloc_pinned_memory(ctypes.sizeof(_Status))
        self.address = np.uintp(self._memory.ptr)
        self._status = _Status.from_address(self._memory.ptr)
        self._status[:] = [0] * 4
        self._kept: list[Any] = []

    def keep(self, memory: Any) -> None:
        """Keep memory of the host that the device's work reads until that work is done."""
        self._kept.append(memory)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for what reads and writes the host's memory, also where the call has failed."""
        self._stream.synchronize()

    def check(self, options: Options, dtype: Any) -> None:
        """Wait for the stream and raise what was reported of eigenvalues of `dtype`."""
        self._stream.synchronize()
        not_finite, failed, too_large, _ = self._status
        if not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if failed:
            raise not_converged(failed)
        if too_large:
            raise out_of_range(dtype)

    @property
    def disordered(self) -> bool:
        """Whether, after `check`, results of a matrix are known to be none."""
        return bool(self._status[3])


#: How long the host looks at a word before it waits for the stream, of which it is told late: some 0.2 ms.
_LOOK_SECONDS = 2e-3
_WELL = 1


class Word:
    """An int32 in pinned memory that one launch at a time writes once, and the counter by which its blocks agree."""

    def __init__(self) -> None:
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self.value = ctypes.c_int32.from_address(self._memory.ptr)
        self.address = np.uintp(self._memory.ptr)
        self.arrived = cupy.zeros(1, np.uint64)
        cupy.cuda.get_current_stream().synchronize()  # its next user may be on another stream


@functools.lru_cache(maxsize=64)
def free_words(device: int, kind: Callable[..., Word], *what: Any) -> list[Any]:
    """Return the words of a kind that no launch uses: at most as many as there were calls at the same time."""
    return []


def told(
    launch: Callable[[Any], None], stream: int | None = None, kind: Callable[..., Word] = Word, *what: Any
) -> bool:
    """Launch a kernel that tells, before it ends, whether all is well; return what it tells.

    ``launch(word)`` launches on the stream of this address, or the current one, with a word, ``kind(*what)``.  The host
    looks at it, so that the device may still be at work at the return, and the next call is prepared meanwhile.  Behind
    other work of the stream, or if the launch fails, the host waits for the stream.
    """
    import cupy

    stream = cupy.cuda.get_current_stream().ptr if stream is None else stream
    free = free_words(cupy.cuda.runtime.getDevice(), kind, *what)
    try:
        word = free.pop()
    except IndexError:
        word = kind(*what)
    value = word.value
    value.value = 0
    try:
        launch(word)
        end = time.perf_counter() + _LOOK_SECONDS
        while not value.value and time.perf_counter() < end:
            pass
    finally:
        # Also where the looking was interrupted: the word's memory must not go to another one before it is written.
        if not value.value:
            cupy.cuda.runtime.streamSynchronize(stream)
    well = value.value == _WELL
    free.append(word)
    return bool(well)
