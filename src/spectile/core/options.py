"""What callers choose by a word, a truth value, numbers, a path or a seed: read once, refused by name."""

from __future__ import annotations

import math
import os
import reprlib
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from spectile.core.host import refuse_masked


def kind_of(value: Any) -> str:
    """Return what a value is, as a message says it: ``None``, ``an int``, ``a csr_array``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name.lstrip('_')[:1].lower() in 'aeio' or name == 'ndarray' else 'a'} {name}"


def word(name: str, value: Any, *known: str) -> str:
    """Return a word that is one of those known; raises ValueError if it is another, or no word."""
    if not isinstance(value, str) or value not in known:
        *most, last = map(repr, known)
        choice = f"{', '.join(most)} or {last}" if most else last
        raise ValueError(f"{name} = {reprlib.repr(value)} is unknown: choose {choice}")
    return value


def flag(name: str, value: Any) -> bool:
    """Return a truth value, Python's, NumPy's or a number; raises TypeError if it is a word, or several values."""
    if not isinstance(value, str):
        try:
            return bool(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{name} = {reprlib.repr(value)} is no truth value: give True or False")


def is_real(value: Any) -> bool:
    """Return whether a value may be one real number: no text, which float() reads, nothing complex and no array."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    return not isinstance(value, str | bytes | bytearray | complex) and kind in "biufO" and np.shape(value) == ()


def number(name: str, value: Any) -> float:
    """Return a real number as float; raises TypeError if it is none, and ValueError if none of float64 is so large."""
    kind = type(value)
    if kind is float:  # as most are: a call of small matrices takes no longer than a few such looks
        return value
    try:
        if kind is not int and not is_real(value):
            raise TypeError
        found = float(value)
        if math.isinf(found) and found != value:
            raise OverflowError
        return found
    except (TypeError, ValueError):  # the latter of a decimal number that signals
        raise TypeError(f"{name} = {reprlib.repr(value)} is no real number: give one") from None
    except OverflowError:
        raise ValueError(f"{name} is beyond the largest number of float64: give a smaller one") from None


def numbers(name: str, value: Any) -> np.ndarray:
    """Return real numbers, one or an array of them, as an array of float64.

    Raises TypeError if they are none: NumPy would drop imaginary parts, and masks.
    """
    refuse_masked(name, value)
    kind = type(value).__name__
    try:
        found = np.asarray(value)
        kind = str(found.dtype)
        if found.dtype.kind in "biuf" or (
            found.dtype.kind == "O" and all(isinstance(each, Real) for each in found.flat)
        ):
            with np.errstate(over="raise"):
                return found.astype(np.float64, copy=False)
    except (TypeError, ValueError, ArithmeticError):
        pass
    raise TypeError(f"{name} must be real numbers, not {kind}: give one, or an array of them")


def leading(**dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """Return what leading dimensions, by the names of operands, broadcast to; raises ValueError if they do not."""
    try:
        return np.broadcast_shapes(*dimensions.values())
    except ValueError:
        told = " and ".join(f"{own} of {name}" for name, own in dimensions.items())
        raise ValueError(f"leading dimensions {told} do not broadcast together: give operands of one batch") from None


def path(name: str, value: Any) -> Path:
    """Return the path that a caller names; raises TypeError if it is none."""
    try:
        return Path(os.fsdecode(value))
    except TypeError:
        raise TypeError(f"{name} = {reprlib.repr(value)} is no path: name a file") from None


def generator(name: str, value: Any) -> np.random.Generator:
    """Return the generator of a seed, or the one given; None seeds one from the system.

    Raises ValueError if it is neither.
    """
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} = {reprlib.repr(value)} seeds nothing: give an integer >= 0, a numpy.random.Generator or None"
        ) from None


def whole_number(value: Any, name: str, least: int) -> int:
    """Return a number that must be whole and at least `least`; `name` is what the error calls it."""
    try:
        valid = is_real(value) and not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise ValueError(f"{name} = {reprlib.repr(value)} is invalid: give a whole number of at least {least}")
    return int(value)


def positive_number(value: Any, name: str) -> float:
    """Return a number that must be finite and positive; `name` is what the error calls it."""
    found = number(name, value)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} = {reprlib.repr(value)} is invalid: give a finite positive number")
    return found
