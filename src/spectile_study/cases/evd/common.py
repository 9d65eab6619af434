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

#: A call that takes longer, as its operations predict, is made once; one that would take far longer is left out.
ONCE_S, LONGEST_S = 1.0, 10.0
#: Operations a second of a chasing on a core of the host, and of MAGMA's band reduction on the device: the slower ones
#: that are recorded, with 16 cores.
CHASING_RATE, MAGMA_RATE = 3e9, 5e12


def chasing_flops(n: int, b: int) -> float:
    """Return the operations of the bulge chasing: two sides of the band by reflectors of length b."""
    return 6.0 * n * n * b


def chasing_seconds(n: int, b: int, threads: int) -> float:
    """Predict the time of a chasing on the host's cores, ours or MAGMA's."""
    return chasing_flops(n, b) / (CHASING_RATE * threads)


def magma_seconds(n: int, b: int, threads: int, *, vectors: bool = False) -> float:
    """Predict the time of MAGMA's tridiagonalization by way of a band, with `vectors` of its solver.

    What LAPACK does on one core for eigenvalues alone is not counted.
    """
    return flops(n, vectors=vectors) / MAGMA_RATE + chasing_seconds(n, b, threads)


def too_long(seconds: float) -> str:
    """Return why a method is left out whose one call would take `seconds`."""
    return f"left out of this row: its operations predict about {seconds:,.0f} s a call"


def flops(n: int, *, vectors: bool = False) -> float:
    """Return the operations credited: 4/3 n³ for T, and 4 n³ more for taking n vectors back through two stages."""
    return (4 / 3 + (4 if vectors else 0)) * float(n) ** 3


def with_work(methods: list[Method | Skipped], n: int, bandwidth: int) -> list[Method | Skipped]:
    """Return the methods of the study ``stages`` with what each does to a real matrix: operations, or bytes moved.

    4/3 n³ for the band; `chasing_flops` for the chasing; 4/3 n³ for divide and conquer
    without deflation; 2 n³ for each set of reflectors on n columns.
    """
    cube = float(n) ** 3
    work: dict[str, dict[str, Any]] = {
        "load": {"bytes": 16.0 * n * n},
        "band_reduction": {"flops": 4 / 3 * cube},
        "chasing": {"flops": chasing_flops(n, bandwidth)},
        "divide_and_conquer": {"flops": 4 / 3 * cube},
        "cusolver_stedc": {"flops": 4 / 3 * cube},
        "back_chasing": {"flops": 2 * cube},
        "back_panels": {"flops": 2 * cube},
    }
    return [
        replace(method, **work.get(method.name, {})) if isinstance(method, Method) else method for method in methods
    ]
