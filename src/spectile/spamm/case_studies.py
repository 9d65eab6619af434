"""Operands of the paper's case studies: powers of a water cluster's matrices, and convolutions of VGG13."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spectile.bench.case import Context, Value
from spectile.inputs import ergo, water


class Operands(NamedTuple):
    """What a case study multiplies.

    Attributes
    ----------
    a, b : array
        Separate buffers on the context's device; float64 of a water cluster, float32 of a network.
    tau : float
        Threshold of the row, or the one found for the row's valid ratio.
    values : mapping
        What belongs to the case: labels, origin of the data, accuracies.
    """

    a: Any
    b: Any
    tau: float
    values: Mapping[str, Value]


def operands(row: Mapping[str, Any], context: Context) -> Operands:
    """Return the operands of a row whose column ``study`` is not empty.

    ``study = water`` reads ``operator`` and ``molecules`` and multiplies the matrix by itself; ``study = vgg`` reads
    ``layer`` and ``precision`` and, for one GPU, classifies the validation images with the layer computed by SpAMM.
    Both read ``tau``, or ``valid_ratio`` where tau is empty.

    Raises
    ------
    FileNotFoundError
        If the data, PyTorch, PySCF or ergo are absent: the case is skipped with this reason.
    """
    try:
        if row["study"] == "water":
            return _water(row, context)
        if row["study"] == "vgg":
            return _vgg(row, context)
    except ModuleNotFoundError as error:
        raise FileNotFoundError(str(error)) from error
    raise ValueError(f"study = {row['study']!r} is unknown: choose water or vgg, or leave it empty")


def _water(row: Mapping[str, Any], context: Context) -> Operands:
    operator, molecules = row["operator"], row["molecules"]
    matrix, origin = _water_operator(operator, molecules, context.resources, context.seed, context.device == "cuda")
    label = ergo.OPERATORS[operator][0] if operator in ergo.OPERATORS else water.OPERATORS[operator]
    values = {"operator": label, "geometry": origin}
    return Operands(matrix, matrix.copy(), _threshold(row, matrix, matrix), values)


# One matrix stays: the rows of an operator follow one another, and a large one takes minutes to make.
@functools.lru_cache(maxsize=1)
def _water_operator(operator: str, molecules: int, resources: Path, seed: int, on_gpu: bool) -> tuple[Any, str]:
    cluster = water.water_cluster(molecules, resources, seed)
    if operator not in ergo.OPERATORS:
        return water.water_matrix(operator, cluster, resources, on_gpu), cluster.origin
    matrix = ergo.ergo_matrix(operator, cluster, resources)
    if on_gpu:
        import cupy

        matrix = cupy.asarray(matrix)
    return matrix, cluster.origin


def _vgg(row: Mapping[str, Any], context: Context) -> Operands:
    from .api import spamm

    layer, base = _vgg_layer(row["layer"], context.resources, context.seed, context.device == "cuda")
    a, b = layer.weights, layer.patches()
    tau = _threshold(row, a, b)
    values: dict[str, Value] = {"base_accuracy": base, "validation_images": layer.images}
    if (row.get("gpus") or 0) <= 1:
        ratios = []

        def product(weights: Any, patches: Any) -> Any:
            dtype = "float16" if row["precision"] in ("fp16", "fp16c16") else "float32"
            result = spamm(weights.astype(dtype), patches.astype(dtype), tau=tau, precision=row["precision"])
            ratios.append(result.valid_ratio)
            return result.c.astype("float32")

        accuracy = layer.accuracy(product)
        values |= {
            "accuracy": accuracy,
            # Negative means loss, as in the paper's Table 5.
            "accuracy_change": accuracy - base,
            "mean_valid_ratio": sum(ratios) / len(ratios),
        }
    return Operands(a, b, tau, values)


@functools.lru_cache(maxsize=1)
def _vgg_layer(name: str, resources: Path, seed: int, on_gpu: bool) -> tuple[Any, float]:
    from . import vgg

    layer = vgg.load_layer(name, resources, seed, on_gpu)
    return layer, layer.accuracy()


def _threshold(row: Mapping[str, Any], a: Any, b: Any) -> float:
    from .api import norm_map, tune_tau

    if row.get("tau") is not None:
        return float(row["tau"])
    ratio = row["valid_ratio"]
    norms = norm_map(a), norm_map(b)
    return float(tune_tau(*norms, ratio, iterations=40, tolerance=min(0.002, ratio / 50))[0])
