"""The sentences about bad factors that both backends say."""

from __future__ import annotations


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
