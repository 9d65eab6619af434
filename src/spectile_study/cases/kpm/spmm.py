"""A block of vectors by the vendor's product: a step is cuSPARSE's SpMM and one kernel of all that is left.

This is the least that the vendor's library needs for a step of the recurrence of a stored matrix: the product adds to
-W, and one fused pass shifts by b and takes both scalar products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.kpm.cuda.common import number_defines
from spectile.kpm.operators.protocol import namespace

#: cusparseSpMMAlg_t of the product whose blocks lie by rows; CuPy names only the older ones.
CSR_ALG2 = 6
#: Threads of a block of the fused kernel, and so most vectors.
THREADS = 256


@functools.cache
def update_unit(dtype: str) -> Unit:
    """Return the unit of the fused kernel for vectors of this type."""
    return Unit(__package__, ("update.cu",), PORTABLE, number_defines(dtype) | {"THREADS": str(THREADS)})


UNITS = tuple(update_unit(dtype) for dtype in ("float32", "float64", "complex64", "complex128"))

#: W = alpha H V + beta W.
Product = Callable[[Any, Any, float, float], None]
#: W += factor V, and the scalar products (V, V) and (W, V) of each column into an array of shape (2, R).
Update = Callable[[Any, Any, float, Any], None]


def etas_fused(product: Product, update: Update, v: Any, w: Any, steps: int, a: float, b: float) -> Any:
    """Run the recurrence of a block by a product and an update.

    Parameters
    ----------
    product, update : callable
        Of the block vectors' kind: `Vendor` and `shift_and_dots` on a device.
    v, w : array, shape (N, R), C order
        |ν₀⟩, and zeros; both are overwritten.
    steps : int
        Applications of H̃, M/2.
    a, b : float
        Scaling.

    Returns
    -------
    array, shape (2 * steps, R), float64
        As :func:`spectile_study.cases.kpm.rivals.etas_naive` returns them.
    """
    xp: Any = namespace(v)
    etas = xp.zeros((2 * steps, v.shape[1]))
    for m in range(steps):
        if m:
            v, w = w, v
        factor = 2 * a if m else a
        product(v, w, factor, -1.0)
        update(v, w, -factor * b, etas[2 * m : 2 * m + 2])
    return etas


def shift_and_dots(v: Any, w: Any, factor: float, sums: Any) -> None:
    """Launch the fused kernel on the current stream; `sums`, float64 of shape (2, R), is added to."""
    rows, width = v.shape
    lanes = THREADS // width
    blocks = min(-(-rows // lanes), 8 * describe().multiprocessors)
    kernel(update_unit(str(v.dtype)), "shift_and_dots")(
        Shape((blocks,), THREADS), v, w, np.int64(rows), np.int32(width), np.float64(factor), sums
    )


class Vendor:
    """cuSPARSE's product of a stored matrix and two row-major blocks, which change sides, prepared once.

    Parameters
    ----------
    matrix : cupyx.scipy.sparse.csr_matrix, shape (N, N)
        H, canonical.
    v, w : cupy.ndarray, shape (N, R), C order
        The two blocks.
    """

    def __init__(self, matrix: Any, v: Any, w: Any) -> None:
        import cupy
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cusparse
        from cupyx.cusparse import SpMatDescriptor

        if v.shape[1] > THREADS:
            raise ValueError(f"a block of {v.shape[1]} vectors is wider than the fused kernel takes, {THREADS}")
        self._library, self._handle, self._matrix = cusparse, device.get_cusparse_handle, SpMatDescriptor.create(matrix)
        self._type = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}[str(v.dtype)]
        self._dense = {
            address(block): cusparse.createDnMat(
                *block.shape, block.shape[1], address(block), self._type, cusparse.CUSPARSE_ORDER_ROW
            )
            for block in (v, w)
        }
        self._kept, self._dtype = (matrix, v, w), v.dtype
        size = max(
            cusparse.spMM_bufferSize(*self._arguments(x, y, *(np.array(1, v.dtype) for _ in range(2))))
            for x, y in ((v, w), (w, v))
        )
        self._buffer = cupy.empty(max(size, 1), np.uint8)

    def _arguments(self, v: Any, w: Any, alpha: Any, beta: Any) -> tuple[Any, ...]:
        library = self._library
        return (
            self._handle(), library.CUSPARSE_OPERATION_NON_TRANSPOSE, library.CUSPARSE_OPERATION_NON_TRANSPOSE,
            address(alpha), self._matrix.desc, self._dense[address(v)], address(beta),
            self._dense[address(w)], self._type, CSR_ALG2,
        )  # fmt: skip

    def __call__(self, v: Any, w: Any, alpha: float, beta: float) -> None:
        """Compute W = alpha H V + beta W on the current stream; cuSPARSE's algorithm for row-major blocks."""
        import cupy

        factors = [np.array(factor, self._dtype) for factor in (alpha, beta)]
        self._library.setStream(self._handle(), cupy.cuda.get_current_stream().ptr)
        self._library.spMM(*self._arguments(v, w, *factors), address(self._buffer))

    def __del__(self) -> None:
        """Destroy the descriptors of the blocks."""
        for descriptor in getattr(self, "_dense", {}).values():
            self._library.destroyDnMat(descriptor)
