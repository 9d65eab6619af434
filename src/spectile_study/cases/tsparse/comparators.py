"""Other people's sparse products, run through a library or an executable that the user names; none is needed.

One is named by an environment variable, ``SPECTILE_CUSP``, ``SPECTILE_BHSPARSE``, ``SPECTILE_RMERGE2``,
``SPECTILE_NSPARSE``, ``SPECTILE_AC_SPGEMM``, ``SPECTILE_SPECK`` or ``SPECTILE_OPSPARSE``.  A library (``.so``; ``python
-m spectile_study rivals`` builds them) is called in this process on the device's arrays.  An executable is called as
``<executable> <matrix.mtx> <repeats>``, squares the matrix, and prints a line ``time_s <seconds>`` for each repeat
(allocations of the output included), one line ``nnz <stored entries of C>`` and one line ``sum <sum of the entries of
C>``, both of which are checked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from spectile_study.bench.case import Method, Skipped

NAMES = {
    "cusp": "CUSP",
    "bhsparse": "bhSPARSE",
    "rmerge2": "RMerge2",
    "nsparse": "Nsparse",
    "ac_spgemm": "AC-SpGEMM",
    "speck": "spECK",
    "opsparse": "OpSparse",
}
#: What the sum of C may be off, over the sum of all sizes of products: a unit of float16's inputs.
SUM_UNIT = 2.0**-9


def methods(A: Any, nnz: int, limit_s: float = 60.0) -> list[Method | Skipped]:
    """Return the comparators' methods for squaring `A` by executables; those that are not built are skipped.

    Parameters
    ----------
    A : scipy.sparse array
    nnz : int
        Stored entries of the product, which the executable must report.
    limit_s : float
        Longest call.
    """
    return [_method(name, A, nnz, limit_s) for name in NAMES if not library_of(name)]


def library_of(name: str) -> str | None:
    """Return the library that the user names for `name`, if it is one and not an executable."""
    path = os.environ.get(f"SPECTILE_{name.upper()}", "")
    return path if path.endswith(".so") else None


def _method(name: str, A: Any, nnz: int, limit_s: float) -> Method | Skipped:
    variable = f"SPECTILE_{name.upper()}"
    executable = os.environ.get(variable)
    if not executable:
        return Skipped(name, f"{NAMES[name]} is not built: name its library or executable in {variable}")
    if not os.access(executable, os.X_OK):
        return Skipped(name, f"{NAMES[name]} cannot run: {variable} names no executable file")
    folder = tempfile.TemporaryDirectory()

    def run() -> tuple[dict[str, float], float]:
        path = Path(folder.name) / "matrix.mtx"  # the folder lives as long as this function
        if not path.exists():
            from scipy.io import mmwrite

            mmwrite(path, A)
        called = subprocess.run([executable, str(path), "1"], capture_output=True, text=True, timeout=limit_s)
        if called.returncode:
            raise RuntimeError(f"{NAMES[name]} ended with code {called.returncode}: {called.stderr.strip()[-200:]}")
        printed = dict(line.split()[:2] for line in called.stdout.splitlines() if len(line.split()) >= 2)
        return {"nnz": float(printed["nnz"]), "sum": float(printed["sum"])}, float(printed["time_s"])

    def check(result: dict[str, float]) -> dict[str, float]:
        ones = np.ones(A.shape[1])
        expected, size = float((A @ (A @ ones)).sum()), float((abs(A) @ (abs(A) @ ones)).sum())
        off = abs(result["sum"] - expected) / (SUM_UNIT * size or 1.0)
        return {"error_pattern": abs(result["nnz"] - nnz), "error_bound_ratio": off}

    limits = {"error_pattern": 0.0, "error_bound_ratio": 1.0}
    return Method(name, run, check, limits, clock="external", time_limit_s=limit_s)
