"""Tridiagonal and banded problems on the CPU: LAPACK's drivers, as SciPy calls them, where these are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.arrays import host_array
from spectile.core.host import in_kind_of
from spectile.core.pointers import overwritable
from spectile.evd.arguments import (
    batch_shape,
    check_tridiagonal,
    refuse_ragged,
    require_all_finite,
    require_dimensions,
    selected,
)
from spectile.evd.load import divided_by_power, frobenius_of_diagonals, times_power
from spectile.evd.types import Subset, exponent_near_one, working_dtype

#: Orders up to which n² + 4 n + 1 and 2 n² + 5 n + 1, the work space of stevd and sbevd for eigenvectors, are 32-bit
#: numbers; beyond, SciPy hands LAPACK too little, which reads past its end.
DIVIDED_TRIDIAGONAL_ORDER, DIVIDED_BAND_ORDER = 46_338, 32_766

#: LAPACK's drivers that do not scale the matrix: they lose all digits where its squares leave the range of its dtype.
DRIVERS_OF_PARTS = ("stebz", "stemr")

Arrays = list[np.ndarray[Any, np.dtype[Any]]]
#: From the arrays of a problem to its diagonals, the main one first.
Diagonals = Callable[[Arrays], Arrays]


def eigh_tridiagonal(d: Any, e: Any, *, tol: float, check_finite: bool, **keywords: Any) -> Any:
    """`narrow.eigh_tridiagonal` on the CPU."""
    from scipy import linalg

    def solve(arrays: Arrays, scale: int, keywords: dict[str, Any]) -> Any:
        divides = keywords["lapack_driver"] == "stevd" or (keywords["lapack_driver"] == "auto" and _is_whole(keywords))
        if divides and not keywords["eigvals_only"] and arrays[0].size > DIVIDED_TRIDIAGONAL_ORDER:
            keywords = keywords | {"lapack_driver": "stemr"}
        return linalg.eigh_tridiagonal(*arrays, tol=np.ldexp(tol, scale), check_finite=False, **keywords)

    arrays = [host_array(name, one) for name, one in (("d", d), ("e", e))]
    whole, vectors = _is_whole(keywords), not keywords["eigvals_only"]
    check_tridiagonal(arrays[0], arrays[1], keywords["lapack_driver"], whole=whole, vectors=vectors)
    selected(keywords["select"], keywords["select_range"], arrays[0].shape[-1])
    if check_finite:
        for name, one in zip("de", arrays, strict=True):
            require_all_finite(name, one)
    dtype = working_dtype(np.result_type(*(one.dtype for one in arrays)))
    arrays = [one.astype(dtype, copy=False) for one in arrays]
    return _in_kind(d, _solve_each(solve, lambda given: given, arrays, 1, keywords))


def eig_banded(
    a_band: Any, *, lower: bool, overwrite_a_band: bool, max_ev: int, check_finite: bool, **keywords: Any
) -> Any:
    """`narrow.eig_banded` on the CPU.

    `max_ev` is not handed on, because LAPACK writes past the end of the eigenvectors where more are found.  Diagonals
    that lie outside the matrix are not either: LAPACK takes the wrong row of an upper band of order 1.
    """
    from scipy import linalg

    def solve(arrays: Arrays, scale: int, keywords: dict[str, Any]) -> Any:
        (band,) = arrays
        if band.ndim == 2 and len(band) > band.shape[1] > 0:
            band = band[: band.shape[1]] if lower else band[len(band) - band.shape[1] :]
        if not keywords["eigvals_only"] and band.shape[-1] > DIVIDED_BAND_ORDER and _is_whole(keywords):
            keywords = keywords | {"select": "i", "select_range": (0, band.shape[-1] - 1)}
        return linalg.eig_banded(band, lower=lower, overwrite_a_band=overwrite, check_finite=False, **keywords)

    bands = host_array("a_band", a_band)
    require_dimensions("a_band", bands, 2)
    bands = bands.astype(working_dtype(bands.dtype, "a_band"), copy=False)
    overwrite = overwrite_a_band and overwritable(bands)  # SciPy does not ask
    if bands.size:
        selected(keywords["select"], keywords["select_range"], bands.shape[-1])
    if check_finite or not (keywords["eigvals_only"] or overwrite):  # where SciPy looks in any case
        require_all_finite("a_band", bands)

    def diagonals(arrays: Arrays) -> Arrays:
        """Return what lies inside the matrix, the main diagonal first."""
        band = arrays[0] if lower else arrays[0][::-1]
        rows, n = band.shape
        return [band[i, : n - i] if lower else band[i, i:] for i in range(min(rows, n))]

    return _in_kind(a_band, _solve_each(solve, diagonals, [bands], 2, keywords))


def _in_kind(operand: Any, results: Any) -> Any:
    """Return the eigenvalues, or those and the eigenvectors, in the kind of an operand."""
    in_kind = in_kind_of(operand)
    return tuple(map(in_kind, results)) if isinstance(results, tuple) else in_kind(results)


def _solve_each(
    solve: Callable[..., Any],
    diagonals: Callable[[Arrays], Arrays],
    arrays: Arrays,
    axes: int,
    keywords: dict[str, Any],
) -> Any:
    """Solve the problems of a batch, each the last `axes` axes, one after the other, or the one there is."""
    if all(one.ndim <= axes for one in arrays):
        return _solve_part(solve, diagonals, arrays, keywords)
    lead = batch_shape(*(one.shape[:-axes] for one in arrays))
    arrays = [np.broadcast_to(one, (*lead, *one.shape[-axes:])) for one in arrays]
    results = [_solve_part(solve, diagonals, [one[index] for one in arrays], keywords) for index in np.ndindex(*lead)]
    parts = list(zip(*results, strict=True)) if isinstance(results[0], tuple) else [results]
    refuse_ragged(parts[0])
    stacked = [np.stack(part).reshape(*lead, *part[0].shape) for part in parts]
    return tuple(stacked) if isinstance(results[0], tuple) else stacked[0]


def _is_whole(keywords: dict[str, Any]) -> bool:
    return bool(keywords["select"] == "a")


def _solve_part(solve: Callable[..., Any], diagonals: Diagonals, arrays: Arrays, keywords: dict[str, Any]) -> Any:
    """Solve one problem, as LAPACK's drivers of parts need it: with its largest entry near 1, and no empty interval."""
    if _is_whole(keywords) and keywords.get("lapack_driver") not in DRIVERS_OF_PARTS:
        return _in_range(solve(arrays, 0, keywords), 0, arrays)
    select, limits = keywords["select"], keywords["select_range"]
    empty = False
    inside = diagonals(arrays) if all(one.ndim for one in arrays) else arrays
    largest = max((float(abs(part).max()) for one in inside for part in (one.real, one.imag) if one.size), default=0.0)
    scale = exponent_near_one(largest) if np.isfinite(largest) else 0
    if scale:
        # What lies outside the matrix may leave the range, and SciPy looks at it too.
        with np.errstate(over="ignore"):
            scaled = [times_power(one, scale) for one in arrays]
        for one, given in zip(scaled, arrays, strict=True):
            np.copyto(one, given, where=~np.isfinite(one))
        arrays = scaled
    if select == "v" and arrays[0].size:
        ends = Subset(False, *limits).ends(frobenius_of_diagonals(diagonals(arrays)), arrays[0].dtype, scale)
        empty = bool(limits[0] <= limits[1] and ends[0] == ends[1])
        keywords = keywords | {"select_range": ends}
    if empty:  # as the empty part of the first eigenvalue
        keywords = keywords | {"select": "i", "select_range": (0, 0)}
    result = _in_range(solve(arrays, scale, keywords), scale, arrays)
    if not empty:
        return result
    w, *v = result if isinstance(result, tuple) else (result,)
    return (w[:0], *(one[:, :0] for one in v)) if v else w[:0]


def _in_range(result: Any, scale: int, arrays: Arrays) -> Any:
    """Return results for a matrix times 2**scale as they are."""
    w, *v = result if isinstance(result, tuple) else (result,)
    w = divided_by_power(w, scale).astype(arrays[0].real.dtype, copy=False)
    return (w, *v) if v else w
