"""The matrices of water clusters, on the host or on a device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectile_study.bench.case import Context, Value
from spectile_study.inputs import ergo, water


def water_operator(row: Mapping[str, Any], context: Context) -> tuple[Any, dict[str, Value]]:
    """Return the matrix of a water row, float64 on the context's device, and what it is.

    Parameters
    ----------
    row : mapping
        ``operator`` (a key of ``water.OPERATORS`` or ``ergo.OPERATORS``) and ``molecules``.
    context : Context
        Device, folder of resources and seed.

    Returns
    -------
    matrix : array, shape (24 molecules, 24 molecules)
        NumPy or CuPy; do not write to it, the rows of an operator share it.
    facts : dict
        ``matrix`` and ``cluster``: the labels of operator and geometry.
    """
    operator = row["operator"]
    if operator in ergo.OPERATORS:
        label = ergo.OPERATORS[operator][0]
    elif operator in water.OPERATORS:
        label = water.OPERATORS[operator]
    else:
        known = ", ".join([*water.OPERATORS, *ergo.OPERATORS])
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {known}")
    on_gpu = context.device == "cuda"
    matrix, origin = _water_operator(operator, row["molecules"], context.resources, context.seed, on_gpu)
    return matrix, {"matrix": label, "cluster": origin}


# One matrix stays: the rows of an operator follow one another, and a large one takes minutes to make.
@functools.lru_cache(maxsize=1)
def _water_operator(operator: str, molecules: int, resources: Path, seed: int, on_gpu: bool) -> tuple[Any, str]:
    cluster = water.water_cluster(molecules, resources, seed)
    if operator in water.OPERATORS:
        return water.water_matrix(operator, cluster, resources, on_gpu), cluster.origin
    matrix: Any = ergo.ergo_matrix(operator, cluster, resources)
    if on_gpu:
        import cupy

        matrix = cupy.asarray(matrix)
    return matrix, cluster.origin
