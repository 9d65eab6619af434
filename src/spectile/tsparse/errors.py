"""What is said about bad factors, by both backends."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.host import refuse_masked
from spectile.core.options import kind_of
from spectile.core.pointers import address

_FLOATS = {np.dtype(char) for char in "fdFD"}


def bad_pointer(name: str) -> ValueError:
    """The row pointer of factor `name` cannot be walked."""
    return ValueError(f"the row pointer of {name} does not increase from 0 to its number of entries: check indptr")


def other_lengths(name: str, indices: int, data: int) -> ValueError:
    """Factor `name` has not as many values as columns."""
    return ValueError(f"{name} holds {indices} column indices and {data} values: check its arrays")


def beyond_float64(name: str, dtype: Any) -> TypeError:
    """Values of factor `name` are of a wider type than float64, which does not hold them."""
    return TypeError(f"{name} holds {dtype} values that float64 does not hold: round them with .astype('float64')")


def inexact(most: int, kind: str) -> ValueError:
    """Sums of integers are beyond what their type holds."""
    wider = "convert the factors to int64, or " if kind == "int32" else ""
    return ValueError(
        f"sums of integers may exceed {most}, the largest that {kind} holds exactly: "
        f'{wider}name precision="float64" to have them rounded'
    )


def bad_index(name: str, columns: int) -> ValueError:
    """A column of factor `name` is out of range."""
    return ValueError(f"{name} holds a column index outside 0 to {columns - 1}: check indices")


def bad_row(name: str, rows: int) -> ValueError:
    """A row of factor `name` is out of range."""
    return ValueError(f"{name} holds a row index outside 0 to {rows - 1}: check its indices")


def other_device(made: int, current: int) -> ValueError:
    """A pattern is used on another device than the one it was made on."""
    return ValueError(
        f"the pattern was made on device {made} and device {current} is current: "
        f"call inside `with cupy.cuda.Device({made}):`"
    )


def not_finite(name: str, value: complex, row: int, column: int) -> ValueError:
    """An entry of factor `name` is NaN or infinite."""
    return ValueError(f"{name} holds {value} at row {row}, column {column}: remove or replace it")


def beyond_float32(what: str) -> ValueError:
    """A factor (``"A holds entries"``) or C (``"an entry of C is"``) leaves the range of float32."""
    return ValueError(f'{what} beyond the range of float32; use precision="float64"')


def other_pattern(name: str, analysis: str = "symbolic") -> ValueError:
    """Factor `name` does not have the pattern that was analysed."""
    return ValueError(f"the pattern of {name} differs from the analysed one: call {analysis}() again for it")


def check_values(
    array_type: Any, data_a: Any, data_b: Any, out: Any, shape_a: tuple[int, ...], shape_b: tuple[int, ...], nnz: int
) -> None:
    """Raise where values do not belong to one product: their types, their numbers, their layout."""
    if isinstance(data_a, array_type) and isinstance(data_b, array_type) and isinstance(out, array_type):
        kind = data_a.dtype
        if (
            kind in _FLOATS
            and kind.isnative
            and data_b.dtype == kind == out.dtype
            and (data_a.shape, data_b.shape, out.shape) == (shape_a, shape_b, (nnz,))
            and _plain(data_a)
            and _plain(data_b)
            and _plain(out)
        ):
            return
    named = (("data_a", data_a, shape_a), ("data_b", data_b, shape_b), ("out", out, (nnz,)))
    for name, array, _ in named:
        if not isinstance(array, array_type):
            library = array_type.__module__.partition(".")[0]
            raise TypeError(f"{name} is {kind_of(array)}: pass an array of {library} of the values")
    for name, array, shape in named:
        refuse_masked(name, array)
        if array.shape != shape:
            entries = f"{shape[0]} entries" if len(shape) == 1 else f"values of shape {shape}"
            raise ValueError(f"{name} has shape {array.shape}; the analysed pattern has {entries}")
        if array.dtype.char not in "fdFD" or not array.dtype.isnative or array.dtype != data_a.dtype:
            raise TypeError(
                f"{name} is {array.dtype}: data_a, data_b and out are all float32 or all float64, "
                "or all complex64 or all complex128"
            )
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous: copy it")
        if not (array.flags.aligned if isinstance(array, np.ndarray) else _plain(array)):
            raise ValueError(f"{name} is not aligned to its items: copy it")
    if not getattr(out.flags, "writeable", True):
        raise ValueError("out is read-only: pass an array that may be written")


def _plain(array: Any) -> bool:
    """Return whether an array is contiguous and aligned, and of NumPy's whether it may be written and has no mask."""
    if isinstance(array, np.ndarray):
        return bool(array.flags.carray) and not np.ma.is_masked(array)
    return bool(array.flags.c_contiguous and address(array) % array.dtype.itemsize == 0)
