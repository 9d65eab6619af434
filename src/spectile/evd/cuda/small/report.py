"""What kernels say of a solution to the host: whether an entry was not finite, and what did not converge."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from spectile.evd.types import Options, not_converged, require_finite

_Status = ctypes.c_int32 * 2


class Report:
    """Two int32 in the host's memory, which kernels write to where something failed; read once at the end.

    While the stream is captured in a graph there are none, because nothing can be waited for.

    Parameters
    ----------
    wanted : bool, default True
        Whether anything is reported at all.

    Attributes
    ----------
    address : numpy.uintp
        Of the first, not 0 where an entry is not finite; the second is what the solver reports.  0 for none.
    """

    def __init__(self, wanted: bool = True) -> None:
        import cupy

        self._stream = cupy.cuda.get_current_stream()
        reports = wanted and not self._stream.is_capturing()
        self._memory: Any = cupy.cuda.alloc_pinned_memory(8) if reports else None
        self.address = np.uintp(0 if self._memory is None else self._memory.ptr)
        if self._memory is not None:
            self._status = _Status.from_address(self._memory.ptr)
            self._status[0] = self._status[1] = 0

    def check(self, options: Options) -> None:
        """Wait for the stream and raise what was reported."""
        if self._memory is None:
            return
        self._stream.synchronize()
        not_finite, failed = self._status
        if not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if failed:
            raise not_converged(failed)
