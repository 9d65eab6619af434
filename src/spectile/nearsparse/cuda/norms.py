"""The norm maps of A and B on the device, both with k blocks along the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import launch
from spectile.core.compile import Unit
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.choose import norms_launch
from spectile.nearsparse.cuda.geometry import is_aligned, layout, log2, pitch, stride
from spectile.nearsparse.cuda.parts import Pairing
from spectile.nearsparse.cuda.units import NORM_UNITS
from spectile.nearsparse.types import Grain, Request

NORM_TASK = layout(
    "matrix:p norms:p stride_matrix:l stride_norms:l leading:l rows:i columns:i norm_rows:i norm_columns:i batches:i "
    "transposed:i aligned:i"
)
NORM_TASKS = np.dtype([("task", NORM_TASK, (2,)), ("counter", "u8"), ("log2_block", "i4")], align=True)


@dataclass(eq=False)
class Norms:
    """Norm maps of A and B in the layout that the product reads: both with k blocks along the last axis."""

    a: Any
    b: Any
    block: int
    #: Next tile of the persistent product, zero before each; None where nothing is multiplied.
    counter: Any = None

    @property
    def k_blocks(self) -> int:
        """Blocks along k."""
        return int(self.a.shape[-1])

    def of(self, item: tuple[int, int]) -> tuple[Any, Any]:
        """Return the maps of one product, given the indices of its matrices of A and B in their batches."""
        return tuple(
            norms[index] if norms.ndim == 3 else norms for norms, index in zip((self.a, self.b), item, strict=True)
        )

    @property
    def tiles(self) -> Norms:
        """The maps of complex tiles, where these are maps of real tiles that have their norms."""
        import cupy

        norms_a, norms_b = (cupy.ascontiguousarray(x) for x in (self.a[..., ::2], self.b[..., ::2, ::2]))
        return Norms(norms_a, norms_b, self.block)


def told(maps: Norms, request: Request) -> Norms:
    """Return the maps of the tiles that a request speaks of, given those by which it is multiplied."""
    return maps if request.arithmetic.parts == 1 else maps.tiles


def told_grain(grain: Grain, request: Request) -> Grain:
    """Return in tiles that a request speaks of what a product multiplies together: two of B's real ones are one."""
    rows, columns, depth = grain
    parts = request.arithmetic.parts
    return rows, max(1, columns // parts), max(1, depth // parts)


class NormMaps(Norms):
    """Norm maps computed by each call from A and B, of unit stride along rows.

    Their shapes are ([batch,] m, k) and ([batch,] k, n).  `into` is where to write the maps: contiguous, so that a
    panel of B fills a part of the map of all of B.  `paired` are real forms of complex matrices, each of whose tiles
    has the norm of its complex one.  `unit` is another kernel than the one of the dtype: the study's variants.
    """

    def __init__(
        self, a: Any, b: Any, block: int, into: tuple[Any, Any] | None = None,
        *, paired: bool = False, unit: Unit | None = None,
    ) -> None:  # fmt: skip
        import cupy

        dtype = "float32" if a.dtype == np.float16 else "float64"
        self.block, k_blocks = block, ceil_div(a.shape[-1], block)
        if into is None:
            shapes = [(*x.shape[:-2], ceil_div(x.shape[axis], block), k_blocks) for x, axis in ((a, -2), (b, -1))]
            into = cupy.empty(shapes[0], dtype), cupy.empty(shapes[1], dtype)
        self.a, self.b = into
        self.pairing = Pairing(*into) if paired else None
        # The norm kernel sets it to zero, and what follows: a word in which the blocks of a search meet, and a count.
        self.counter = cupy.zeros(8, cupy.uint32)
        self.parameters = parameters = np.zeros((), NORM_TASKS)
        parameters["counter"], parameters["log2_block"] = (address(self.counter), log2(block))
        for task, matrix, norms, transposed in zip(parameters["task"], (a, b), (self.a, self.b), (0, 1), strict=True):
            task["matrix"], task["norms"] = address(matrix), address(norms)
            task["stride_matrix"], task["stride_norms"] = (stride(matrix), stride(norms))
            task["leading"], task["rows"], task["columns"] = (pitch(matrix), matrix.shape[-2], matrix.shape[-1])
            shape = norms.shape[-2:][::-1] if transposed else norms.shape[-2:]
            task["norm_rows"], task["norm_columns"] = shape
            task["batches"] = matrix.shape[0] if matrix.ndim == 3 else 1
            task["transposed"], task["aligned"] = transposed, is_aligned(matrix)
        self._shape = norms_launch(a.shape, b.shape, a.itemsize)
        self._kernel = launch.kernel(unit or NORM_UNITS[a.dtype.name], "norm_map")
        self._keep = a, b

    def __call__(self) -> None:
        """Compute both maps on the current stream."""
        self._kernel(self._shape, self.parameters)
        if self.pairing is not None:
            self.pairing.launch()

    def take(self, norms_a: Any, norms_b: Any) -> None:
        """Copy maps that are known, as :func:`spectile.nearsparse.norm_map` returns them, in place of a call."""
        import cupy

        for into, given in ((self.a, norms_a), (self.b, norms_b.T)):
            # Of the real form of a complex matrix several tiles have one norm.
            for axis in (0, 1):
                given = cupy.repeat(given, ceil_div(into.shape[axis], max(1, given.shape[axis])), axis=axis)
            into[...] = given[: into.shape[0], : into.shape[1]]

    def bind(self) -> list[launch.BoundLaunch]:
        """Return the launches with their parameters, which may be changed in place."""
        measure = self._kernel.bind(self._shape, self.parameters)
        return [measure] if self.pairing is None else [measure, self.pairing.launch]


def check_norms(maps: Norms, a: Any, b: Any) -> None:
    """Raise where an operand holds NaN or infinity; a norm that overflows alone is no sign.

    An operand lies here or on the host, or is a list of its parts on several devices.
    """
    import cupy

    for name, norms, matrix in (("a", maps.a, a), ("b", maps.b, b)):
        parts = matrix if isinstance(matrix, list | tuple) else [matrix]
        if norms.size and not bool(cupy.isfinite(norms).all()) and not all(map(_finite, parts)):
            raise ValueError(
                f"{name} holds NaN or infinity: correct {name}, or give tau with check_finite=False to let them "
                "propagate as in a dense product"
            )


def _finite(matrix: Any) -> bool:
    if isinstance(matrix, np.ndarray):
        return bool(np.isfinite(matrix).all())
    import cupy

    with matrix.device:
        return bool(cupy.isfinite(matrix).all())


def empty_map(rows: int, k: int, request: Request) -> Any:
    """Return an empty norm map, k blocks along the last axis, on the current device."""
    import cupy

    return cupy.empty((ceil_div(rows, request.block), ceil_div(k, request.block)), request.arithmetic.norm)
