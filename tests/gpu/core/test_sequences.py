"""Random sequences of public calls on CuPy arrays: sizes at which another kernel is taken, streams, threads.

``SPECTILE_SEQUENCES=1000`` runs so many sequences, with other seeds every time, instead of the fixed few.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from ...sequences import Calls

pytestmark = pytest.mark.gpu


class GpuCalls(Calls):
    orders = (700, 1100, 1537, 3001, 2049)

    @property
    def xp(self):
        import cupy

        return cupy

    @property
    def sparse(self):
        import cupyx.scipy.sparse

        class Sparse:
            @staticmethod
            def csr_matrix(matrix):
                import scipy.sparse

                return cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(matrix))

        return Sparse

    def stream(self):
        return self.xp.cuda.Stream(non_blocking=True)

    def wait(self):
        self.xp.cuda.Device().synchronize()


_MANY = int(os.environ.get("SPECTILE_SEQUENCES", "0"))
TestCalls = GpuCalls.TestCase
TestCalls.settings = settings(
    max_examples=_MANY or 25, stateful_step_count=20, derandomize=not _MANY, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
