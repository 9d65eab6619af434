"""What the studies of KPM share: the paper's sample, its scaling, references and checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.kpm import bounds, reference
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Value
from spectile_study.cases.kpm import stages
from spectile_study.inputs.quantum_dots import quantum_dots

#: Steps of one timed call; even, since the temporally blocked sweep does two at once.
STEPS = 4
LIMIT = {"complex128": 1e-12, "complex64": 1e-5}
#: Largest error of the moments of a call, of what every type can hold.
CALL_LIMIT = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-11, "complex128": 1e-11}
NO_DEVICE = "this machine has no CUDA device"
GPU_METHODS = ("aug_spmmv_sell", "spmmv", "aug_spmmv_nodots", "blocked")

#: Methods whose bytes are counted for Figures 9 and 10, and the work of each (``model.step_bytes``).
COUNTED = {
    "spmmv": "spmmv", "aug_spmmv_nodots": "aug_spmmv", "aug_spmmv": "aug_spmmv", "stencil": "stencil",
    "blocked": "blocked"
}  # fmt: skip


def insulator(nx: int, ny: int, nz: int) -> TopologicalInsulator:
    """Return the paper's topological insulator with its superlattice of quantum dots."""
    return TopologicalInsulator(nx, ny, nz, quantum_dots(nx, ny, nz))


def sample_of(row: Mapping[str, Any]) -> TopologicalInsulator:
    """Return the topological insulator of a row."""
    return insulator(row["nx"], row["ny"], row["nz"])


@functools.lru_cache(maxsize=1)
def host_matrix(nx: int, ny: int, nz: int) -> Any:
    """Return the stored matrix of the paper's sample."""
    return insulator(nx, ny, nz).matrix()


@functools.lru_cache(maxsize=4)
def reference_etas(nx: int, ny: int, nz: int, seed: int) -> Any:
    """Return the scalar products of two vectors after STEPS + 1 steps in float64, by SciPy."""
    matrix = host_matrix(nx, ny, nz)
    a, b = scaling(insulator(nx, ny, nz))
    start = reference.random_phases(seed, matrix.shape[0], 2)
    return stages.etas_blocked(matrix, start, 2 * (STEPS + 1), a, b)


def scaling(sample: TopologicalInsulator) -> tuple[float, float]:
    """Return a and b of every timed step: Gershgorin's bounds, which need no time."""
    return bounds.scaling(sample.bounds())


def checker(row: Mapping[str, Any], context: Context, first: int) -> Callable[[Any], dict[str, float]]:
    """Return the check of a step's scalar products, shape (2 STEPS, R), that begin with step `first`."""
    expected = reference_etas(row["nx"], row["ny"], row["nz"], context.seed)[2 * first : 2 * (first + STEPS)]

    def check(result: Any) -> dict[str, float]:
        etas = result.get() if hasattr(result, "get") else result
        sums = np.asarray(etas).reshape(2 * STEPS, -1)[:, :2]
        wanted = expected[:, : sums.shape[1]]
        return {"error_fro_rel": float(np.linalg.norm(sums - wanted) / np.linalg.norm(wanted))}

    return check


def case_values(sample: TopologicalInsulator) -> dict[str, Value]:
    """Return what belongs to the sample."""
    return {"rows": sample.shape[0], "nnz": sample.nnz, "nnz_per_row": sample.nnz / sample.shape[0]}
