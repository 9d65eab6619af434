"""Complex products on a GPU, as real ones of real and imaginary parts.

A complex matrix lies in memory as a real one, the parts of an entry side by side.  Where each entry b of B becomes
((Re b, Im b), (-Im b, Re b)) the real product of A with it is C, parts side by side again: A and C are not copied.

A tile of A is a pair of real ones along k, and a tile of B four of them, which are valid or not all together: each has
the norm of its complex tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import launch
from spectile.core.launch import Shape
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.geometry import check_sizes, fill, layout, pitch, stride
from spectile.nearsparse.cuda.units import COMPLEX_UNITS

EXPAND = layout("b:p out:p stride:l leading:l rows:l columns:l batches:l")
PAIR_NORMS = layout("norms_a:p norms_b:p complex_a:p complex_b:p rows_a:l rows_b:l depth:l batches_a:l batches_b:l")
# Threads of a block, and blocks that keep any device at work: each takes one entry after another.
_THREADS, _MOST_BLOCKS = 256, 1 << 14


def _shape(entries: int) -> Shape:
    return Shape((max(1, min(_MOST_BLOCKS, ceil_div(entries, _THREADS))),), _THREADS)


def _real(dtype: Any) -> np.dtype[Any]:
    return np.empty(0, dtype).real.dtype


def real_view(x: Any) -> Any:
    """Return a row-major complex matrix, or a batch, as a real one of twice as many columns that shares its memory."""
    dtype = _real(x.dtype)
    if isinstance(x, np.ndarray):
        view = x.view(dtype)
    else:
        import cupy

        strides = (*x.strides[:-1], dtype.itemsize)
        view = cupy.ndarray((*x.shape[:-1], 2 * x.shape[-1]), dtype, memptr=x.data, strides=strides)
    check_sizes("a complex operand, as parts,", view)
    return view


def empty_expanded(b: Any) -> Any:
    """Return memory for the real matrix that a complex B on a device becomes."""
    import cupy

    real = cupy.empty((*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1]), _real(b.dtype))
    check_sizes("b, as parts,", real)
    return real


def expanded(b: Any) -> Any:
    """Return the real matrix of twice as many rows and columns with which a real view of A is multiplied."""
    if isinstance(b, np.ndarray):
        real = np.empty_like(b, _real(b.dtype), "C", shape=(*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1]))
        check_sizes("b, as parts,", real)
        real[..., 0::2, 0::2] = real[..., 1::2, 1::2] = b.real
        real[..., 0::2, 1::2] = b.imag
        np.negative(b.imag, out=real[..., 1::2, 0::2])
        return real
    real = empty_expanded(b)
    if b.size:
        Expansion(b, real).launch()
    return real


def real_forms(a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Any, Any, Any]:
    """Return A, B, and C and the result where there are, as the matrices of the real product."""
    added, target = (None if x is None else real_view(x) for x in (c, out))
    return real_view(a), expanded(b), added, target


class Expansion:
    """What writes the real matrix of a complex B, shape ([items,] k, n) and row-major, on a device.

    It is contiguous, of the shape ([items,] 2 k, 2 n).
    """

    def __init__(self, b: Any, out: Any) -> None:
        sizes = {"rows": b.shape[-2], "columns": b.shape[-1], "batches": len(b) if b.ndim == 3 else 1}
        places = {"b": address(b), "out": address(out), "stride": stride(b), "leading": pitch(b)}
        self.parameters = fill(np.zeros((), EXPAND), sizes | places)
        #: Writes it; the parameters may be changed in place.
        self.launch = launch.kernel(COMPLEX_UNITS[out.dtype.name], "expand").bind(_shape(b.size), self.parameters)


class Pairing:
    """What gives real tiles the norm of their complex one, in contiguous norm maps, which it changes.

    Their shapes are ([items,] rows, depth), k along the last axis.  Maps of the complex tiles are written where the
    parameters `complex_a` and `complex_b` are set.
    """

    def __init__(self, norms_a: Any, norms_b: Any) -> None:
        (*batch_a, rows_a, depth), (*batch_b, rows_b, _) = norms_a.shape, norms_b.shape
        sizes = {"rows_a": rows_a, "rows_b": rows_b, "depth": depth}
        items = {"batches_a": int(np.prod(batch_a)), "batches_b": int(np.prod(batch_b))}
        maps = {"norms_a": address(norms_a), "norms_b": address(norms_b)}
        self.parameters = fill(np.zeros((), PAIR_NORMS), sizes | items | maps)
        shape = _shape(norms_a.size + norms_b.size)
        #: Changes the maps; the parameters may be changed in place.
        self.launch = launch.kernel(COMPLEX_UNITS["float64"], "pair_norms").bind(shape, self.parameters)
