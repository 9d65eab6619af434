"""Problems on a CUDA device: where their matrices lie, and the vendors' calls beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import cupy
import numpy as np

from spectile.core import device
from spectile.evd.cuda.back.panels import apply_panels
from spectile.evd.cuda.back.sweeps import apply_chasing
from spectile.evd.cuda.chasing.chase import chase_band, extract_band
from spectile.evd.cuda.choose import calls_vendor, stage_parameters
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import as_array, empty_matrix, scaled_values
from spectile.evd.cuda.reduction.band import band_reduction
from spectile.evd.cuda.run import wanted_vectors
from spectile.evd.types import SCALARS, Subset
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.cases.evd import gradients as of_gradients
from spectile_study.cases.evd import rivals
from spectile_study.cases.evd import sequences as of_sequences
from spectile_study.cases.evd.cuda.inputs import matrix_of, reference_values, wait
from spectile_study.cases.evd.problems import Check, Place, build

#: Jacobi rotations up to cuSOLVER's tolerance leave vectors less orthogonal; a speed is shown beside its error.
JACOBI_LIMITS = {"error_orthogonality": 1000.0}


class Device(Place):
    """The current CUDA device."""

    backend: Literal["cpu", "cuda"] = "cuda"
    xp: ModuleType = cupy

    def hermitian(self, n: int, seed: int) -> Any:
        """Return the counted matrix of order n, float64, column-major."""
        return matrix_of(n, seed)

    def reference(self, n: int) -> Any:
        """Return all eigenvalues of that matrix by the vendor."""
        return reference_values(n, self.seed)

    def wait(self, result: Any) -> Any:
        """Return `result` when the current stream has ended."""
        return wait(result)

    def to_host(self, array: Any) -> Any:
        """Return the array on the host."""
        return cupy.asnumpy(array)

    def generalized_rival(self, a: Any, b: Any, check: Check, limits: Mapping[str, float]) -> Method:
        """Return cuSOLVER's sygvd on A v = w B v."""
        solver = rivals.Sygvd(cupy.empty_like(a), cupy.empty_like(b))
        return Method("cusolver", solver, check, limits, prepare=lambda: solver.restore(a, b))

    def partial_rival(self, a: Any, k: int, check: Check, limits: Mapping[str, float]) -> Method:
        """Return cuSOLVER's syevdx on the k lowest eigenpairs."""
        solver = rivals.Syevdx(cupy.empty_like(a), k)
        return Method("cusolver", solver, check, limits, prepare=lambda: solver.restore(a))

    def way_back(self, a: Any, k: int, check: Check, limits: Mapping[str, float]) -> Method | Skipped:
        """Return the way of the k lowest eigenvectors from the tridiagonal matrix back to A, alone."""
        n, scalar = len(a), SCALARS["float64"]
        if calls_vendor(n, scalar, vectors=True, device=device.describe()):
            return Skipped("spectile_back", f"cuSOLVER solves a problem of order {n:,}, in one call")
        b, block = stage_parameters(n, scalar, vectors=True, device=device.describe())
        kept, scale = load_matrix(a, lower=True, check_finite=True)
        panels = band_reduction(kept, n, bandwidth=b, block=block)
        d, e = chase_band(extract_band(panels), n, b, kept)
        w, x, _ = wanted_vectors(d, e, scalar, scale, Subset(True, 0, k - 1))
        w = scaled_values(w, -scale, scalar)
        z = empty_matrix(n, k, np.float64)

        def prepare() -> None:
            as_array(z, n, k).T[...] = as_array(x, n, k).T

        def back() -> Any:
            apply_chasing(kept, n, b, z.pointer, z.ld, k)
            apply_panels(panels, z.pointer, z.ld, k)
            return wait((w, as_array(z, n, k)))

        return Method("spectile_back", back, check, limits, prepare=prepare)

    def batched_rival(self, batch: Any, check: Check, limits: dict[str, float]) -> Method:
        """Return CuPy's call on a batch."""
        solve: Callable[[Any], Any] = cupy.linalg.eigh
        return Method("cupy", lambda: wait(solve(batch)), check, limits | JACOBI_LIMITS)


def problems(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``problems`` on the current device."""
    return build(row, Device(context.seed))


def gradients(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``gradients`` on the current device."""
    return of_gradients.build(row, Device(context.seed), context.threads)


def sequences(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``sequences`` on the current device."""
    return of_sequences.build(row, Device(context.seed))
