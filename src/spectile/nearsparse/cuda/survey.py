"""What norm maps tell about a product: how many tile products a threshold leaves, and what bounds the error."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from spectile.core import device, launch
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse import bounds
from spectile.nearsparse.bounds import norm_slack
from spectile.nearsparse.cuda.choose import count_launch, survey_launch
from spectile.nearsparse.cuda.geometry import fill, layout
from spectile.nearsparse.cuda.norms import NormMaps, Norms
from spectile.nearsparse.cuda.parts import real_view
from spectile.nearsparse.cuda.units import SURVEY_UNITS
from spectile.nearsparse.types import Grain, Request

# Entries that a norm converts at a time.
FLOAT64_ENTRIES = 1 << 20

SURVEY = layout(
    "norms_a:p norms_b:p weights_a:p weights_b:p count:p squares:p tau_device:p tau:d unit:d rows:i columns:i depth:i "
    "k_group:i"
)
COUNT = layout(
    "norms_a:p norms_b:p tau_device:p count:p ended:p cancelled:p verdict:p tau:d limit:d rows:i columns:i depth:i"
)


def count_products(maps: Norms, item: tuple[int, int], tau: Any, grain: Grain = (1, 1, 1)) -> Any:
    """Return, on the device, how many tile products are valid, or executed at a coarser grain.

    The maps are computed, `item` has the indices of the matrices in their batches, and tau is one float64.  As many
    tiles as the grain says, in rows, columns and depth, are executed together when one of their products is valid.
    """
    import cupy

    count = cupy.zeros(1, cupy.uint64)
    norms_a, norms_b = maps.of(item)
    if grain != (1, 1, 1):
        _survey(maps, item, tau, count=count, grain=grain)
    elif norms_a.size and norms_b.size:
        bound, _ = bind_count(norms_a, norms_b, tau_device=address(tau), count=address(count))
        bound()
    return count


def bind_count(norms_a: Any, norms_b: Any, **values: Any) -> tuple[launch.BoundLaunch, Any]:
    """Return a launch that counts the valid products of two norm maps with entries, and its parameters.

    `values` are of fields of ``COUNT``; those that are missing are zero.
    """
    (rows, depth), columns = norms_a.shape, norms_b.shape[0]
    sizes = {"rows": rows, "columns": columns, "depth": depth}
    addresses = {"norms_a": address(norms_a), "norms_b": address(norms_b)}
    parameters = fill(np.zeros((), COUNT), sizes | addresses | values)
    function = launch.kernel(SURVEY_UNITS[norms_a.dtype.name], "count_valid")
    return function.bind(count_launch(rows, columns, depth, device.describe()), parameters), parameters


def skipped_bound(maps: Norms, item: tuple[int, int], tau: Any, slack: float) -> Any:
    """Return, on the device, ``slack * sqrt(sum_ij (sum of the skipped ||A_ik|| ||B_kj||)^2)``.

    The largest norms in float64, whose products' squares may leave its range, are read back.
    """
    import cupy

    norms_a, norms_b = maps.of(item)
    squares = cupy.zeros(ceil_div(norms_a.shape[0], 64) * ceil_div(norms_b.shape[0], 64), cupy.float64)
    unit = 1.0
    if norms_a.dtype == np.float64 and norms_a.size and norms_b.size:
        unit = bounds.square_unit(float(norms_a.max()) * float(norms_b.max()))
    _survey(maps, item, tau, count=cupy.zeros(1, cupy.uint64), squares=squares, unit=unit)
    return cupy.sqrt(squares.sum()) / unit * slack


def _survey(
    maps: Norms,
    item: tuple[int, int],
    tau: Any,
    *,
    count: Any = None,
    squares: Any = None,
    unit: float = 1.0,
    grain: Grain = (1, 1, 1),
) -> None:
    import cupy

    norms, weights = list(maps.of(item)), []
    for side, (map_, size) in enumerate(zip(tuple(norms), grain[:2], strict=True)):
        rows = map_.shape[0]
        if size > 1:
            padded = cupy.full((ceil_div(rows, size) * size, map_.shape[1]), -1, map_.dtype)
            padded[:rows] = map_
            norms[side] = padded.reshape(-1, size, map_.shape[1]).max(axis=1)
        lengths = np.minimum(size, rows - size * np.arange(ceil_div(rows, size)))
        weights.append(cupy.asarray(lengths.astype(np.int32)) if size > 1 else None)
    if not (norms[0].shape[0] and norms[1].shape[0]):
        return
    parameters = fill(
        np.zeros((), SURVEY),
        {
            "norms_a": address(norms[0]),
            "norms_b": address(norms[1]),
            "weights_a": address(weights[0]) if weights[0] is not None else 0,
            "weights_b": address(weights[1]) if weights[1] is not None else 0,
            "count": address(count) if count is not None else 0,
            "squares": address(squares) if squares is not None else 0,
            "tau_device": address(tau),
            "unit": unit,
            "rows": norms[0].shape[0],
            "columns": norms[1].shape[0],
            "depth": maps.k_blocks,
            "k_group": grain[2],
        },
    )
    function = launch.kernel(SURVEY_UNITS[norms[0].dtype.name], "survey")
    function(survey_launch(norms[0].shape[0], norms[1].shape[0]), parameters)


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
    skipped = float(skipped_bound(maps, item, _on_device(tau), norm_slack(request.arithmetic.dtype)))
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
        return float(sum(_squares(array[first : first + rows]).sum() for first in range(0, len(array), rows)))


def _squares(array: Any) -> Any:
    """Return the squares of a device array in float64."""
    import cupy

    if array.dtype != np.float32:
        wide = array.astype(np.float64)
        return wide * wide
    return _squares_of_bits()(cupy.ascontiguousarray(array).view(np.int32))


@functools.cache
def _squares_of_bits() -> Any:
    """Return the kernel that squares float32 by its bits: CuPy's conversion takes subnormal numbers for 0."""
    import cupy

    return cupy.ElementwiseKernel(
        "int32 bits",
        "float64 square",
        """
        const int size = bits & 0x7fffffff;
        const double x = size < 0x00800000 ? size * 0x1p-149 : (double)__int_as_float(size);
        square = x * x;
        """,
        "spectile_squares",
    )


def frobenius(array: Any) -> float:
    """Return the Frobenius norm, with float64 sums, of an array of the host or of any device; complex by rows."""
    array = real_view(array) if array.dtype.kind == "c" else array
    total = square_sum(array)
    if 2.0**-900 < total < math.inf or not array.size or array.dtype != np.float64:
        return math.sqrt(total)
    # The squares leave the range of float64: scaled by a power of two meanwhile.
    largest = float(abs(array).max())
    if not 0 < largest < math.inf:
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    norm = scale * math.sqrt(square_sum(array / scale))
    return norm if norm >= sys.float_info.min else math.nextafter(norm, math.inf)


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
        return maps.a.astype(np.float64) * norm_slack(x.dtype)


def rounding(shape: tuple[int, int, int], norms_a: Any, norms_b: Any, request: Request, norm_c: float = 0.0) -> float:
    """Bound the rounding error of a product from its norm maps, as ``nearsparse.bounds.rounding_bound``."""
    slack = norm_slack(request.arithmetic.dtype)
    norm_a, norm_b = frobenius(norms_a) * slack, frobenius(norms_b) * slack
    return bounds.rounding_bound(
        shape, norm_a, norm_b, request.precision, alpha=request.alpha, beta=request.beta, norm_c=norm_c
    )
