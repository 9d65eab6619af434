"""Numba's compiler for the functions of the CPU: compiled code is kept on disk where that is possible."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numba


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return the decorator ``numba.njit(cache=True, ...)``, without the cache where no folder for it can be written.

    Parameters
    ----------
    **options
        Further options of ``numba.njit``.

    Warns
    -----
    RuntimeWarning
        Once in a process, where nothing can be kept.
    """

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if not str(error).startswith("cannot cache function"):
                raise
        _warn_once()
        return numba.njit(**options)(function)

    return decorate


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "neither the folder of spectile nor the cache of the home folder can be written, so every process compiles the "
        "functions of the CPU anew, which takes seconds: name a folder for them by the environment variable "
        "NUMBA_CACHE_DIR",
        RuntimeWarning,
        stacklevel=3,
    )
