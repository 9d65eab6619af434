"""What norm maps tell about a product before it is computed: counts, bounds, and thresholds searched on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import arrays, launch
from spectile.nearsparse import bounds
from spectile.nearsparse.bounds import NORM_SLACK
from spectile.nearsparse.checks import check_maps
from spectile.nearsparse.cuda.choose import survey_launch
from spectile.nearsparse.cuda.geometry import fill, layout
from spectile.nearsparse.cuda.norms import NormMaps, Norms
from spectile.nearsparse.cuda.units import SURVEY_UNITS
from spectile.nearsparse.operands import tiles
from spectile.nearsparse.types import Grain, Request

# Entries that a norm converts at a time.
FLOAT64_ENTRIES = 1 << 20

SEARCH = layout(
    "tau:d low:d high:d best_tau:d best_ratio:d wanted:d tolerance:d total:d count:p blocks:i iterations:i growing:i "
    "done:i"
)
SURVEY = layout(
    "norms_a:p norms_b:p weights_a:p weights_b:p count:p squares:p tau:p search:p rows:i columns:i depth:i k_group:i"
)


def count_products(maps: Norms, item: tuple[int, int], tau: Any, grain: Grain = (1, 1, 1)) -> Any:
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
    squares = cupy.zeros(tiles(norms_a.shape[0], 64) * tiles(norms_b.shape[0], 64), cupy.float64)
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
    grain: Grain = (1, 1, 1),
) -> None:
    import cupy

    norms, weights = list(maps.of(item)), []
    for side, (map_, size) in enumerate(zip(tuple(norms), grain[:2], strict=True)):
        rows = map_.shape[0]
        if size > 1:
            padded = cupy.full((tiles(rows, size) * size, map_.shape[1]), -1, map_.dtype)
            padded[:rows] = map_
            norms[side] = padded.reshape(-1, size, map_.shape[1]).max(axis=1)
        lengths = np.minimum(size, rows - size * np.arange(tiles(rows, size)))
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
    function = launch.kernel(SURVEY_UNITS[norms[0].dtype.name], "survey")
    function(survey_launch(norms[0].shape[0], norms[1].shape[0]), parameters)


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


def threshold(maps: Norms, item: tuple[int, int], request: Request, shape: tuple[int, int, int]) -> float:
    """Return tau of a request, searched in norm maps on the current device, and read back, where it is not given."""
    if request.tau is not None:
        return float(request.tau)
    if request.valid_ratio is not None:
        return float(search_tau(maps, item, request.valid_ratio)[0][0])
    assert request.rtol is not None
    return tau_for_error(maps, item, request.rtol, shape, request.precision)


def ratio(maps: Norms, item: tuple[int, int], tau: Any, grain: Grain = (1, 1, 1)) -> float:
    """Return the share of the tile products of an item that are valid, or executed at a coarser grain."""
    norms_a, norms_b = maps.of(item)
    total = norms_a.size * norms_b.shape[0]
    if total == 0:
        return 1.0
    return float(count_products(maps, item, _on_device(tau), grain)[0]) / total


def error_bound(
    maps: Norms, item: tuple[int, int], tau: Any, request: Request, shape: tuple[int, int, int], norm_c: float
) -> float:
    """Return the bound of the error of an item, by what tau skips and by rounding."""
    norms_a, norms_b = maps.of(item)
    skipped = float(skipped_bound(maps, item, _on_device(tau)))
    return abs(request.alpha) * skipped + rounding(shape, norms_a, norms_b, request, norm_c)


def _on_device(tau: Any) -> Any:
    import cupy

    return cupy.asarray([tau]) if isinstance(tau, float) else tau


def square_sum(array: Any) -> float:
    """Return the sum of squares, in float64, of an array of the host or of any device.

    A few rows at a time are converted, so that little memory is taken.
    """
    if isinstance(array, np.ndarray):
        strips = (array[i : i + 64].astype(np.float64) for i in range(0, len(array), 64))
        return float(sum(np.vdot(x, x) for x in strips))
    if not array.size:
        return 0.0
    with array.device:
        rows = max(1, FLOAT64_ENTRIES * len(array) // array.size)
        parts = (array[first : first + rows].astype(np.float64) for first in range(0, len(array), rows))
        return float(sum((part * part).sum() for part in parts))


def frobenius(array: Any) -> float:
    """Return the Frobenius norm, with float64 sums, of an array of the host or of any device."""
    total = square_sum(array)
    if 2.0**-900 < total < math.inf or not array.size or array.dtype != np.float64:
        return math.sqrt(total)
    # The squares leave the range of float64: scaled by a power of two meanwhile.
    largest = float(abs(array).max())
    if not 0 < largest < math.inf:
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    return scale * math.sqrt(square_sum(array / scale))


def kept_norms(x: Any, block: int) -> Any:
    """Return an array whose Frobenius norm is no less than that of a matrix that is about to be overwritten.

    One such array for each matrix of a batch.  On a device they are norm maps, which nothing waits for.
    """
    if isinstance(x, np.ndarray):
        norms = [frobenius(one) for one in x.reshape(-1, *x.shape[-2:])]
        return np.reshape(norms, (*x.shape[:-2], 1, 1))
    import cupy

    with x.device:
        maps = NormMaps(x, cupy.empty((x.shape[-1], 0), x.dtype), block)
        if x.size:
            maps()
        maps.a *= NORM_SLACK[maps.a.dtype.name]
        return maps.a


def rounding(shape: tuple[int, int, int], norms_a: Any, norms_b: Any, request: Request, norm_c: float = 0.0) -> float:
    """Bound the rounding error of a product from its norm maps, as ``nearsparse.bounds.rounding_bound``."""
    slack = NORM_SLACK[norms_a.dtype.name]
    scales = {"alpha": request.alpha, "beta": request.beta, "norm_c": norm_c}
    norm_a, norm_b = frobenius(norms_a) * slack, frobenius(norms_b) * slack
    return bounds.rounding_bound(shape, norm_a, norm_b, request.precision, **scales)


def tau_for_error(
    maps: Norms, item: tuple[int, int], rtol: float, shape: tuple[int, int, int], precision: str
) -> float:
    """Return the largest threshold that keeps ``||C - A B|| <= rtol ||A|| ||B||``; reads the trials' bounds back."""
    import cupy

    norms_a, norms_b = maps.of(item)
    norm_a, norm_b = frobenius(norms_a), frobenius(norms_b)
    if norm_a == 0 or norm_b == 0:
        return math.inf
    # The norms may be too large by their rounding: the limit takes them too small.
    scale = norm_a * norm_b / NORM_SLACK[norms_a.dtype.name] ** 2
    limit = bounds.skipping_limit(rtol, scale, rounding(shape, norms_a, norms_b, Request(precision)))
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
    check_maps(norms_a, norms_b)
    dtype = np.result_type(norms_a.dtype, norms_b.dtype)
    maps = Norms(cupy.ascontiguousarray(norms_a, dtype=dtype), cupy.ascontiguousarray(norms_b.T, dtype=dtype), 32)
    tau, ratio = _search(maps, (0, 0), valid_ratio, iterations, tolerance)
    return float(tau[0]), float(ratio[0])
