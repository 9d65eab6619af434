"""Factors on the device: checked and rounded to the precision of the product (``check.cu``; float16: ``scaling.cu``).

The flags of the check lie among the counters of the symbolic phase and are read with them, which spares a wait.  Where
one is set, the factors are canonicalized, or scaled for float16, and used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import kernel
from spectile.core.pointers import address
from spectile.tsparse import errors
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.counters import Counters, Invalid
from spectile.tsparse.cuda.given import Given, arranged
from spectile.tsparse.cuda.plans import Repeated, plan
from spectile.tsparse.cuda.shared import CONSTANTS, FLAGS, HEAD, ROUNDING, UNSORTED
from spectile.tsparse.rounding import half_exponents
from spectile.tsparse.types import Factor, Precision

_ROUNDING = {name: ROUNDING[code] for name, code in (("tf32", "TF32"), ("float16", "HALF"))}
_KEEP = ROUNDING["KEEP"]
#: What the kernels call the types of values, by NumPy's letter.
_TYPES = {"f": "float", "d": "double"}


def with_checked_factors(
    A: Given,
    B: Given,
    precision: Precision | None,
    use: Callable[..., Any],
    *,
    check_finite: bool = True,
    beside: tuple[Given, Precision | None] | None = None,
    names: Sequence[str] = "AB",
) -> Any:
    """Return ``use(A, B, counters)`` of both factors, as `given` returns them, their values rounded.

    Without a precision the patterns alone are checked, and the factors have no values, whatever theirs are.
    Where the check finds something, `Invalid` is raised by `use`, which is called again with canonical factors.
    A third matrix, `beside` them, has a precision of its own, and `use` has it after the counters.
    """
    every = [(A, precision), (B, precision), *([] if beside is None else [beside])]
    same, counters = A is B, Counters(A.shape[0])
    one_type = precision is None or A.data.dtype == B.data.dtype
    factors: list[Factor] = []
    for which, some in enumerate([(A,)] if same else [(A, B)] if one_type else [(A,), (B,)]):
        factors += _check(some, precision, counters, which, (A, B), check_finite)
    factors += factors[:1] * same
    if beside is not None:
        factors += _check(beside[:1], beside[1], counters, 2, (), check_finite)
    try:
        return use(*factors[:2], counters, *factors[2:])
    except Invalid as invalid:
        flags = [int(flag) for flag in invalid.args]
    if same:
        flags[1] = flags[0]
    given = zip(every, flags, names, strict=False)
    clean = [_canonicalize(*one, found, name, check_finite) for one, found, name in given]
    counters = Counters(A.shape[0])
    if any(out_of_range for _, _, out_of_range in clean):
        for which, (matrix, factor, _) in enumerate(clean[:2]):
            _scale(matrix, factor, counters, which)
    try:
        return use(*(factor for _, factor, _ in clean[:2]), counters, *(factor for _, factor, _ in clean[2:]))
    except Invalid as invalid:  # scaling lost an entry
        which = 0 if invalid.args[0] else 1
    raise _lost(*clean[which][:2], which)


def checked(left: Factor, right: Factor, counters: Counters | None) -> tuple[Factor, Factor]:
    """Read the flags of the check by themselves."""
    if counters is not None:
        counters.read().raise_invalid()
    return left, right


def _check(
    matrices: Sequence[Any],
    precision: Precision | None,
    counters: Counters,
    which: int = 0,
    factors: Sequence[Any] = (),
    check_finite: bool = True,
) -> list[Factor]:
    """Launch the check of a factor, or of two with values of one type, which rounds values where the precision asks.

    Before the first of these sizes all that a product of `factors` may launch is compiled side by side.
    """
    import cupy

    rounding, kinds = _KEEP, None
    addresses: list[int] = []
    checked: list[Factor] = []
    if precision is not None:
        rounding, kinds = _ROUNDING.get(precision.name, _KEEP), (precision.value, matrices[0].data.dtype.char)
    for matrix in matrices:
        data: Any = None if precision is None else matrix.data
        out = data
        if precision is not None and (rounding != _KEEP or data.dtype != precision.dtype):
            out = cupy.empty(matrix.indices.size, precision.dtype)
        copied = 0 if out is data else address(out)
        addresses += address(matrix.indptr), address(matrix.indices), 0 if data is None else address(data), copied
        checked.append(Factor(matrix.shape, matrix.indptr, matrix.indices, out, given=matrix))
    sizes = tuple([(*matrix.shape, matrix.indices.size) for matrix in matrices])
    if any(rows or nnz for rows, _, nnz in sizes):

        def made() -> Repeated:
            if factors:
                a, b = factors
                value, chars = ("float64", "") if kinds is None else (kinds[0], a.data.dtype.char + b.data.dtype.char)
                units.prepare_rows(value, chars, a.shape[0], a.indices.size, b.shape[1], b.indices.size)
            unit = units.CHECK_PATTERN if kinds is None else units.CHECK[kinds]
            return _bound_check(unit, sizes, rounding, which, check_finite)

        launch: Repeated = plan(("check", counters.device, kinds, sizes, rounding, which, check_finite), made)
        launch(counters.stream, *addresses, *[0] * (8 - len(addresses)), counters.head)
    return checked


def _bound_check(
    unit: Unit, sizes: Sequence[tuple[int, int, int]], rounding: int, which: int, check_finite: bool
) -> Repeated:
    """Return the check of one or two factors, of rows, columns and entries.

    Its addresses are row pointer, columns, values and where rounded ones go, of each of two, and the head.
    """
    blocks = [choose.loop(max(rows, nnz)).grid[0] for rows, _, nnz in sizes]
    numbers = rounding, check_finite, which, blocks[0], *sizes[0], *(sizes[1] if len(sizes) > 1 else (0, 0, 0))
    return Repeated(unit, "prepare", choose.lanes_each(256 * sum(blocks)), map(np.int32, numbers), 9)


def compare(factor: Factor, indptr: Any, indices: Any, counters: Counters, which: int) -> None:
    """Launch the comparison of a factor with a pattern of the same sizes; it sets the flag OTHER_PATTERN."""
    sizes = (factor.shape[0], factor.nnz, which)
    launch: Repeated = plan(("compare", counters.device, sizes), lambda: _bound_compare(*sizes))
    arrays = factor.indptr, factor.indices, indptr, indices
    launch(counters.stream, *(address(array) for array in arrays), counters.head)


def _bound_compare(rows: int, nnz: int, which: int) -> Repeated:
    """Return the comparison of a factor with a pattern, for row pointer and columns of both, and the head."""
    sizes = np.int32(rows), np.int32(nnz)
    return Repeated(units.PATTERN, "compare", choose.loop(max(rows + 1, nnz)), sizes, 5, np.int32(which))


def _canonicalize(
    matrix: Given, precision: Precision | None, flags: int, name: str, check_finite: bool
) -> tuple[Given, Factor, bool]:
    """Raise on what is wrong, sort and sum what is not canonical, and tell whether float16 needs scaling."""
    _raise_wrong(matrix, flags, precision, name)
    counters = Counters(1)
    if flags & UNSORTED:
        known = {"held": matrix.held, "columns": matrix.columns}
        matrix = replace(arranged(name, matrix), **known)
    (factor,) = _check((matrix,), precision, counters, check_finite=check_finite)
    if flags & UNSORTED:
        flags = counters.read()[HEAD["FLAGS"]]
        _raise_wrong(matrix, flags, precision, name)
    half = precision is not None and precision.name == "float16"
    out_of_range = half and bool(flags & (FLAGS["HALF_RANGE"] | FLAGS["FLOAT_RANGE"]))
    return matrix, factor, out_of_range


def in_order(name: str, matrix: Given) -> Given:
    """Return a matrix of checked pattern with its entries in order and each once: itself where it is so."""
    counters = Counters(1)
    _check((matrix,), None, counters)
    flags = counters.read().flags()[0]
    _raise_wrong(matrix, flags, None, name)
    return replace(arranged(name, matrix), held=matrix.held, columns=matrix.columns) if flags & UNSORTED else matrix


def _raise_wrong(matrix: Any, flags: int, precision: Precision | None, name: str) -> None:
    """Raise the error of what cannot be put right."""
    import cupy

    if flags & FLAGS["BAD_POINTER"]:
        raise errors.bad_pointer(name)
    if flags & FLAGS["BAD_INDEX"]:
        raise errors.bad_index(name, matrix.shape[1])
    if flags & FLAGS["NOT_FINITE"]:
        worst = int(cupy.argmin(cupy.isfinite(matrix.data)))
        row = int(cupy.searchsorted(matrix.indptr, cupy.asarray(worst), side="right")) - 1
        raise errors.not_finite(name, matrix.data[worst].item(), row, int(matrix.indices[worst]))
    if flags & FLAGS["FLOAT_RANGE"] and (precision is None or precision.name != "float16"):
        raise errors.beyond_float32(f"{name} holds entries")


def _scale(matrix: Any, factor: Factor, counters: Counters, which: int) -> None:
    """Divide the rows of A, or the columns of B, by powers of two that bring them into the range of float16."""
    import cupy

    rows, by_row = matrix.shape[0], which == 0
    exponents = cupy.full(rows if by_row else matrix.shape[1], CONSTANTS["EMPTY"], np.int32)
    unit, shape, kind = units.SCALING, choose.lanes_each(rows, 3), _TYPES[matrix.data.dtype.char]
    sizes: tuple[Any, ...] = (np.int32(rows), np.int32(by_row))
    arrays = (matrix.indptr, matrix.indices, matrix.data, exponents)
    kernel(unit, f"exponents_{kind}")(shape, *sizes, *arrays)
    flags = counters.head + 4 * which  # so that the kernel writes to those of this factor
    kernel(unit, f"scale_{kind}")(shape, *sizes, *arrays, factor.data, flags)
    factor.exponents = exponents


def _lost(matrix: Any, factor: Factor, which: int) -> Exception:
    """Return the error that names the row of A or the column of B that float16 cannot scale."""
    import cupy

    what = "column of B" if which else "row of A"
    rows = cupy.arange(factor.nnz, dtype=matrix.indptr.dtype)
    owner = matrix.indices if which else cupy.searchsorted(matrix.indptr, rows, side="right") - 1
    try:
        half_exponents(matrix.data, owner, len(factor.exponents), what, xp=cupy)
    except ValueError as error:
        return error
    return RuntimeError(f"scaling of the {what} to float16 failed")


def unscale(data: Any, indptr: Any, indices: Any, A: Factor, B: Factor, first: int) -> Any:
    """Multiply C by the powers of two that the inputs were divided by."""
    if A.exponents is None:
        return data
    rows, counters = len(indptr) - 1, Counters(1)
    if len(data):
        arguments = (np.int32(rows), indptr, indices, data, A.exponents[first:], B.exponents, counters.head)
        kernel(units.SCALING, "unscale")(choose.lanes_each(rows, 3), *arguments)
    if counters.read()[HEAD["FLAGS"]]:
        raise errors.beyond_float32("an entry of C is")
    return data
