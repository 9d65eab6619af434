"""Checks of arguments, before any work and without a copy of the operand."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spectile.core import arrays
from spectile.core.device import choose_backend
from spectile.core.host import in_kind_of, refuse_masked
from spectile.core.options import leading, number, numbers
from spectile.core.placement import Work
from spectile.evd.types import Definite, Subset, UnsupportedOperandError, not_finite, working_dtype

STANDARD_DRIVERS = ("ev", "evd", "evr", "evx")
GENERALIZED_DRIVERS = ("gv", "gvd", "gvx")
_ON_HOST = (np.ndarray, list, tuple)
#: How an object says that it is an array.
_ARRAYS = ("shape", "__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")
TRIDIAGONAL_DRIVERS = ("auto", "stemr", "sterf", "stebz", "stev", "stevd")
SELECTIONS = ("a", "all", "v", "value", "i", "index")


def any_on_device(operands: tuple[Any, ...]) -> bool:
    """Return whether an operand lives on a GPU."""
    for one in operands:
        # CuPy's arrays are known by their type, because to ask where one lies takes the driver microseconds.
        if not isinstance(one, _ON_HOST) and (type(one).__module__ == "cupy" or arrays.on_device(one)):
            return True
    return False


def placed(
    given: dict[str, Any], backend: str, work: Callable[[], Work] | None = None
) -> tuple[Any, list[Any], Callable[[Any], Any]]:
    """Return the module of operands where a call is computed, these as its arrays, and what gives a result back.

    The kind is the first operand's; `work` returns what the call costs, for ``auto``.  Raises ValueError if an operand
    is on another device than the current one, and as `choose_backend`.
    """
    if choose_backend(backend, any_on_device(tuple(given.values())), "evd", work) == "cpu":
        first = next(iter(given.values()))
        return np, [arrays.host_array(name, one) for name, one in given.items()], in_kind_of(first)
    import cupy

    moved = [arrays.to_device(one, name) for name, one in given.items()]
    for name, (one, _) in zip(given, moved, strict=True):
        arrays.require_here(name, one)
    return cupy, [one for one, _ in moved], moved[0][1]


def require_square(a: Any, name: str = "a") -> tuple[int, ...]:
    """Return the shape of `a`, and raise ValueError unless its last two axes have one length."""
    if type(a) is not np.ndarray:
        refuse_other(name, a)
    if isinstance(a, np.ndarray) or type(a).__module__ == "cupy":
        shape: tuple[int, ...] = a.shape
    else:
        shape = tuple(int(length) for length in (a.shape if hasattr(a, "shape") else arrays.host_array(name, a).shape))
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f'expected square "{name}" matrix, and not shape {shape}')
    return shape


def refuse_other(name: str, array: Any) -> None:
    """Raise UnsupportedOperandError for what is no dense array, and for masked entries, whose mask would be lost."""
    if isinstance(array, str):
        hint = ': name the triangle as lower=False or UPLO="U"' if name == "b" else ""  # where numpy.linalg.eigh has it
        raise UnsupportedOperandError(f"{name} is the word {array!r}, and an array of numbers is needed{hint}")
    if hasattr(array, "tocsr") or hasattr(array, "todense"):
        raise UnsupportedOperandError(
            f"{name} is a sparse matrix, and a dense array is needed: scipy.sparse.linalg.eigsh finds a few of its "
            f"eigenpairs, spectile.kpm_dos its density of states, and {name}.toarray() makes it dense"
        )
    unread = hasattr(array, "matvec")  # a linear operator
    if not (isinstance(array, list | tuple) or any(hasattr(array, known) for known in _ARRAYS)):
        found = np.asarray(array)
        unread = found.dtype.kind == "O" and found.ndim == 0
    if unread:
        raise UnsupportedOperandError(f"{name} is {reprlib.repr(array)}, and an array of numbers is needed")
    refuse_masked(name, array, UnsupportedOperandError)


def require_all_finite(name: str, array: np.ndarray) -> None:
    """Raise ValueError as SciPy does where an array holds NaN or infinity, with its name."""
    if not np.isfinite(array).all():
        raise not_finite(name, check_finite=True)


def require_dimensions(name: str, array: Any, least: int) -> None:
    """Raise ValueError where an array has fewer dimensions than one problem of it has."""
    if array.ndim < least:
        raise ValueError(f"expected {name} with {least} dimensions or more, and not shape {array.shape}")


def batch_shape(*leads: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading dimensions that those of the operands broadcast to.

    Raises ValueError if that is a batch without a matrix, which SciPy refuses, or they do not broadcast.
    """
    lead = leading(**dict(zip(("d", "e"), leads, strict=False)))
    if 0 in lead:
        raise ValueError(f"a batch holds at least one matrix, and this one has shape {lead}")
    return lead


def refuse_ragged(values: Iterable[Any]) -> None:
    """Raise ValueError unless the eigenvalues that were found in each matrix of a batch are equally many."""
    if len({len(w) for w in values}) > 1:
        raise ValueError(
            "the interval holds its own number of eigenvalues of each matrix of this batch: loop over the matrices"
        )


def definite_of(shape: tuple[int, ...], b: Any, kind: int, overwrite: bool) -> tuple[Definite, tuple[int, ...]]:
    """Return the second matrix for matrices of `shape`, and the shape that both broadcast to.

    Raises ValueError if its shape or the kind of the problem is not valid.
    """
    own = require_square(b, "b")
    if own[-1] != shape[-1]:
        raise ValueError(f"wrong b dimensions {own}, should be {shape}")
    check_type(kind)
    return Definite(b, kind, overwrite), shape if shape == own else (*leading(a=shape[:-2], b=own[:-2]), *own[-2:])


def check_type(kind: int) -> None:
    """Raise ValueError where a type of generalized problems is none, as SciPy does also without a second matrix."""
    if isinstance(kind, bool) or not isinstance(kind, int | np.integer) or kind not in (1, 2, 3):
        raise ValueError('"type" keyword only accepts 1, 2, and 3.')


def check_driver(driver: str, *, generalized: bool, subset: bool) -> None:
    """Raise ValueError unless `driver` is one of LAPACK's that solves the problem."""
    if not isinstance(driver, str):
        raise ValueError(f"driver = {reprlib.repr(driver)} is no word: name one of LAPACK's, as 'evd', or None")
    if driver not in (*STANDARD_DRIVERS, *GENERALIZED_DRIVERS):
        names = '", "'.join((*STANDARD_DRIVERS, *GENERALIZED_DRIVERS))
        raise ValueError(f'"{driver}" is unknown. Possible values are "None", "{names}" for driver.')
    if not generalized and driver in GENERALIZED_DRIVERS:
        raise ValueError(f"{driver} requires input b array to be supplied for generalized eigenvalue problems.")
    if generalized and driver in STANDARD_DRIVERS:
        raise ValueError(f'"{driver}" does not accept input b array for standard eigenvalue problems.')
    if subset and driver in ("ev", "evd", "gv", "gvd"):
        raise ValueError(f'"{driver}" cannot compute subsets of eigenvalues')


def subset_of(shape: tuple[int, ...], by_index: Any, by_value: Any) -> Subset | None:
    """Return the wanted part of the spectra of matrices of `shape`, or None for all.

    Any part of an empty spectrum is all of it, as in SciPy.

    Raises ValueError if the part is not valid.
    """
    n = shape[-1]
    if by_index is not None and by_value is not None:
        raise ValueError("Either index or value subset can be requested, not both")
    wanted = by_value if by_index is None else by_index
    name = "subset_by_value" if by_index is None else "subset_by_index"
    try:
        first, last = wanted
    except (TypeError, ValueError):
        said = f"{name} takes two numbers, the ends of the wanted part, and not {reprlib.repr(wanted)}"
        raise ValueError(said) from None
    low, high = number(name, first), number(name, last)
    if n == 0:
        return None
    if by_index is not None:
        if not (low.is_integer() and high.is_integer()):
            raise ValueError(f"{name} = ({low}, {high}) are no indices: give two whole numbers")
        subset = Subset(True, int(low), int(high))
        if not 0 <= subset.low <= subset.high < n:
            raise ValueError(
                f"Requested eigenvalue indices are not valid. Valid range is [0, {n - 1}] and start <= end, but "
                f"start={subset.low}, end={subset.high} is given by subset_by_index"
            )
    else:
        subset = Subset(False, low, high)
        if not subset.low < subset.high:
            raise ValueError(
                "Requested eigenvalue bounds are not valid. Valid range is (-inf, inf) and low < high, but "
                f"low={first}, high={last} is given by subset_by_value"
            )
    return None if (subset.low, subset.high) in ((0, n - 1), (-math.inf, math.inf)) else subset


def kind_of_part(select: Any) -> str:
    """Return "a", "v" or "i" for any of SciPy's words and numbers of `select`, or raise ValueError."""
    kind = {0: "a", 1: "v", 2: "i"}.get(int(select)) if isinstance(select, int | np.integer) else select
    if not isinstance(kind, str) or kind.lower() not in SELECTIONS:
        raise ValueError(f"invalid argument for select, {reprlib.repr(select)}: choose 'a', 'v' or 'i'")
    return kind.lower()[0]


def limits_of(kind: str, select_range: Any) -> Any:
    """Return SciPy's `select_range` of a kind of part, ends of an interval as float64; raise where it is no numbers."""
    if kind == "a":
        return None
    if select_range is None:
        raise ValueError(f"select = {kind!r} is a part of the spectrum: give its two ends as select_range")
    ends = numbers("select_range", select_range)
    return ends if kind == "v" else select_range


def check_tridiagonal(d: Any, e: Any, driver: str, *, whole: bool, vectors: bool) -> None:
    """Raise as SciPy does where there is no problem of d and e, or LAPACK's `driver` does not solve it."""
    if driver not in TRIDIAGONAL_DRIVERS:
        raise ValueError(f"lapack_driver must be one of {TRIDIAGONAL_DRIVERS}, got {driver}")
    for name, one in (("d", d), ("e", e)):
        require_dimensions(name, one, 1)
        working_dtype(one.dtype, name)
        if one.dtype.kind == "c":
            raise TypeError(f"Only real arrays currently supported, and {name} is {one.dtype}")
    if d.shape[-1] != e.shape[-1] + 1:
        raise ValueError(f"d ({d.shape[-1]}) must have one more element than e ({e.shape[-1]})")
    if driver in ("sterf", "stev", "stevd") and not whole:
        raise ValueError(f'lapack_driver = {driver!r} can only be used when select == "a"')
    if driver == "sterf" and vectors:
        raise ValueError("lapack_driver = 'sterf' can only be used when eigvals_only is True")


def selected(kind: str, select_range: Any, n: int) -> Subset | None:
    """Return the part of a spectrum that a kind of part and SciPy's `select_range` name, or None for all.

    Raises ValueError if the part is not valid.
    """
    if kind == "a":
        return None
    limits = np.asarray(select_range)
    if limits.ndim != 1 or limits.size != 2 or not limits[0] <= limits[1]:
        raise ValueError("select_range must be a 2-element array-like in nondecreasing order")
    if kind == "v":
        return Subset(False, float(limits[0]), float(limits[1]))
    if limits.dtype.kind not in "iu":
        raise ValueError(f'when using select="i", select_range must contain integers, got dtype {limits.dtype}')
    if limits[0] < 0 or limits[1] >= n:
        raise ValueError("select_range out of bounds")
    return Subset(True, int(limits[0]), int(limits[1]))
