"""``kpm_dos`` as called, beside the stages of one step: wall clock, from the Hamiltonian to the curve.

==========================  =====================================================================================
``as_called_stored``        the paper's sample as a sparse matrix of SciPy or CuPy
``as_called_free``          the sample itself, which the library never stores; on a GPU alone
``<either>_setup``          the same with two moments: what comes before the recurrence, and its first step
==========================  =====================================================================================

A call has :data:`MOMENTS` moments and finds the bounds itself.  Its flop and bytes are those of the steps alone, so
that its rates stand beside those of a step, and what comes before the recurrence shows as a lower one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.kpm import api, bounds, reference
from spectile.kpm.reference import seed_of
from spectile_study.bench.case import Context, Method, Skipped
from spectile_study.cases.kpm import model
from spectile_study.cases.kpm.shared import CALL_LIMIT, STEPS, insulator, sample_of

#: Moments of a call; a CPU takes longer for each.
MOMENTS = {"cpu": 64, "cuda": 256}
#: Rows from which a call on a CPU is made once: it takes seconds, most of them for the bounds.
ONCE = 10**6
#: Moments for which one step is enough.
FIRST = 2
#: Vectors that the reference takes at a time.
_CHUNK = 32


def methods(row: Mapping[str, Any], context: Context, matrix: Any) -> list[Method | Skipped]:
    """Return the calls of one row; `matrix` is the stored sample, of the row's type, where the run's device works."""
    sample, dtype = sample_of(row), np.dtype(row["precision"])
    backend = "cuda" if hasattr(matrix, "get") else "cpu"
    operators = {"stored": (matrix, "aug_spmmv")} | ({"free": (sample, "stencil")} if backend == "cuda" else {})
    found: list[Method | Skipped] = []
    for name, (operator, work) in operators.items():
        both = {f"as_called_{name}": MOMENTS[backend], f"as_called_{name}_setup": FIRST}
        if name == "free" and dtype != sample.dtype:
            reason = f"kpm_dos computes the sample without a stored matrix in {sample.dtype} alone"
            found += [Skipped(each, reason) for each in both]
            continue
        found += [_call(each, moments, operator, work, row, context, backend) for each, moments in both.items()]
    return found


def _call(
    name: str, moments: int, operator: Any, work: str, row: Mapping[str, Any], context: Context, backend: Any
) -> Method:
    sample, dtype, r = sample_of(row), np.dtype(row["precision"]), int(row["num_vectors"])
    size = (sample.shape[0], sample.nnz, r, dtype)

    def check(density: Any) -> dict[str, float]:
        a, b = bounds.scaling(density.bounds)
        wanted = reference_moments(sample.nx, sample.ny, sample.nz, r, seed_of(context.seed), context.threads, a, b)
        wanted = wanted[:moments]
        return {"error_fro_rel": float(np.abs(density.moments[: len(wanted)] - wanted).max() / wanted[0])}

    return Method(
        name, lambda: api.kpm_dos(operator, moments, r, rng=context.seed, backend=backend), check,
        {"error_fro_rel": CALL_LIMIT[str(dtype)]}, flops=moments / 2 * model.step_flops(*size),
        bytes=moments / 2 * model.step_bytes(work, *size), values=lambda _: {"moments": moments},
        once=backend == "cpu" and sample.shape[0] >= ONCE,
    )  # fmt: skip


@functools.lru_cache(maxsize=4)
def reference_moments(nx: int, ny: int, nz: int, num_vectors: int, seed: int, threads: int, a: float, b: float) -> Any:
    """Return the first 2 STEPS moments, the mean over R vectors, by the CPU's matrix-free kernel in float64.

    SciPy would take minutes for the larger samples; that both agree is tested.
    """
    from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion

    operator = CpuOperator.from_topological_insulator(insulator(nx, ny, nz), np.dtype(np.complex128))
    total = np.zeros(2 * STEPS)
    for first in range(0, num_vectors, _CHUNK):
        start = operator.random_block(seed, first, min(_CHUNK, num_vectors - first))
        etas = CpuRecursion(operator, a, b, start, threads).advance(STEPS)
        total += reference.moments_from_etas(etas).sum(axis=1)
    return total / num_vectors
