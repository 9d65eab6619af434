"""The matrices of water clusters, on the host or on a device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectile_study.bench.case import Context, Value
from spectile_study.inputs import ergo, hartree_fock, water


def water_operator(row: Mapping[str, Any], context: Context) -> tuple[Any, dict[str, Value]]:
    """Return the matrix of a water row, float64 on the context's device, and what it is.

    Parameters
    ----------
    row : mapping
        ``operator`` (a key of the ``OPERATORS`` of ``water``, ``hartree_fock`` or ``ergo``) and ``molecules``.
    context : Context
        Device, folder of resources and seed.

    Returns
    -------
    matrix : array, shape (24 molecules, 24 molecules)
        NumPy or CuPy; do not write to it, the rows of an operator share it.
    facts : dict
        ``matrix`` and ``cluster``: the labels of the operator and of its geometry and program.
    """
    operator = row["operator"]
    labels = water.OPERATORS | hartree_fock.OPERATORS | {name: label for name, (label, _) in ergo.OPERATORS.items()}
    if operator not in labels:
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {', '.join(labels)}")
    on_gpu = context.device == "cuda"
    matrix, origin = _water_operator(operator, row["molecules"], context.resources, context.seed, on_gpu)
    return matrix, {"matrix": labels[operator], "cluster": origin}


# One matrix stays: the rows of an operator follow one another, and a large one takes minutes to make.
@functools.lru_cache(maxsize=1)
def _water_operator(operator: str, molecules: int, resources: Path, seed: int, on_gpu: bool) -> tuple[Any, str]:
    cluster = water.water_cluster(molecules, resources, seed)
    if operator in water.OPERATORS:
        return water.water_matrix(operator, cluster, resources, on_gpu), cluster.origin
    if operator in hartree_fock.OPERATORS:
        matrix, source = hartree_fock.scf_matrix(operator, cluster, resources, on_gpu)
        return matrix, f"{cluster.origin}; F by {source}"
    return water.place(ergo.ergo_matrix(operator, cluster, resources), on_gpu), cluster.origin
