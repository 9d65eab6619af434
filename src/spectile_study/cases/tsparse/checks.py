"""Whether a product is right: its pattern, the bound of every entry, and SMAPE (Equation 3)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.tsparse import error_bound, spgemm
from spectile.tsparse.rounding import fits_half, half_exponents
from spectile.tsparse.types import HalfRange, lookup
from spectile_study.bench.case import Method, Value
from spectile_study.cases.tsparse.tiles import half

#: Methods that leave out entries which cancel, by the first word of their names.
DROPPING = ("scipy", "tasks", "cusp")
#: Products of up to this many entries are checked entry by entry; larger ones by their action on a random vector.
LARGEST_CHECKED = 20_000_000
#: The name of the bound of tiles whose elements are float16.
FLOAT16_IN_TILES = "float16 in tiles"


class Check:
    """Compares products A B with the float64 reference: pattern, bound of every entry, SMAPE (Equation 3).

    Methods of every precision but float64 are given factors that are stored in float32: the bound of an entry is that
    of the product of these, while SMAPE and the relative error are against the product of A and B as they are.  A
    product too large for that is compared through its action on a random vector.

    Parameters
    ----------
    A : sparse array
        The first factor, in float64.
    nnz_c : int
        Stored entries of the product.
    seed : int
        Of the random vector.
    B : sparse array, optional
        The second factor; A by default.
    """

    def __init__(self, A: Any, nnz_c: int, seed: int, B: Any = None) -> None:
        self.A, self.B, self.nnz_c = A, A if B is None else B, nnz_c
        #: A library's product in float32, which the paper compares with; set where there is one.
        self.library: Callable[[], Any] | None = None
        self.smape_library: dict[str, float] = {}
        self.x = np.random.default_rng(seed).standard_normal(self.B.shape[1])
        self.smape: dict[str, float] = {}
        self._kept: dict[tuple[str, str], Any] = {}

    def __call__(self, name: str, precision: Any, C: Any) -> dict[str, float]:
        """Return the errors of C, computed by method `name` in `precision`."""
        if self.nnz_c > LARGEST_CHECKED:
            return self._action(name, precision, C)
        C.sort_indices()
        xp: Any = importlib.import_module("cupy") if hasattr(C, "get") else np
        exact = self._array("exact", np)
        indptr, indices, data = (self._array(part, xp) for part in ("indptr", "indices", "data"))
        if _drops(name):
            C = _with_cancelled(C, type(C)((data, indices, indptr), shape=exact.shape), xp)
        if C.nnz != exact.nnz or bool((C.indptr != indptr).any()) or bool((C.indices != indices).any()):
            return {"error_pattern": 1.0, "error_fro_rel": float("nan"), "error_bound_ratio": float("nan")}
        values = C.data.astype(np.float64)
        error = xp.abs(values - data)
        tiled = precision == "float16" and name.startswith(("tiles", "tasks"))
        bound = FLOAT16_IN_TILES if tiled else precision
        self.smape[name] = _smape(values, data, xp)
        if self.library is not None and len(library := self._array("library", xp)) == len(values):
            self.smape_library[name] = _smape(values, library, xp)
        scale = float(xp.linalg.norm(data)) or 1.0
        beyond = xp.abs(values - self._array("data" if precision == "float64" else "data of float32", xp))
        return {
            "error_pattern": 0.0,
            "error_fro_rel": float(xp.linalg.norm(error)) / scale,
            "error_bound_ratio": float((beyond / self._array(bound, xp)).max()) if len(error) else 0.0,
        }

    def _factors(self, dtype: str) -> tuple[Any, Any]:
        """Return the factors as they are stored for methods of this type, in float64."""
        left = self.A.astype(dtype).astype(np.float64)
        return left, left if self.B is self.A else self.B.astype(dtype).astype(np.float64)

    def _array(self, name: str, xp: Any) -> Any:
        """Return the float64 product, one of its arrays, or the bound of a precision, kept on host and device."""
        key = name, xp.__name__
        if key in self._kept:
            return self._kept[key]
        array: Any
        if xp is not np:
            array = xp.asarray(self._array(name, np))
        elif name == "library":
            array = self._of_library()
        elif name == "exact":
            array = spgemm(*self._factors("float64"), backend="cpu")
        elif name in ("indptr", "indices", "data"):
            array = getattr(self._array("exact", np), name)
        elif name == "data of float32":
            array = spgemm(*self._factors("float32"), backend="cpu").data
        elif name == "rounding of the reference":
            array = error_bound(*self._factors("float64")).data
        else:
            reference = own = self._array("rounding of the reference", np)
            if name != "float64":
                factors = self._factors("float32")
                tiled = name == FLOAT16_IN_TILES
                own = (half.error_bound(*factors) if tiled else error_bound(*factors, precision=name)).data  # type: ignore[arg-type]
            array = own + reference
        self._kept[key] = array
        return array

    def _of_library(self) -> np.ndarray:
        """Return the entries of the library's product on the pattern of C; none where the library fails."""
        assert self.library is not None
        try:
            C = self.library()
        except (MemoryError, RuntimeError):
            return np.empty(0)
        C = C.get() if hasattr(C, "get") else C
        C.sort_indices()
        exact = self._array("exact", np)
        C = _with_cancelled(C, exact, np)
        same = C.nnz == exact.nnz and np.array_equal(C.indices, exact.indices)
        return C.data.astype(np.float64) if same else np.empty(0)

    def _action(self, name: str, precision: str, C: Any) -> dict[str, float]:
        A, B, x = self.A, self.B, self.x
        exact, size = A @ (B @ x), abs(A) @ (abs(B) @ abs(x))
        if hasattr(C, "get"):
            import cupy

            action = (C.astype(np.float64) @ cupy.asarray(x)).get()
        else:
            action = C.astype(np.float64) @ x
        unit = 2.0**-10 if precision in ("tf32", "float16") else lookup(precision).unit
        products = float(np.diff(A.indptr).max(initial=1)) + 2
        error = np.abs(action - exact) / np.where(size > 0, size, 1)
        return {
            "error_pattern": float(max(C.nnz - self.nnz_c, 0) if _drops(name) else abs(C.nnz - self.nnz_c)),
            "error_fro_rel": float(np.linalg.norm(action - exact) / (np.linalg.norm(exact) or 1)),
            "error_bound_ratio": float(error.max(initial=0) / (4 * products * unit)),
        }

    def method(
        self,
        name: str,
        precision: str,
        run: Callable[[], Any],
        counts: Mapping[str, Any],
        values: Callable[[Any], Mapping[str, Value]] = lambda result: {},
        **more: Any,
    ) -> Method:
        """Return the method `name` with this check, its work, and what `values` makes of a result."""
        limits = {"error_pattern": 0.0, "error_bound_ratio": 1.0}
        entry = 4 + lookup(precision).dtype.itemsize
        return Method(
            name,
            run,
            lambda C: self(name, precision, C),
            limits,
            flops=2.0 * counts["products"],
            bytes=float(entry * (2 * counts["nnz"] + counts["nnz_c"]) + 8 * counts["n"]),
            values=lambda C: (
                {
                    "precision": precision,
                    "smape_percent": self.smape.get(name),
                    "smape_library_percent": self.smape_library.get(name),
                }
                | dict(values(C))
            ),
            **more,
        )


def _smape(values: Any, reference: Any, xp: Any) -> float:
    """Return Equation 3, 0 where both values are 0."""
    size = xp.abs(values) + xp.abs(reference)
    return float(100 * (xp.abs(values - reference) / xp.where(size > 0, size, 1)).mean()) if len(values) else 0.0


def _drops(name: str) -> bool:
    return name.partition("_")[0] in DROPPING


def _with_cancelled(C: Any, exact: Any, xp: Any) -> Any:
    """Return C with the entries that are left out because they cancelled, or C if its pattern has others."""
    if C.nnz == exact.nnz:
        return C

    def places_of(x: Any) -> Any:
        rows = xp.searchsorted(x.indptr, xp.arange(x.nnz, dtype=x.indptr.dtype), side="right") - 1
        return rows.astype(np.int64) * x.shape[1] + x.indices

    places, wanted = places_of(C), places_of(exact)
    at = xp.searchsorted(wanted, places)
    if C.nnz > exact.nnz or not bool((wanted[xp.minimum(at, len(wanted) - 1)] == places).all()):
        return C
    data = xp.zeros(exact.nnz, C.dtype)
    data[at] = C.data
    return type(exact)((data, exact.indices, exact.indptr), shape=exact.shape)


def half_reason(A: Any, half: HalfRange) -> str | None:
    """Return why `half` cannot hold A even when its rows and columns are scaled, or None where it can."""
    if fits_half(A.data, half):
        return None
    try:
        half_exponents(A.data, np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.shape[0], "row of A", half)
        half_exponents(A.data, A.indices, A.shape[1], "column of B", half)
    except ValueError as error:
        return str(error)
    return None
