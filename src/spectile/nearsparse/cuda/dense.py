"""The dense product by cuBLAS, and which of the two products of near-sparse matrices is the faster one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spectile.core.cupy_parts import part
from spectile.core.devices import Device
from spectile.core.launch import measured_device
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.choose import Problem, candidates, time_share
from spectile.nearsparse.cuda.geometry import pitch
from spectile.nearsparse.cuda.tuning import (
    COPY_SHARE,
    COUNT_RATE,
    COUNT_SECONDS,
    FIXED_SECONDS,
    KEPT,
    READ_SECONDS,
    SEARCH_SECONDS,
    SPLIT_DEPTH,
    UNALIGNED,
    rates,
)
from spectile.nearsparse.types import Request

Verdict = Literal["spamm", "dense", "count"]
# What finding out is weighed against: SpAMM's time where so small a share is multiplied.
_LEAST_SHARE = 0.05
# cudaDataType of the dtypes.
_CUDA_TYPES = {"float16": 2, "float32": 0, "float64": 1, "complex64": 4, "complex128": 5}


@dataclass(frozen=True)
class Costs:
    """Estimated times of a product of two matrices, in seconds."""

    dense: float  #: Of cuBLAS.
    #: Of SpAMM: ``fixed + whole`` where every tile product is executed, and `part` of `whole` where a share is.
    fixed: float
    whole: float
    part: Callable[[float], float]
    norms: float  #: Of the norm maps alone, and of the search for a threshold.
    count: float  #: Of counting the valid products.

    @classmethod
    def of(cls, shape: tuple[int, int, int], request: Request, device: Device) -> Costs:
        """Return the costs of a product of (m, k, n) on a device, which need not be there."""
        (m, k, n), row, rate = shape, request.arithmetic, rates(device)
        real = m, row.parts * k, row.parts * n
        itemsize, output = np.dtype(row.dtype).itemsize, np.dtype(row.output).itemsize
        copied = COPY_SHARE * device.bytes_per_second
        read, written = (m * k + k * n) * itemsize / copied, m * n * output / copied
        if row.parts == 2:
            read += 5 * k * n * itemsize / copied  # B's real form is written and read twice more
        tiles = math.prod(ceil_div(size, request.block) for size in shape)
        searched = _search_seconds(request, tiles)
        dtype = request.real.arithmetic.dtype
        # Rows that begin at multiples of 16 bytes, as those of contiguous matrices of such sizes do.
        aligned = all(size * itemsize % 16 == 0 for size in (k, n))
        reached = rate.dense[dtype] * (1.0 if aligned else UNALIGNED[dtype])
        # The host is ahead of the device unless a launch takes it long.
        dense = READ_SECONDS / 4 * device.host_slowness + max(_dense_seconds(real, reached, device), read + written)
        problem = Problem(
            *real, block=request.block, precision=request.real.precision, strict=request.strict, aligned=aligned
        )
        whole = min(one.seconds for one in candidates(problem, device) if one.seconds is not None)
        return cls(
            dense=dense,
            fixed=FIXED_SECONDS * device.host_slowness + read + written + searched,
            whole=whole,
            part=functools.partial(time_share, problem),
            norms=READ_SECONDS / 2 + read + searched,
            count=COUNT_SECONDS + tiles / COUNT_RATE,
        )

    def skipping(self, share: float) -> float:
        """Return what SpAMM takes where a share of the tile products is executed."""
        return self.fixed + self.part(share) * self.whole

    @functools.cached_property
    def limit(self) -> float:
        """The executed share up to which SpAMM is faster; negative where it never is, above 1 where it always is."""
        if not self.whole:
            return math.inf
        limit = (self.dense - self.fixed) / self.whole
        if not 0 < limit < 1:
            return limit
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if self.skipping(middle) <= self.dense else (low, middle)
        return low

    def verdict(self, share: float | None) -> Verdict:
        """Return which product to run at a valid ratio, or that the valid products are to be counted first.

        Where the ratio is not known, the choice is the one that loses least where it is wrong: counting costs the norm
        maps and, where it is the dense one, a reading, which a short product would notice.
        """
        if share is not None:
            return "spamm" if share <= self.limit else "dense"
        if self.limit <= 0:
            return "dense"
        if self.limit >= 1:
            return "spamm"
        least = self.skipping(_LEAST_SHARE)
        losses: dict[Verdict, float] = {
            "spamm": (self.fixed + self.whole) / self.dense,
            "dense": self.dense / min(self.dense, least),
            # SpAMM goes on while the host reads the count; the dense product begins after that.  Runs that keep to what
            # was found share this.
            "count": 1 + max(self.count / least, (self.count + READ_SECONDS + self.norms) / self.dense) / KEPT,
        }
        return min(losses, key=lambda verdict: losses[verdict])


_costs = functools.lru_cache(maxsize=256)(Costs.of)


def _dense_seconds(shape: tuple[int, int, int], rate: float, device: Device) -> float:
    """Return what cuBLAS takes: few tiles of C leave multiprocessors idle, unless k is long enough to be split."""
    m, k, n = shape
    pieces = ceil_div(m, 128) * ceil_div(n, 128) * max(1, k // SPLIT_DEPTH)
    waves = ceil_div(pieces, device.multiprocessors) * device.multiprocessors / pieces
    padded = 2.0 * ceil_div(m, 64) * 64 * k * ceil_div(n, 64) * 64
    return padded / rate * (waves if pieces < 2 * device.multiprocessors else 1.0)


def _search_seconds(request: Request, tiles: int) -> float:
    """Return what the search for a threshold takes, in the norm maps of so many tile products."""
    if request.tau is not None:
        return 0.0
    fixed, growing, rate = SEARCH_SECONDS["error" if request.within_error else "ratio"]
    return max(fixed, fixed + growing * math.log(tiles / 2**15, 8)) + tiles / rate


def decide(shape: tuple[int, int, int], request: Request, device: Device) -> tuple[Verdict, float]:
    """Return the verdict on a product, and the executed share up to which SpAMM is faster."""
    # Of a threshold and an error the value does not matter.
    general = request if request.valid_ratio is not None else request.asking(1.0)
    general = dataclasses.replace(general, alpha=1.0, beta=0.0)
    costs = _costs(shape, general, device)
    return costs.verdict(request.valid_ratio), costs.limit


def decide_here(shape: tuple[int, int, int], request: Request) -> tuple[Verdict, float]:
    """Return the verdict on a product on the current device, which is SpAMM's in a capture: that reads nothing back."""
    import cupy

    if request.method == "spamm" or cupy.cuda.get_current_stream().is_capturing():
        return "spamm", 1.0
    return decide(shape, request, measured_device())


def multiply(a: Any, b: Any, c: Any, out: Any, request: Request) -> None:
    """Write alpha A B + beta C to `out` by cuBLAS on the current stream.

    The matrices are row-major, with entries, and `out` overlaps neither factor; C is read where beta is not 0, and may
    be `out`.  "tf32x3" is multiplied in float32.
    """
    if request.beta != 0 and address(c) != address(out):
        out[...] = c
    a, b = (_near(x) for x in (a, b))
    Gemm(a, b, out, request)(address(a), address(b), address(out))


class Gemm:
    """The call of cuBLAS for matrices of one layout: all but their addresses is known.

    Parameters as those of :func:`multiply`; the rows of each are less than 2^31 elements apart.
    """

    def __init__(self, a: Any, b: Any, out: Any, request: Request) -> None:
        row = request.arithmetic
        cublas, self._handle, self._stream = _library()
        self._set_stream, self._multiply = cublas.setStream, cublas.gemmEx
        # Held: their address is an argument.
        self._scalars = scalars = _scalars(request.alpha, request.beta, row.sums if row.parts == 1 else row.dtype)
        first, kind, none = address(scalars), _CUDA_TYPES[row.dtype], cublas.CUBLAS_OP_N
        (m, k), n = a.shape, b.shape[1]
        compute = cublas.CUBLAS_COMPUTE_64F if row.sums == "float64" else cublas.CUBLAS_COMPUTE_32F
        # Row-major C = A B is column-major C^T = B^T A^T.
        self._sizes = none, none, n, m, k, first
        self._of_b, self._of_a = (kind, _between(b)), (kind, _between(a), first + scalars.itemsize)
        self._of_out = _CUDA_TYPES[row.output], _between(out), compute, cublas.CUBLAS_GEMM_DEFAULT

    def __call__(self, a: int, b: int, out: int) -> None:
        """Multiply matrices at these addresses on the current stream."""
        handle = self._handle()
        self._set_stream(handle, self._stream().ptr)
        self._multiply(handle, *self._sizes, b, *self._of_b, a, *self._of_a, out, *self._of_out)


def _between(x: Any) -> int:
    """Return the elements from one row of a matrix to the next."""
    return max(pitch(x), x.shape[1]) if x.shape[0] > 1 else int(x.shape[1])


def _near(x: Any) -> Any:
    """Return a matrix whose rows are no further apart than cuBLAS counts in 32 bits: else a copy."""
    if _between(x) < 2**31:
        return x
    import cupy

    return cupy.ascontiguousarray(x)


@functools.cache
def _library() -> tuple[Any, Any, Any]:
    """Return cuBLAS, and what finds its handle and the current stream."""
    import cupy

    return part("cublas"), part("get_cublas_handle"), cupy.cuda.get_current_stream


@functools.lru_cache(maxsize=64)
def _scalars(alpha: float, beta: float, dtype: str) -> np.ndarray[Any, Any]:
    return np.array([alpha, beta], dtype)
