"""What is said about bad factors, by both backends."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Steps between the values of a contiguous vector, by what `check_values` allows.
_STEPS = {np.dtype("float32"): (4,), np.dtype("float64"): (8,)}


def bad_pointer(name: str) -> ValueError:
    """The row pointer of factor `name` cannot be walked."""
    return ValueError(f"the row pointer of {name} does not increase from 0 to its number of entries: check indptr")


def bad_index(name: str, columns: int) -> ValueError:
    """A column of factor `name` is out of range."""
    return ValueError(f"{name} holds a column index outside 0 to {columns - 1}: check indices")


def not_finite(name: str, value: float, row: int, column: int) -> ValueError:
    """An entry of factor `name` is NaN or infinite."""
    return ValueError(f"{name} holds {value} at row {row}, column {column}: remove or replace it")


def beyond_float32(what: str) -> ValueError:
    """A factor (``"A holds entries"``) or C (``"an entry of C is"``) leaves the range of float32."""
    return ValueError(f'{what} beyond the range of float32; use precision="float64"')


def other_pattern(name: str) -> ValueError:
    """Factor `name` does not have the pattern that was analysed."""
    return ValueError(f"the pattern of {name} differs from the analysed one: call symbolic() again for it")


def check_values(data_a: Any, data_b: Any, out: Any, nnz_a: int, nnz_b: int, nnz_c: int) -> None:
    """Raise where values do not belong to one product: their types, their numbers, their layout."""
    try:
        kind = data_a.dtype
        steps = _STEPS.get(kind)
        if (
            steps is not None
            and data_a.strides == data_b.strides == out.strides == steps
            and data_b.dtype == kind == out.dtype
            and (data_a.size, data_b.size, out.size) == (nnz_a, nnz_b, nnz_c)
            and (not isinstance(out, np.ndarray) or out.flags.writeable)
        ):
            return
    except AttributeError:
        pass  # told below
    for name, array in (("data_a", data_a), ("data_b", data_b), ("out", out)):
        if not (hasattr(array, "dtype") and hasattr(array, "flags")):
            raise TypeError(f"{name} is a {type(array).__name__}: pass an array of the values")
    for name, array, nnz in (("data_a", data_a, nnz_a), ("data_b", data_b, nnz_b), ("out", out, nnz_c)):
        if array.shape != (nnz,):
            raise ValueError(f"{name} has shape {array.shape}; the analysed pattern has {nnz} entries")
        if array.dtype.char not in "fd" or not array.dtype.isnative or array.dtype != data_a.dtype:
            raise TypeError(f"{name} is {array.dtype}: data_a, data_b and out are all float32 or all float64")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous: copy it")
    if not getattr(out.flags, "writeable", True):
        raise ValueError("out is read-only: pass an array that may be written")
