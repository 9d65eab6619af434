"""The translation units of sparse products, apart by phase so that a call compiles only what it launches."""

from __future__ import annotations

from spectile.core.compile import Unit
from spectile.tsparse.types import PRECISIONS

ARCHS = ("sm_80", "sm_90a", "sm_100")
_VALUES = {"float32": {"VALUE": "float"}, "float64": {"VALUE": "double"}}


def _by_value(source: str) -> dict[str, Unit]:
    return {name: Unit(__package__, (source,), ARCHS, defines) for name, defines in _VALUES.items()}


#: By the name of the type of C.
CHECK = _by_value("check.cu")
ANALYSIS = _by_value("rows/analysis.cu")
WINDOW = _by_value("rows/window.cu")
HASH = _by_value("rows/hash.cu")
BLOCK = _by_value("rows/block.cu")
SYMBOLIC = Unit(__package__, ("rows/symbolic.cu",), ARCHS, _VALUES["float32"])  # it reads no values
#: By the name of the precision.
TILES = {
    name: Unit(__package__, ("tiles/tiles.cu",), ARCHS, {"PRECISION": str(precision.tile_code)})
    for name, precision in PRECISIONS.items()
}
_FAMILIES = (CHECK, ANALYSIS, WINDOW, HASH, BLOCK, TILES)
UNITS = (SYMBOLIC, *(unit for family in _FAMILIES for unit in family.values()))
