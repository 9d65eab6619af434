"""Thresholds searched on the device: of a wanted valid ratio or of a wanted error, by one launch and without a wait."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import arrays, device, launch
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse import bounds
from spectile.nearsparse.checks import check_maps
from spectile.nearsparse.cuda.choose import plan_search
from spectile.nearsparse.cuda.geometry import fill, layout
from spectile.nearsparse.cuda.norms import Norms
from spectile.nearsparse.cuda.tuning import SEARCH_CHUNK
from spectile.nearsparse.cuda.units import SEARCH_UNITS
from spectile.nearsparse.types import ALL, Request

SEARCH = layout(
    "norms_a:p norms_b:p columns_a:p sorted:p partial:p counts:p arrived:p result:p rows:i columns:i depth:i "
    "iterations:i held:i slot:i wanted:d tolerance:d rtol:d atol:d slack:d relative:d lift_a:d lift_b:d "
    "underflow:d highest:d operand:d"
)
# Where what is asked for lies.
FIELD = {"valid_ratio": "wanted", "atol": "atol", "rtol_factors": "rtol"}
# Candidates of all passes of a search for a ratio; of one for an error, curves and intervals of listed products.
_COUNTS = {"ratio": 32 * 24, "error": 2 * 3 * 256 + 6 * 512}


_NO_RATIO = (
    "a or b holds NaN or infinity, or their norms or products of these overflow, so no threshold leaves a valid ratio: "
    "correct or scale them, or give tau"
)


@dataclass(frozen=True)
class Wanted:
    """What a threshold is to leave."""

    #: A valid ratio, an error, or one relative to ``||A||_F ||B||_F``: {"valid_ratio", "atol", "rtol_factors"}.
    asked: str
    value: float  #: The ratio, or the error.
    iterations: int = 60  #: Largest number of bisections for a ratio.
    tolerance: float = 0.0  #: Absolute difference of the ratio at which they end.

    @property
    def kind(self) -> str:
        """Which search finds it."""
        return "ratio" if self.asked == "valid_ratio" else "error"

    @classmethod
    def of(cls, request: Request) -> Wanted:
        """Return what a request without tau wants.

        More bisections than the paper's 20 are allowed, so that small ratios are met to a tenth, and to 0.01 at most.
        """
        name, value = request.asked
        return cls(name, value, 60, tolerance_of(value)) if name == "valid_ratio" else cls(name, value)


def tolerance_of(valid_ratio: float) -> float:
    """Return how near a valid ratio is met."""
    return min(0.01, valid_ratio / 10)


class Search:
    """A search in the norm maps of one product, prepared once and launched as often as wanted.

    Parameters
    ----------
    norms_a, norms_b : cupy.ndarray
        Norm maps, k blocks along the last axis of both.
    wanted : Wanted
        What the threshold is to leave.
    shape : tuple of int
        (m, k, n) of the product, and its precision: what rounding is bounded by.
    precision : str
        A key of ``PRECISIONS``.
    scratch, arrived : int
        Addresses of `scratch_bytes` bytes, and of four that are zero before each launch.

    Raises
    ------
    ValueError
        For an error below what rounding alone is bounded by.
    """

    def __init__(
        self,
        norms_a: Any,
        norms_b: Any,
        wanted: Wanted,
        shape: tuple[int, int, int],
        precision: str,
        scratch: int,
        arrived: int,
    ) -> None:
        (rows, depth), columns = norms_a.shape, norms_b.shape[0]
        dtype = norms_a.dtype.name
        self.places = Places.of(rows, columns, depth, norms_a.itemsize)
        values: dict[str, Any] = {"iterations": wanted.iterations, "tolerance": wanted.tolerance}
        values[FIELD[wanted.asked]] = wanted.value
        if wanted.kind == "error":
            values |= error_terms(shape, precision)
        if wanted.asked == "rtol_factors":
            _check_factors(wanted.value, shape, precision)
        plan = plan_search(wanted.kind, rows, columns, depth, norms_a.itemsize, device.describe())
        sizes = {"rows": rows, "columns": columns, "depth": depth, "held": plan.held, "slot": plan.slot}
        addresses = {"norms_a": address(norms_a), "norms_b": address(norms_b), "arrived": arrived}
        self.parameters = fill(np.zeros((), SEARCH), values | sizes | addresses | self.places.addresses(scratch))
        #: Searches, where the norm maps are there; the parameters may be changed in place.
        self.launch = launch.kernel(SEARCH_UNITS[wanted.kind, dtype], plan.function).bind(plan.launch, self.parameters)


def error_terms(shape: tuple[int, int, int], precision: str) -> dict[str, float]:
    """Return what the kernel takes from the bound of rounding of a product of (m, k, n)."""
    row = ALL[precision]
    named = bounds.rounding_terms(shape, precision)._asdict()
    return named | {
        "slack": bounds.norm_slack(row.dtype), "highest": named.pop("largest"), "operand": row.largest_operand
    }  # fmt: skip


def check_error(request: Request, value: float, shape: tuple[int, int, int]) -> None:
    """Raise where this value of an error is below what rounding alone is bounded by, whatever the operands hold."""
    if request.rtol_factors is not None:
        _check_factors(value, shape, request.precision)


@functools.lru_cache(maxsize=256)  # a call that repeats asks again
def _check_factors(value: float, shape: tuple[int, int, int], precision: str) -> None:
    square = bounds.norm_slack(ALL[precision].dtype) ** 2
    bounds.skipping_limit(
        ("rtol_factors", value), value / square, bounds.rounding_terms(shape, precision).relative * square
    )


@dataclass(frozen=True)
class Places:
    """Where a search's arrays lie in its scratch memory, in bytes; the result is first."""

    counts: int
    partial: int
    columns_a: int
    sorted: int
    bytes: int

    @classmethod
    def of(cls, rows: int, columns: int, depth: int, itemsize: int) -> Places:
        """Return the places for norm maps of (rows, depth) and (depth, columns) tiles."""
        ratio, error = (
            plan_search(kind, rows, columns, depth, itemsize, device.describe()) for kind in ("ratio", "error")
        )
        sums = max(depth * ceil_div(columns, SEARCH_CHUNK), 5 * depth + 2 * 4 * error.launch.grid[0])
        maps = [itemsize * rows * depth, itemsize * columns * depth] if ratio.spilled else [0, 0]
        sizes = [16, 8 * max(_COUNTS.values()), 8 * sums, *maps]
        starts = np.cumsum([ceil_div(size, 16) * 16 for size in sizes]).tolist()
        return cls(*starts)

    def addresses(self, scratch: int) -> dict[str, int]:
        """Return the pointers of the kernel's parameters for scratch memory at an address."""
        return {
            "result": scratch,
            "counts": scratch + self.counts,
            "partial": scratch + self.partial,
            "columns_a": scratch + self.columns_a,
            "sorted": scratch + self.sorted,
        }


def search(maps: Norms, item: tuple[int, int], wanted: Wanted, shape: tuple[int, int, int], precision: str) -> Any:
    """Enqueue the search of one product's threshold; return it and the ratio found, two float64 on the device.

    The maps are computed, and `item` has the indices of the matrices in their batches; the others are as of
    :class:`Search`.
    """
    import cupy

    norms_a, norms_b = maps.of(item)
    if not (norms_a.size and norms_b.size):
        return cupy.asarray([0.0 if wanted.kind == "ratio" else math.inf, 1.0])
    places = Places.of(norms_a.shape[0], norms_b.shape[0], norms_a.shape[1], norms_a.itemsize)
    # One array, `arrived` at its end, which lives as long as the result: a graph that was captured writes to it.
    scratch = cupy.zeros(places.bytes + 4, cupy.uint8)
    Search(norms_a, norms_b, wanted, shape, precision, address(scratch), address(scratch) + places.bytes).launch()
    return scratch[:16].view(cupy.float64)


def found(tau: Any, request: Request) -> float:
    """Read a threshold back: a float64 on the device, or a number.

    Raises ValueError if the search found none, so that every tile product was multiplied.
    """
    value = float(tau) if isinstance(tau, float) else float(tau[0])
    if not math.isnan(value):
        return value
    if request.within_error:
        raise refusal(request, "every tile product was multiplied")
    raise ValueError(_NO_RATIO)


def refusal(request: Request, done: str) -> bounds.BelowRounding:
    """Return the error that says why no threshold keeps a wanted one, and what was done."""
    word, value = request.asked
    return bounds.BelowRounding(
        f"{word} = {value} is below what rounding, underflow and overflow are bounded by for entries of this size, or "
        f"a or b holds NaN or infinity, so {done}: take a larger {word}, or scale a and b"
    )


def threshold(maps: Norms, item: tuple[int, int], request: Request, shape: tuple[int, int, int]) -> float:
    """Return tau of a request, searched in norm maps on the current device, and read back, where it is not given."""
    if request.tau is not None:
        return float(request.tau)
    return found(search(maps, item, Wanted.of(request), shape, request.precision)[:1], request)


def tune_tau_cuda(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int, tolerance: float
) -> tuple[float, float]:
    """Search tau on the device from two norm maps; see :func:`spectile.nearsparse.tune_tau`.  Reads the result back."""
    import cupy

    names = "the norm map of a", "the norm map of b"
    norms_a, norms_b = (arrays.to_device(x, name)[0] for name, x in zip(names, (norms_a, norms_b), strict=True))
    for name, x in zip(names, (norms_a, norms_b), strict=True):
        arrays.require_here(name, x)
    check_maps(norms_a, norms_b)
    wide_a, wide_b = (cupy.ascontiguousarray(x, dtype=np.float64) for x in (norms_a, norms_b.T))
    maps = Norms(wide_a, wide_b, 32)
    wanted = Wanted("valid_ratio", valid_ratio, iterations, tolerance)
    tau, share = search(maps, (0, 0), wanted, (1, 1, 1), "fp64").tolist()
    if math.isnan(tau):
        raise ValueError(_NO_RATIO)
    return tau, share
