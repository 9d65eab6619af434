"""The translation units of sparse products, apart by phase so that a call compiles only what it launches."""

from __future__ import annotations

import functools

import numpy as np

from spectile.core.compile import PORTABLE, Unit, prepare
from spectile.tsparse.types import PRECISIONS

_VALUES = {"float32": {"VALUE": "float"}, "float64": {"VALUE": "double"}}


def _by_value(source: str, **more: str) -> dict[str, Unit]:
    return {name: Unit(__package__, (source,), PORTABLE, {**defines, **more}) for name, defines in _VALUES.items()}


def _task_product(precision: str, tensor: int) -> Unit:
    known = PRECISIONS[precision]
    bits = 8 * np.dtype(known.element).itemsize
    defines = {"PRECISION": str(known.tile_code), "INPUT_BITS": str(bits), "TENSOR": str(tensor)}
    return Unit(__package__, ("tiles/product.cu",), PORTABLE, defines)


#: By the name of the type of C.
CHECK = _by_value("check.cu")
ANALYSIS = _by_value("rows/analysis.cu")
SORT = _by_value("rows/sort.cu")
WINDOW = _by_value("rows/window.cu", REUSE="0")
HASH = _by_value("rows/hash.cu", WIDE="0")
WIDE_HASH = _by_value("rows/hash.cu", WIDE="1")  # of products with more columns than a word sorts with their slots
BLOCK = _by_value("rows/block.cu", REUSE="0")
#: The numeric phase where the columns of C are known.
REUSE_WINDOW = _by_value("rows/window.cu", REUSE="1")
REUSE_HASH = _by_value("rows/reuse.cu")
REUSE_BLOCK = _by_value("rows/block.cu", REUSE="1")
LIST = _by_value("rows/list.cu")
SYMBOLIC = Unit(__package__, ("rows/symbolic.cu",), PORTABLE, _VALUES["float32"])  # it reads no values
#: Tiles and their task list: what needs no values, and counting and multiplication by the name of the precision.
TASK_LIST = Unit(__package__, ("tiles/list.cu",), PORTABLE)
TASK_PRODUCT = {name: _task_product(name, int(name != "float32")) for name in PRECISIONS}
#: The same without tensor cores, for the study (the paper's nonTCU).
TASK_PLAIN = _task_product("float16", 0)
_FAMILIES = (
    CHECK,
    ANALYSIS,
    SORT,
    WINDOW,
    HASH,
    WIDE_HASH,
    BLOCK,
    REUSE_WINDOW,
    REUSE_HASH,
    REUSE_BLOCK,
    LIST,
    TASK_PRODUCT,
)
UNITS = (SYMBOLIC, TASK_LIST, TASK_PLAIN, *(unit for family in _FAMILIES for unit in family.values()))


@functools.cache
def prepare_rows(value: str, device: int) -> None:
    """Compile side by side what a product by rows with values of this type may launch on the current device."""
    prepare(SYMBOLIC, *(family[value] for family in (CHECK, ANALYSIS, SORT, WINDOW, HASH, BLOCK)))
