"""CUDA units of KPM that CI compiles: every kernel, type and sort of shape, as a device of the table takes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.kpm.cuda.boxed.launch import boxed_unit, boxes_unit
from spectile.kpm.cuda.boxed.when import boxed_room, boxed_shape, columns_of
from spectile.kpm.cuda.common import PLAIN, REAL, SERIES, TURNED, WALK, inspect_unit, lanczos_unit, vectors_unit
from spectile.kpm.cuda.csr.launch import csr_unit
from spectile.kpm.cuda.csr.when import shape as csr_shape
from spectile.kpm.cuda.flat.launch import flat_unit
from spectile.kpm.cuda.flat.when import applies as is_flat
from spectile.kpm.cuda.flat.when import shape as flat_shape
from spectile.kpm.cuda.problem import Problem
from spectile.kpm.cuda.sliced.launch import sliced_unit
from spectile.kpm.cuda.sliced.when import shape as sliced_shape
from spectile.kpm.cuda.staged.inspector import inspector_unit
from spectile.kpm.cuda.staged.launch import staged_unit
from spectile.kpm.cuda.staged.when import staged_shapes
from spectile.kpm.cuda.stencil.launch import sweep_unit
from spectile.kpm.cuda.stencil.when import SweepTile

_DEVICE, _ROWS = TABLE["H200"], 10**6


def _problem(dtype: str, num_vectors: int, longest: int, fill: float = 1.0) -> Problem:
    entries = int(_ROWS * longest / fill)
    return Problem(_ROWS, entries, longest, _ROWS * longest, _ROWS, dtype, num_vectors)


def _rows() -> Iterator[Unit]:
    for dtype in REAL:
        for vectors, longest in ((1, 7), (1, 60), (2, 3), (7, 30), (8, 7), (32, 13), (64, 60)):
            problem = _problem(dtype, vectors, longest)
            yield csr_unit(dtype, vectors, csr_shape(problem))
            yield csr_unit(dtype, vectors, csr_shape(problem), mode=WALK)
            yield sliced_unit(dtype, vectors, sliced_shape(problem, _DEVICE))
            if not is_flat(problem, _DEVICE):
                yield flat_unit(dtype, vectors, flat_shape(problem))
        uneven = _problem(dtype, 16, 7, fill=1.4)
        yield sliced_unit(dtype, 16, sliced_shape(uneven, _DEVICE))
    wide = _problem("complex128", 32, 7)
    yield csr_unit("complex128", 32, csr_shape(wide), wide=True)
    one = _problem("complex128", 1, 7)
    yield flat_unit("complex128", 1, flat_shape(one), wide=True)
    yield from (flat_unit("complex128", 1, flat_shape(one), mode=mode) for mode in (PLAIN, SERIES))
    yield sliced_unit("complex128", 32, sliced_shape(wide, _DEVICE), wide=True)


def _boxed() -> Iterator[Unit]:
    for dtype in REAL:
        for vectors in (8, 16, 32):
            if columns_of(vectors, dtype):
                shape = boxed_shape(vectors, dtype)
                room = boxed_room(shape, dtype, 63, _DEVICE)
                yield boxed_unit(dtype, shape=shape, room=room)
                yield from (boxes_unit(shape=shape, room=room, wide=wide) for wide in (False, True))


def _staged() -> Iterator[Unit]:
    for dtype, vectors in (("complex128", 32), ("complex128", 45), ("complex64", 32), ("float64", 40), ("float32", 64)):
        for shape in staged_shapes(vectors, dtype, 13):
            yield staged_unit(dtype, vectors, slots=96, code_bytes=576, value_bytes=4096, shape=shape)
    yield from (inspector_unit(np.dtype(dtype).itemsize) for dtype in REAL)
    yield inspector_unit(16, wide=True)


def _series() -> Iterator[Unit]:
    """Steps that add to sums: one of each kernel, of either sort of numbers."""
    for dtype, vectors in (("float32", 8), ("complex128", 32)):
        problem = _problem(dtype, vectors, 7)
        yield csr_unit(dtype, vectors, csr_shape(problem), mode=SERIES)
        yield from (csr_unit(dtype, vectors, csr_shape(problem), mode=mode) for mode in (PLAIN, TURNED))
        yield csr_unit(dtype, vectors, csr_shape(problem), hubs=True)
        yield sliced_unit(dtype, vectors, sliced_shape(problem, _DEVICE), mode=SERIES)
    boxed = boxed_shape(32, "float64")
    yield boxed_unit("float64", mode=SERIES, shape=boxed, room=boxed_room(boxed, "float64", 63, _DEVICE))
    staged = staged_shapes(32, "complex128", 13)[0]
    sizes = {"slots": 96, "code_bytes": 576, "value_bytes": 4096}
    yield staged_unit("complex128", 32, mode=SERIES, shape=staged, **sizes)


UNITS = tuple(
    dict.fromkeys(
        (
            *(vectors_unit(dtype) for dtype in REAL),
            vectors_unit("complex128", wide=True),
            *(lanczos_unit(dtype) for dtype in REAL),
            lanczos_unit("complex128", wide=True),
            *(inspect_unit(dtype) for dtype in REAL),
            inspect_unit("complex128", wide=True),
            *_rows(),
            *_boxed(),
            *_staged(),
            *_series(),
            *(sweep_unit("complex128", 40, SweepTile(*tile)) for tile in ((12, 1, 1), (7, 2, 2))),
            sweep_unit("complex64", 40, SweepTile(7, 2, 2)),
        )
    )
)
