"""What the studies of every device share: limits of errors, reasons, and the work that is credited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spectile_study.bench.case import Method, Skipped

#: Residuals of LAPACK's testing; the limit of each.
LIMITS = {"error_residual": 10.0, "error_orthogonality": 10.0, "error_values": 10.0}
VALUES = {"error_values": 10.0}
#: MRRR promises orthogonality less closely than divide and conquer; a speed is drawn beside its measured error.
MRRR_LIMITS = {"error_residual": 10.0, "error_orthogonality": 1000.0, "error_values": 10.0}
NO_GPU = "this machine has no CUDA device"
NO_MAGMA = "MAGMA's solver runs on a CUDA device and the host together, and this run measures the CPU alone"


def flops(n: int, *, vectors: bool = False) -> float:
    """Return the operations credited: 4/3 n³ for T, and 4 n³ more for taking n vectors back through two stages."""
    return (4 / 3 + (4 if vectors else 0)) * float(n) ** 3


def with_work(methods: list[Method | Skipped], n: int, bandwidth: int) -> list[Method | Skipped]:
    """Return the methods of the study ``stages`` with what each does to a real matrix: operations, or bytes moved.

    4/3 n³ for the band; two sides of the band by reflectors of length b for the chasing; 4/3 n³ for divide and conquer
    without deflation; 2 n³ for each set of reflectors on n columns.
    """
    cube = float(n) ** 3
    work: dict[str, dict[str, Any]] = {
        "load": {"bytes": 16.0 * n * n},
        "band_reduction": {"flops": 4 / 3 * cube},
        "chasing": {"flops": 6.0 * n * n * bandwidth},
        "divide_and_conquer": {"flops": 4 / 3 * cube},
        "cusolver_stedc": {"flops": 4 / 3 * cube},
        "back_chasing": {"flops": 2 * cube},
        "back_panels": {"flops": 2 * cube},
    }
    return [
        replace(method, **work.get(method.name, {})) if isinstance(method, Method) else method for method in methods
    ]
