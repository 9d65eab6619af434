"""The translation units of sparse products, apart by phase so that a call compiles only what it launches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from spectile.core.compile import PORTABLE, Unit, prepare
from spectile.core.device import describe
from spectile.tsparse.cuda import bins, choose, shared

_VALUES = {
    "float32": {"VALUE": "float"},
    "float64": {"VALUE": "double"},
    "complex64": {"VALUE": "Complex<float>"},
    "complex128": {"VALUE": "Complex<double>"},
}
#: The types of a factor's values, by NumPy's letter.
_GIVEN = {"?": "bool", "f": "float", "d": "double", "F": "Complex<float>", "D": "Complex<double>"}


def _unit(source: str, defines: dict[str, str] | None = None) -> Unit:
    return Unit(__package__, (source,), PORTABLE, defines or {}, preamble=shared.HEADER)


#: Boolean ones too, which are summed in float32.
_STORED = {**_VALUES, "bool": {"VALUE": "float", "STORED": "bool"}}


def _by_value(source: str, values: Mapping[str, dict[str, str]] = _VALUES, **more: str) -> dict[str, Unit]:
    return {name: _unit(source, {**defines, **more}) for name, defines in values.items()}


def _by_kernel(
    source: str, listed: Iterable[bins.Bin], values: Mapping[str, dict[str, str]] = _STORED, **more: str
) -> dict[str, dict[str, Unit]]:
    """Return the units of a family by the name of the type of C and that of the kernel, the only one of its unit."""
    units: dict[str, dict[str, Unit]] = {value: {} for value in values}
    for kernel in (kernel for one in listed for kernel in one.kernels):
        for value, unit in _by_value(source, values, NAME=kernel.name, **kernel.defines, **more).items():
            units[value][kernel.name] = unit
    return units


#: By the name of the type of C, and the factor's, by NumPy's letter.
CHECK = {
    (value, char): _unit(
        "check.cu", {**defines, "IN": kind, "REAL_VALUES": str(int(value.startswith("float") and char != "?"))}
    )
    for value, defines in _VALUES.items()
    for char, kind in _GIVEN.items()
    if value.startswith("complex") or char in "?fd"
}
CHECK["bool", "?"] = CHECK["float32", "?"]  # which copies no values then
#: The same without values, whatever a factor's are.
CHECK_PATTERN = CHECK["float32", "f"]
PATTERN = _unit("pattern.cu")
#: By the name of the type of C, and the code of the semiring, 4 where products count: those that compare are of reals.
MASKED = {
    (value, code): _unit("masked.cu", {**defines, "KIND": str(code)})
    for value, defines in _VALUES.items()
    for code in range(5)
    if code in (0, 4) or value.startswith("float")
}
#: Of products in float16 alone.
SCALING = _by_value("scaling.cu")["float32"]
#: Reads no values.
ANALYSIS = _unit("rows/analysis.cu", _VALUES["float32"])
#: By the name of the type of C.
TURN = _by_value("turn.cu", _STORED)
DENSE = _by_value(
    "dense.cu", LONG_ROW=str(choose.LONG_ROW), LONG_THREADS=str(choose.LONG_THREADS), PIECE=str(choose.PIECE)
)
PLACE = _by_value("rows/place.cu")
PLACE["bool"] = PLACE["float32"]
LIST = _by_value("rows/list.cu")
#: Of these and of those that read no values, the units of float32.
HUB = _by_value("rows/hub.cu", _STORED, HUB_RUN=str(choose.HUB_RUN), HUB_THREADS=str(choose.HUB_THREADS))


def _symbolic(family: str, **more: str) -> Unit:
    return _unit("rows/symbolic.cu", {**_VALUES["float32"], "FAMILY": family, **more})


#: What counts rows reads no values.  Of window bins: by whether a block counts a row.
SYMBOLIC_WINDOWS = {by_blocks: _symbolic("WINDOWS", BY_BLOCKS=str(int(by_blocks))) for by_blocks in (False, True)}
SYMBOLIC_TABLES, SYMBOLIC_SORTS = _symbolic("TABLES"), _symbolic("SORTS")
SYMBOLIC_BLOCK = _unit("rows/symbolic_block.cu", _VALUES["float32"])
#: The numeric phase, by the family of a kernel, the name of the type of C, and that of the kernel, the only one of its
#: unit: all in one would take seconds to compile.
NUMERIC = {
    "sort": _by_kernel("rows/sort.cu", bins.SORTS),
    "few": _by_kernel("rows/few.cu", (bins.FEW,)),
    "window": _by_kernel("rows/window.cu", bins.WINDOWS),
    "hash": _by_kernel("rows/hash.cu", bins.TABLES, WIDE="0"),
    # Of products with more columns than a word sorts with their slots.
    "wide_hash": _by_kernel("rows/hash.cu", bins.TABLES, WIDE="1"),
    "block": _by_kernel("rows/block.cu", bins.BLOCKS, REUSE="0"),
}
#: The same where the columns of C are known; short rows write them once more.
REUSE = {**NUMERIC, "block": _by_kernel("rows/block.cu", bins.BLOCKS, _VALUES, REUSE="1")}
UNITS = (
    SYMBOLIC_BLOCK,
    SCALING,
    PATTERN,
    ANALYSIS,
    *SYMBOLIC_WINDOWS.values(),
    SYMBOLIC_TABLES,
    SYMBOLIC_SORTS,
    *dict.fromkeys(unit for family in (CHECK, MASKED, TURN, DENSE, PLACE, LIST, HUB) for unit in family.values()),
    *dict.fromkeys(
        unit
        for families in (NUMERIC, REUSE)
        for values in families.values()
        for kernels in values.values()
        for unit in kernels.values()
    ),
)


def prepare_rows(value: str, chars: str, rows: int, nnz_a: int, columns: int, nnz_b: int) -> None:
    """Begin to compile side by side what counts the rows of a product of such factors on the current device.

    What fills them depends on the rows (`prepare_numeric`).  `value` is the type of C, and `chars` those of A and of B
    by NumPy's letters, none where their values are not read.
    """
    device = describe()
    by_blocks, _ = choose.symbolic_groups(rows, nnz_a, device)
    _prepare_rows(device.arch, value, chars, by_blocks, choose.blocks_possible(columns, nnz_b))


@functools.cache
def _prepare_rows(arch: str, value: str, chars: str, by_blocks: bool, blocks: bool) -> None:
    # What is launched first comes first.
    checks = [CHECK[value, char] for char in dict.fromkeys(chars)] or [CHECK_PATTERN]
    families = [SYMBOLIC_SORTS, SYMBOLIC_TABLES, SYMBOLIC_WINDOWS[by_blocks], *([SYMBOLIC_BLOCK] if blocks else [])]
    prepare(*checks, ANALYSIS, *families, PLACE[value])


def prepare_numeric(value: str, chosen: tuple[tuple[str, str], ...], reuse: bool = False) -> None:
    """Begin to compile kernels of the numeric phase for the current device, each by its family and name."""
    _prepare_numeric(describe().arch, value, chosen, reuse)


@functools.cache
def _prepare_numeric(arch: str, value: str, chosen: tuple[tuple[str, str], ...], reuse: bool) -> None:
    families = REUSE if reuse else NUMERIC
    prepare(*(families[family][value][name] for family, name in chosen))
