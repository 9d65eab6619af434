"""What kernels say of a solution to the host: whether an entry was not finite, and what did not converge."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.evd.types import Options, not_converged, require_finite


class Report:
    """Two int32 on the device, which kernels set, read once at the end.

    Attributes
    ----------
    status : cupy.ndarray of int32, shape (2,)
        Not 0 where an entry is not finite; what the solver reports.
    """

    def __init__(self) -> None:
        import cupy

        self.status: Any = cupy.zeros(2, np.int32)

    def check(self, options: Options) -> None:
        """Wait and raise what was reported, unless the stream is captured in a graph, where nothing can be read."""
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            return
        not_finite, failed = self.status.get().tolist()
        if not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if failed:
            raise not_converged(failed)
