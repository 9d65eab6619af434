"""What norm maps tell about a product before it is computed: counts, bounds, and thresholds searched on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import arrays
from spectile.nearsparse import bounds
from spectile.nearsparse.cuda.launch import blocks, fill, launch, layout
from spectile.nearsparse.cuda.norms import NormMaps, Norms
from spectile.nearsparse.cuda.units import SURVEY_UNITS

# The norms are float32 sums of at most 128 squares a lane and a few shuffles: their rounding, generously.
NORM_SLACK = {"float32": 1 + 2e-5, "float64": 1 + 1e-12}
# 3xTF32 drops low*low and the last bits of both lows: below 3 * 2^-21 of a product; the tensor core truncates its sums
# of 32 k.
TF32X3_ROUNDOFF = 2.0**-19
# Entries that a norm converts at a time.
FLOAT64_ENTRIES = 1 << 20

SEARCH = layout(
    "tau:d low:d high:d best_tau:d best_ratio:d wanted:d tolerance:d total:d count:p blocks:i iterations:i growing:i "
    "done:i"
)
SURVEY = layout(
    "norms_a:p norms_b:p weights_a:p weights_b:p count:p squares:p tau:p search:p rows:i columns:i depth:i k_group:i"
)


def count_products(maps: Norms, item: tuple[int, int], tau: Any, grain: tuple[int, int, int] = (1, 1, 1)) -> Any:
    """Return, on the device, how many tile products are valid, or executed at a coarser grain.

    Parameters
    ----------
    maps : Norms
        Already computed.
    item : tuple of int
        Indices of the matrices of A and B in their batches.
    tau : cupy.ndarray
        One float64.
    grain : tuple of int
        Tiles in rows, columns and depth that are executed together when one of their products is valid.
    """
    import cupy

    count = cupy.zeros(1, cupy.uint64)
    _survey(maps, item, tau, count=count, grain=grain)
    return count


def skipped_bound(maps: Norms, item: tuple[int, int], tau: Any) -> Any:
    """Return, on the device, sqrt(sum_ij (sum of the skipped ||A_ik|| ||B_kj||)^2)."""
    import cupy

    norms_a, norms_b = maps.of(item)
    squares = cupy.zeros(blocks(norms_a.shape[0], 64) * blocks(norms_b.shape[0], 64), cupy.float64)
    _survey(maps, item, tau, count=cupy.zeros(1, cupy.uint64), squares=squares)
    return cupy.sqrt(squares.sum()) * NORM_SLACK[norms_a.dtype.name]


def _survey(
    maps: Norms,
    item: tuple[int, int],
    tau: Any,
    *,
    count: Any = None,
    squares: Any = None,
    search: Any = None,
    grain: tuple[int, int, int] = (1, 1, 1),
) -> None:
    import cupy

    norms, weights = list(maps.of(item)), []
    for side, (map_, size) in enumerate(zip(tuple(norms), grain[:2], strict=True)):
        rows = map_.shape[0]
        if size > 1:
            padded = cupy.full((blocks(rows, size) * size, map_.shape[1]), -1, map_.dtype)
            padded[:rows] = map_
            norms[side] = padded.reshape(-1, size, map_.shape[1]).max(axis=1)
        lengths = np.minimum(size, rows - size * np.arange(blocks(rows, size)))
        weights.append(cupy.asarray(lengths.astype(np.int32)) if size > 1 else None)
    if not (norms[0].shape[0] and norms[1].shape[0]):
        return
    parameters = fill(
        np.zeros((), SURVEY),
        {
            "norms_a": norms[0].data.ptr,
            "norms_b": norms[1].data.ptr,
            "weights_a": weights[0].data.ptr if weights[0] is not None else 0,
            "weights_b": weights[1].data.ptr if weights[1] is not None else 0,
            "count": count.data.ptr if count is not None else 0,
            "squares": squares.data.ptr if squares is not None else 0,
            "tau": tau.data.ptr if tau is not None else 0,
            "search": search.data.ptr if search is not None else 0,
            "rows": norms[0].shape[0],
            "columns": norms[1].shape[0],
            "depth": maps.k_blocks,
            "k_group": grain[2],
        },
    )
    grid = blocks(norms[1].shape[0], 64), blocks(norms[0].shape[0], 64)
    launch(SURVEY_UNITS[norms[0].dtype.name].function("survey"), grid, 256, parameters)


def _search(
    maps: Norms, item: tuple[int, int], valid_ratio: float, iterations: int, tolerance: float
) -> tuple[Any, Any]:
    """Enqueue the paper's search; return tau and the found ratio, one float64 on the device each."""
    import cupy

    norms_a, norms_b = maps.of(item)
    total = norms_a.size * norms_b.shape[0]
    if valid_ratio == 1 or total == 0:
        return cupy.zeros(1), cupy.ones(1)
    start = fill(
        np.zeros((), SEARCH),
        {"best_ratio": 1.0, "wanted": valid_ratio, "tolerance": tolerance, "total": total, "iterations": iterations},
    )
    start["growing"] = 1
    state = cupy.asarray(np.frombuffer(start.tobytes(), np.float64))
    mean = (norms_a.sum(axis=0, dtype=np.float64) * norms_b.sum(axis=0, dtype=np.float64)).sum() / total
    state[_word("tau")] = state[_word("high")] = mean
    # A launch after the end of the search returns at once; 64 doublings reach the largest product from any mean.
    for _ in range(iterations + 64):
        _survey(maps, item, None, search=state)
    return tuple(state[_word(name) : _word(name) + 1] for name in ("tau", "best_ratio"))


def _word(name: str) -> int:
    """Return where a field of the search's state lies, in float64."""
    fields = SEARCH.fields
    assert fields is not None
    return int(fields[name][1]) // 8


def search_tau(maps: Norms, item: tuple[int, int], valid_ratio: float) -> tuple[Any, Any]:
    """Search the threshold of a wanted valid ratio to a tenth of it, and to 0.01 at most.

    More bisections than the paper's 20 are allowed, so that small ratios are met; those not needed return at once.
    """
    return _search(maps, item, valid_ratio, 60, min(0.01, valid_ratio / 10))


def frobenius(array: Any) -> float:
    """Frobenius norm with float64 sums; some rows at a time are float64, so that little memory is taken."""
    if not array.size:
        return 0.0
    rows = max(1, FLOAT64_ENTRIES * len(array) // array.size)
    parts = (array[first : first + rows].astype(np.float64) for first in range(0, len(array), rows))
    return math.sqrt(float(sum((part * part).sum() for part in parts)))


def kept_norms(matrix: Any, block: int) -> Any:
    """Return, on the device, an array whose Frobenius norm is no less than that of a matrix about to be overwritten.

    One such array for each matrix of a batch: norm maps, which nothing waits for.
    """
    import cupy

    maps = NormMaps(matrix, cupy.empty((matrix.shape[-1], 0), matrix.dtype), block)
    if matrix.size:
        maps()
    maps.a *= NORM_SLACK[maps.a.dtype.name]
    return maps.a


def rounding(
    shape: tuple[int, int, int],
    norms_a: Any,
    norms_b: Any,
    precision: str,
    alpha: float = 1.0,
    beta: float = 0.0,
    norm_c: float = 0.0,
) -> float:
    """Bound the rounding error of a product from its norm maps, as ``nearsparse.bounds.rounding_bound``."""
    slack = NORM_SLACK[norms_a.dtype.name]
    return bounds.rounding_bound(
        shape,
        frobenius(norms_a) * slack,
        frobenius(norms_b) * slack,
        precision,
        alpha=alpha,
        beta=beta,
        norm_c=norm_c,
        product_roundoff=TF32X3_ROUNDOFF if precision == "tf32x3" else 0.0,
    )


def tau_for_error(
    maps: Norms, item: tuple[int, int], rtol: float, shape: tuple[int, int, int], precision: str
) -> float:
    """Return the largest threshold that keeps ``||C - A B|| <= rtol ||A|| ||B||``; reads the trials' bounds back."""
    import cupy

    norms_a, norms_b = maps.of(item)
    # The norms may be too large by their rounding: the limit takes them too small.
    scale = frobenius(norms_a) * frobenius(norms_b) / NORM_SLACK[norms_a.dtype.name] ** 2
    limit = bounds.skipping_limit(rtol, scale, rounding(shape, norms_a, norms_b, precision))
    largest = (
        float((norms_a.max(axis=0).astype(np.float64) * norms_b.max(axis=0)).max())
        if norms_a.size and norms_b.size
        else 0.0
    )
    return bounds.largest_tau(lambda tau: float(skipped_bound(maps, item, cupy.asarray([tau]))), largest, limit)


def tune_tau_cuda(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int, tolerance: float
) -> tuple[float, float]:
    """Search tau on the device from two norm maps; see :func:`spectile.nearsparse.tune_tau`.  Reads the result back."""
    import cupy

    norms_a, norms_b = arrays.to_device(norms_a)[0], arrays.to_device(norms_b)[0]
    if norms_a.ndim != 2 or norms_b.ndim != 2 or norms_a.shape[1] != norms_b.shape[0]:
        raise ValueError(
            f"norm maps of shapes {norms_a.shape} and {norms_b.shape} do not multiply: the columns of the first must "
            "be the rows of the second"
        )
    dtype = np.result_type(norms_a.dtype, norms_b.dtype)
    maps = Norms(cupy.ascontiguousarray(norms_a, dtype=dtype), cupy.ascontiguousarray(norms_b.T, dtype=dtype), 32)
    tau, ratio = _search(maps, (0, 0), valid_ratio, iterations, tolerance)
    return float(tau[0]), float(ratio[0])
