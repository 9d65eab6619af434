"""How a call is made and judged: errors that a caller understands, inputs as they were, the same bits again."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.random.draw import Draw
from tests.random.memory import Laid, host

#: What a call may raise; others tell a caller nothing.
ERRORS = (ValueError, TypeError, MemoryError, np.linalg.LinAlgError)


#: Modules of public functions, and the class whose methods are such functions.
PACKAGES = ("", ".density", ".evd", ".kpm", ".nearsparse", ".tiles", ".tsparse")
CLASS = "TileMatrix"


@functools.cache
def public() -> dict[Callable[..., Any], str]:
    """Return the names of the library's public functions, the shortest of each, and of a public class's methods."""
    found: dict[Callable[..., Any], str] = {}
    for package in PACKAGES:
        module = importlib.import_module(f"spectile{package}")
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                found.setdefault(getattr(module, name), f"{package.removeprefix('.')}.{name}".removeprefix("."))
    whole = getattr(importlib.import_module("spectile"), CLASS)
    for name, method in vars(whole).items():
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, classmethod)):
            found[getattr(method, "__func__", method)] = f"{CLASS}.{name}"
    return found


class Fault(AssertionError):
    """What a call did and should not have done."""


class Refused:
    """An error that a call raised and may raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def call(draw: Draw, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return what a function gives, or `Refused`; raise `Fault` for errors and warnings that it must not give.

    Some calls are made as by programs that have NumPy raise where it would warn.
    """
    _note(draw, function, arguments, keywords)
    flags = draw("NumPy flags", [{}] * 7 + [{"divide": "raise", "over": "raise", "invalid": "raise"}])
    with warnings.catch_warnings(record=True) as seen, np.errstate(**flags):
        warnings.simplefilter("always")
        try:
            result = function(*arguments, **keywords)
        except ERRORS as error:
            return _judged(error)
        except OverflowError as error:
            if "range of" not in str(error):
                raise Fault(f"bare OverflowError: {error}") from error
            return Refused(error)  # eigenvalues beyond the range of their dtype
        except Exception as error:
            raise Fault(f"bare {type(error).__name__}: {str(error)[:160]}") from error
    for warning in seen:
        if issubclass(warning.category, RuntimeWarning):
            raise Fault(f"a warning leaves: {warning.message}")
    return result


def _note(draw: Draw, function: Any, arguments: Any, keywords: Any) -> None:
    """Remember which options of a public function are drawn."""
    name = public().get(getattr(function, "__func__", function))
    if name is not None:
        draw.called.setdefault(name, set()).update(inspect.signature(function).bind(*arguments, **keywords).arguments)


def _judged(error: BaseException) -> Refused:
    message = str(error)
    if type(error) not in ERRORS and not isinstance(error, (TypeError, ValueError)):
        raise Fault(f"bare {type(error).__name__}: {message[:160]}") from error
    if isinstance(error, UnicodeError):
        raise Fault(f"bare {type(error).__name__}: {message[:160]}") from error
    if len(message.split()) < 3:
        raise Fault(f"an error that is no sentence: {type(error).__name__}: {message[:160]!r}") from error
    return Refused(error)


class Undecided(Exception):
    """A call that is refused by design on a GPU, and not on a host."""


def must(result: Any) -> Any:
    """Return a result, or raise `Fault` where a valid call was refused."""
    if isinstance(result, Refused) and "a copy of a GPU array is never hidden" in str(result):
        raise Undecided
    if isinstance(result, Refused):
        raise Fault(f"a valid call is refused: {str(result)[:200]}") from result.error
    return result


def holds(condition: Any, message: str) -> None:
    """Raise `Fault` with the message unless the condition holds."""
    if not bool(condition):
        raise Fault(message)


class Unchanged:
    """Remembers the memory of inputs and finds what changed.

    Parameters
    ----------
    laid : dict of Laid
        By their names.
    """

    def __init__(self, **laid: Laid | None) -> None:
        self.before = {name: (one, one.bits()) for name, one in laid.items() if one is not None}

    def check(self, but: Any = None) -> None:
        """Raise `Fault` where memory changed that is not of the array `but`."""
        for name, (one, before) in self.before.items():
            now = one.bits()
            if now == before:
                continue
            changed = np.flatnonzero(np.frombuffer(now, np.uint8) != np.frombuffer(before, np.uint8))
            if but is not None and _inside(one.memory, but, changed):
                continue
            raise Fault(f"{name} changed, or memory beside it, from byte {changed[0]} of {len(now)}")


def _start(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _inside(memory: Any, array: Any, changed: np.ndarray) -> bool:
    first = _start(array) - _start(memory)
    return bool(changed[0] >= first and changed[-1] < first + array.nbytes)


def bits(result: Any) -> Any:
    """Return a result, arrays and numbers, as something that compares bit for bit."""
    if isinstance(result, Refused):
        return str(result)
    if isinstance(result, dict):
        return {key: bits(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return [bits(one) for one in result]
    if hasattr(result, "indptr"):
        return [bits(getattr(result, one, None)) for one in ("indptr", "indices", "data")]
    if result is None or isinstance(result, (str, bool, int)):
        return result
    array = host(result)
    return array.shape, array.dtype.str, array.tobytes()


def same_bits(first: Any, second: Any, what: str = "the same call again") -> None:
    """Raise `Fault` where two results differ in a bit."""
    if bits(first) != bits(second):
        raise Fault(f"{what} gives other bits")


def norm(x: np.ndarray) -> Any:
    """Return the Frobenius norms of matrices in longdouble."""
    wide = np.abs(x).astype(np.longdouble)
    return np.sqrt((wide * wide).sum(axis=(-2, -1)))
