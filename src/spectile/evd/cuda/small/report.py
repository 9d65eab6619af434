"""What kernels say to the host: whether an entry was not finite, and what did not converge."""

from __future__ import annotations

import ctypes
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


#: How often the host looks at a word, which takes about 0.2 ms in all, before it waits for the stream instead.
_LOOKS = 4000
_FINITE = 1


class _Word:
    """An int32 in pinned memory that one launch at a time writes once, and the counter by which its blocks agree."""

    def __init__(self) -> None:
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self.value = ctypes.c_int32.from_address(self._memory.ptr)
        self.address = np.uintp(self._memory.ptr)
        self.arrived = cupy.zeros(1, np.uint64)
        cupy.cuda.get_current_stream().synchronize()  # its next user may be on another stream


#: Words that no launch uses, by device: at most as many as there were calls at the same time.
_WORDS: dict[int, list[_Word]] = {}


def all_finite(launch: Callable[[Any, Any], None]) -> bool:
    """Launch a kernel that tells whether its input is finite as soon as it has read it; return what it tells.

    ``launch(address, arrived)`` launches on the current stream, with the address of a word in the host's memory and a
    counter.  The host looks at the word, so that the kernel may still be at work at the return, and the next call is
    prepared meanwhile.  Behind other work of the stream, or if it fails, the host waits for the stream instead.
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    free = _WORDS.setdefault(cupy.cuda.runtime.getDevice(), [])
    try:
        word = free.pop()
    except IndexError:
        word = _Word()
    value = word.value
    value.value = 0
    try:
        launch(word.address, word.arrived)
        for _ in range(_LOOKS):
            if value.value:
                break
    finally:
        # Also where the looking was interrupted: the word's memory must not go to another one before it is written.
        if not value.value:
            stream.synchronize()
    told = value.value
    free.append(word)
    return bool(told == _FINITE)
