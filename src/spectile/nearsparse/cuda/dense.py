"""The dense product by cuBLAS, and which of the two products of near-sparse matrices is the faster one."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spectile.core.cupy_parts import part
from spectile.core.device import describe
from spectile.core.devices import Device
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.geometry import pitch
from spectile.nearsparse.cuda.tuning import COPY_SHARE, COUNT_RATE, COUNT_SECONDS, FIXED_SECONDS, READ_SECONDS, rates
from spectile.nearsparse.types import PRECISIONS, Request

Verdict = Literal["spamm", "dense", "count"]
# What finding out is weighed against: SpAMM's time where so small a share is multiplied.
_LEAST_SHARE = 0.05
# cudaDataType of the dtypes.
_CUDA_TYPES = {"float16": 2, "float32": 0, "float64": 1}


@dataclass(frozen=True)
class Costs:
    """Estimated times of a product of two matrices, in seconds.

    Attributes
    ----------
    dense : float
        Of cuBLAS.
    fixed, whole : float
        Of SpAMM: ``fixed + share * whole`` where a share of the tile products is executed.
    norms : float
        Of the norm maps alone.
    count : float
        Of counting the valid products.
    """

    dense: float
    fixed: float
    whole: float
    norms: float
    count: float

    @classmethod
    def of(cls, m: int, k: int, n: int, precision: str, device: Device) -> Costs:
        """Return the costs on a device, which need not be there."""
        row, rate = PRECISIONS[precision], rates(device)
        copied = COPY_SHARE * device.bytes_per_second
        read = (m * k + k * n) * np.dtype(row.dtype).itemsize / copied
        written = m * n * np.dtype(row.output).itemsize / copied
        work = 2.0 * m * k * n
        return cls(
            dense=READ_SECONDS / 4 + work / rate.dense[row.dtype],
            fixed=FIXED_SECONDS + read + written,
            whole=work / rate.executed[precision],
            norms=READ_SECONDS / 2 + read,
            count=COUNT_SECONDS + ceil_div(m, 32) * ceil_div(n, 32) * ceil_div(k, 32) / COUNT_RATE,
        )

    @property
    def limit(self) -> float:
        """The executed share up to which SpAMM is faster; negative where it never is."""
        return (self.dense - self.fixed) / self.whole if self.whole else math.inf

    def verdict(self, share: float | None) -> Verdict:
        """Return which product to run, or that the valid products are to be counted first.

        Parameters
        ----------
        share : float, optional
            The valid ratio, where it is known.  Otherwise the choice is the one that loses least where it is wrong:
            counting costs the norm maps and, where it is the dense one, a reading, which a short product would notice.
        """
        if share is not None:
            return "spamm" if share <= self.limit else "dense"
        if self.limit <= 0:
            return "dense"
        if self.limit >= 1:
            return "spamm"
        least = self.fixed + _LEAST_SHARE * self.whole
        losses: dict[Verdict, float] = {
            "spamm": (self.fixed + self.whole) / self.dense,
            "dense": self.dense / min(self.dense, least),
            # SpAMM goes on while the host reads the count; the dense product begins after that.
            "count": 1 + max(self.count / least, (self.count + READ_SECONDS + self.norms) / self.dense),
        }
        return min(losses, key=lambda verdict: losses[verdict])


@functools.lru_cache(maxsize=256)
def decide(m: int, k: int, n: int, precision: str, share: float | None, device: Device) -> tuple[Verdict, float]:
    """Return the verdict on a product, and the executed share up to which SpAMM is faster."""
    costs = Costs.of(m, k, n, precision, device)
    return costs.verdict(share), costs.limit


def faster(share: float, shape: tuple[int, int, int], request: Request) -> str:
    """Return which product is the faster one on the current device where a share of the tile products is executed."""
    return "spamm" if share <= Costs.of(*shape, request.precision, describe()).limit else "dense"


def multiply(a: Any, b: Any, c: Any, out: Any, request: Request) -> None:
    """Write alpha A B + beta C to `out` by cuBLAS on the current stream.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        Row-major matrices with entries, of shapes (m, k), (k, n) and (m, n); `out` overlaps neither.
    c : cupy.ndarray or None
        Read where beta is not 0; it may be `out`.
    request : Request
        Precision, alpha and beta.  "tf32x3" is multiplied in float32.
    """
    row = PRECISIONS[request.precision]
    if request.beta != 0 and address(c) != address(out):
        out[...] = c
    cublas, handle_of, stream_of = _library()
    wide = row.dtype == "float64"
    scalars = _scalars(request.alpha, request.beta, wide)
    first = address(scalars)
    handle, kind = handle_of(), _CUDA_TYPES[row.dtype]
    (a, pitch_a), (b, pitch_b), (_, pitch_out) = _pitched(a), _pitched(b), _pitched(out)
    (m, k), n = a.shape, b.shape[1]
    cublas.setStream(handle, stream_of().ptr)
    # Row-major C = A B is column-major C^T = B^T A^T.
    cublas.gemmEx(
        handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, m, k, first,
        address(b), kind, pitch_b, address(a), kind, pitch_a, first + scalars.itemsize,
        address(out), _CUDA_TYPES[row.output], pitch_out,
        cublas.CUBLAS_COMPUTE_64F if wide else cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip


def _pitched(x: Any) -> tuple[Any, int]:
    """Return a matrix and the elements from one row to the next, which cuBLAS takes in 32 bits: else a copy."""
    between = max(pitch(x), x.shape[1]) if x.shape[0] > 1 else x.shape[1]
    if between < 2**31:
        return x, between
    import cupy

    return cupy.ascontiguousarray(x), x.shape[1]


@functools.cache
def _library() -> tuple[Any, Any, Any]:
    """Return cuBLAS, and what finds its handle and the current stream."""
    import cupy

    return part("cublas"), part("get_cublas_handle"), cupy.cuda.get_current_stream


@functools.lru_cache(maxsize=64)
def _scalars(alpha: float, beta: float, wide: bool) -> np.ndarray[Any, Any]:
    return np.array([alpha, beta], np.float64 if wide else np.float32)
