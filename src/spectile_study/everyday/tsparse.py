"""Everyday draws of sparse products: ``spgemm(A, B)`` of many structures, shapes and triple products.

Each draw is one structure of A in one product: A A, A B with another such B, A Aᵀ, a tall or wide A times a square B,
or Galerkin's Pᵀ A P in two calls.  C is sorted, by the rivals on a CPU, too.  The check has no float64 product of the
whole: rows that are drawn, and the longest, are multiplied by SciPy in float64 and compared entry by entry, pattern
included; and the whole acts on a random vector, where each component has the bound of its rounding.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile import spgemm
from spectile_study.bench import vendor
from spectile_study.bench.case import Method, Skipped
from spectile_study.everyday.problem import Cost, Drawn, Params, Place, TooMuch, absent, method, version
from spectile_study.everyday.sparse import csr, structured
from spectile_study.everyday.strata import Strata

ROWS, ENTRIES = (1_000, 10_000_000), (1.0, 300.0)
KINDS = ("uniform", "power law", "banded", "blocks", "stencil", "hubs")
PRODUCTS = ("A A", "A B", "A Aᵀ", "tall", "wide", "Galerkin")
DTYPES = ("float32", "float64", "bool")
#: Of a tall or wide A the rows over the columns, or the other way round; and rows of A over columns of P.
SLIMMEST, COARSENED = 64.0, 8
#: Hubs: rows, and the largest share of the columns that each has.
HUBS, HUB_SHARE = 4, 0.1
#: Rows of the result that are compared entry by entry: all where there are no more than the first, else so many drawn
#: and so many of the most products.
WHOLE, DRAWN, LONGEST = 2_000, 64, 4


def draw(strata: Strata) -> Params:
    """Return the parameters of a draw."""
    params: Params = {
        "rows": strata.log_integer("rows", *ROWS),
        "entries": strata.log_between("entries", *ENTRIES),
        "kind": strata.one_of("kind", KINDS),
        "product": strata.one_of("product", PRODUCTS),
        "dtype": strata.one_of("dtype", DTYPES),
    }
    if params["product"] in ("tall", "wide"):
        params["slim"] = strata.log_between("slim", 2.0, SLIMMEST)
    more: dict[str, Callable[[], Any]] = {
        "exponent": lambda: strata.between("exponent", 1.2, 3.0),
        "reach": lambda: strata.log_between("reach", 0.5, 8.0),
        "block": lambda: strata.log_integer("block", 2, 32),
        "dimensions": lambda: strata.one_of("dimensions", (1, 2, 3)),
        "hubs": lambda: strata.log_integer("hubs", 1, HUBS),
        "hub_share": lambda: strata.log_between("hub_share", 1e-3, HUB_SHARE),
    }
    wanted = {
        "power law": ("exponent",), "banded": ("reach",), "blocks": ("block",), "stencil": ("dimensions",),
        "hubs": ("hubs", "hub_share"),
    }  # fmt: skip
    return params | {name: more[name]() for name in wanted.get(params["kind"], ())}


def told(params: Params) -> str:
    """Return the draw in words."""
    slim = f" by {params['slim']:.0f}" if "slim" in params else ""
    hubs = f" ({params['hubs']} of {params['hub_share']:.1%})" if "hubs" in params else ""
    return (
        f"{params['product']}{slim}, {params['rows']:,} rows, {params['entries']:.0f} entries, "
        f"{params['kind']}{hubs}, {params['dtype']}"
    )


def cost(params: Params) -> Cost:
    """Return about what the draw takes."""
    entries = params["rows"] * max(1.0, params["entries"])
    products = entries * max(1.0, params["entries"])
    # Keys and values while the matrices are made; factors, copies, and products of rivals that keep them all.
    return Cost(100.0 * entries + 40.0 * products, sparse=products + 10 * entries)


def build(params: Params, numbers: np.random.Generator, place: Place) -> Drawn:
    """Return the draw with its matrices."""
    rng, dtype = place.rng(numbers), np.dtype(params["dtype"])
    rows, product = params["rows"], params["product"]

    def matrix(shape: tuple[int, int], kind: str, entries: float, **more: float) -> Any:
        row, column = structured(kind, shape, entries, params | more, rng, place.xp)
        return csr(row, column, shape, dtype, rng, place)

    square = (rows, rows)
    slim = max(1, int(rows / params.get("slim", 1)))
    first = {"tall": (rows, slim), "wide": (slim, rows)}.get(product, square)
    a = matrix(first, params["kind"], params["entries"])
    factors: tuple[Any, ...]
    if product == "A A":
        factors = (a, a)
    elif product == "A Aᵀ":
        factors = (a, a.T.tocsr())
        factors[1].sort_indices()
    elif product == "Galerkin":
        kind = "uniform" if params["kind"] == "uniform" else "banded"
        p = matrix((rows, max(1, rows // COARSENED)), kind, 2.0, reach=2.0)
        r = p.T.tocsr()
        r.sort_indices()
        factors = (r, a, p)
    else:
        factors = (a, matrix((first[1], first[1]), params["kind"], min(params["entries"], first[1])))
    return _drawn(factors, dtype, numbers, place)


def _products(a: Any, b: Any, place: Place) -> Any:
    """Return the products of each row of A B."""
    xp = place.xp
    each = xp.diff(b.indptr)[a.indices].astype(np.int64)
    sums = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(each)])
    return sums[a.indptr[1:]] - sums[a.indptr[:-1]]


def _drawn(factors: tuple[Any, ...], dtype: np.dtype[Any], numbers: np.random.Generator, place: Place) -> Drawn:
    each = _products(factors[0], factors[1], place)
    total = int(each.sum())
    most = Cost(60.0 * total, sparse=float(total))
    if most.memory_bytes > place.memory_bytes:
        raise TooMuch(f"its {total:.2g} products may take {most.memory_bytes:.2g} bytes, more than the limit")
    check, seen = _checked(factors, each, dtype, numbers, place)
    options: dict[str, Any] = {"backend": place.device}
    limit = 1.0

    ours = _chained(lambda a, b: spgemm(a, b, **options), factors, place)
    return Drawn(
        call="spgemm(spgemm(R, A), P)" if len(factors) > 2 else "spgemm(A, B)",
        function=spgemm,
        arguments=(factors[:2], options),
        ours=method("spectile", ours, functools.partial(check, ours=True), limit),
        rivals=_rivals(factors, dtype, check, limit, place),
        asked=limit,
        check="exact" if len(each) <= WHOLE else "probes",
        result_bytes=total * (4 + dtype.itemsize),
        work=lambda: {
            "rows": factors[0].shape[0], "factors": sum(x.nnz for x in factors[:2]), "products": total, **seen,
        },
    )  # fmt: skip


def _chained(multiply: Callable[[Any, Any], Any], factors: tuple[Any, ...], place: Place) -> Callable[[], Any]:
    """Return a call that multiplies factors from the left, and waits for the result."""

    def run() -> Any:
        c = multiply(factors[0], factors[1])
        for factor in factors[2:]:
            c = multiply(c, factor)
        return place.wait(c)

    return run


def _checked(
    factors: tuple[Any, ...], each: Any, dtype: np.dtype[Any], numbers: np.random.Generator, place: Place
) -> tuple[Callable[..., dict[str, float]], dict[str, float]]:
    """Return the check of a product, and what it saw of it: errors are in units of their bounds."""
    xp, boolean = place.xp, dtype.kind == "b"
    unit = float(np.finfo(np.float32 if boolean else dtype).eps)
    count = len(each)
    if count <= WHOLE:
        rows = np.arange(count)
    else:
        longest = place.on_host(xp.argsort(each)[-LONGEST:])
        rows = np.unique(np.concatenate([numbers.integers(0, count, DRAWN), longest]))
    wide = [_host_rows(factors[0], rows, place), *(place.on_host(x).astype(np.float64) for x in factors[1:])]
    exact, sums = wide[0], abs(wide[0])
    for factor in wide[1:]:
        exact, sums = exact @ factor, sums @ abs(factor)
    del wide
    exact.sort_indices()
    sums.sort_indices()
    terms = float(sum(place.on_host(xp.diff(x.indptr).max()) for x in factors[:-1])) + 4
    bound = terms * unit
    x = place.rng(numbers).standard_normal(factors[-1].shape[1])
    image, sizes = x, xp.abs(x)
    for factor in reversed(factors):
        image, sizes = _acts(factor, image), _acts(abs(factor) if not boolean else factor, sizes)
    seen: dict[str, float] = {}

    wrong = {"error": float("nan")}

    def check(c: Any, ours: bool = False) -> dict[str, float]:
        c = c if hasattr(c, "indptr") else c.tocsr()
        seen["nnz"] = float(c.nnz)
        pointer = xp.asarray(c.indptr)
        whole = c.shape == (count, factors[-1].shape[1]) and int(pointer[-1]) == c.nnz
        if not (whole and bool((xp.diff(pointer) >= 0).all())):
            return wrong
        if c.nnz and not 0 <= int(c.indices.min()) <= int(c.indices.max()) < c.shape[1]:
            return wrong
        found = _host_rows(c, rows, place)
        if not ours:
            found.sort_indices()
        if not all(np.array_equal(getattr(found, part), getattr(exact, part)) for part in ("indptr", "indices")):
            cancelled = None if ours else _with_cancelled(found, exact)
            if cancelled is None:
                return wrong
            found = cancelled
        if boolean:
            return {"error": 0.0 if bool((found.data == 1).all()) else float("nan")}
        entries = float((np.abs(found.data - exact.data) / (bound * sums.data)).max(initial=0))
        moved = xp.abs(_acts(c, x) - image)
        # Acting on a vector rounds, too, once for each entry of a row.
        slack = 4 * (bound + unit * float(xp.diff(pointer).max()) * (unit < 1e-12))
        action = float((moved / xp.where(sizes > 0, slack * sizes, 1)).max())
        # NaN in one must not be lost in the maximum.
        return {"error": entries + action if np.isnan(entries + action) else max(entries, action)}

    return check, seen


def _with_cancelled(found: Any, exact: Any) -> Any:
    """Return `found` with entries 0 where it leaves out what `exact` holds; None where it holds anything else.

    SciPy and GraphBLAS keep what cancels, cuSPARSE may not; an entry that is missing counts as 0 and is judged so.
    """

    def places(m: Any) -> np.ndarray:
        return np.repeat(np.arange(m.shape[0], dtype=np.int64), np.diff(m.indptr)) * m.shape[1] + m.indices

    theirs, all_ = places(found), places(exact)
    at = np.searchsorted(all_, theirs)
    if len(theirs) >= len(all_) or not (all_[np.minimum(at, len(all_) - 1)] == theirs).all():
        return None
    data = np.zeros(len(all_))
    data[at] = found.data
    return type(exact)((data, exact.indices, exact.indptr), shape=exact.shape)


def _acts(matrix: Any, x: Any) -> Any:
    """Return the matrix times a float64 vector, in float64."""
    return matrix.astype(np.float64) @ x


def _host_rows(matrix: Any, rows: np.ndarray, place: Place) -> Any:
    """Return some rows of a matrix in the host's memory, float64."""
    from scipy.sparse import csr_matrix

    xp = place.xp
    if len(rows) == matrix.shape[0]:
        return csr_matrix(place.on_host(matrix)).astype(np.float64)
    starts, ends = (place.on_host(xp.asarray(matrix.indptr)[xp.asarray(rows + shift)]) for shift in (0, 1))
    data = [place.on_host(matrix.data[first:last]) for first, last in zip(starts, ends, strict=True)]
    indices = [place.on_host(matrix.indices[first:last]) for first, last in zip(starts, ends, strict=True)]
    pointer = np.concatenate([[0], np.cumsum(ends - starts)])
    values = np.concatenate([np.empty(0), *data]).astype(np.float64)
    return csr_matrix(
        (values, np.concatenate([np.empty(0, np.int64), *indices]), pointer), shape=(len(rows), matrix.shape[1])
    )


def _rivals(
    factors: tuple[Any, ...],
    dtype: np.dtype[Any],
    check: Callable[[Any], Mapping[str, float]],
    limit: float,
    place: Place,
) -> list[Method | Skipped]:
    boolean = dtype.kind == "b"
    # cuSPARSE and MKL have no Boolean products: their user multiplies ones, whose sums are not 0.
    numeric = tuple(x.astype(np.float32) for x in factors) if boolean else factors

    def ones(run: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            c = run()
            c.data = c.data != 0
            return c

        return call if boolean else run

    def of_numeric(multiply: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        return ones(_chained(multiply, numeric, place))

    if place.device == "cuda":
        return [
            method("cupyx", of_numeric(lambda a, b: a @ b), check, limit),
            method("cusparse", of_numeric(lambda a, b: vendor.spgemm(a, b)[0]), check, limit),
        ]

    def scipys(a: Any, b: Any) -> Any:
        c = a @ b
        c.sort_indices()
        return c

    found: list[Method | Skipped] = [method("scipy", _chained(scipys, factors, place), check, limit)]
    if version("sparse-dot-mkl"):
        mkl = importlib.import_module("sparse_dot_mkl").dot_product_mkl
        found.append(method("mkl", of_numeric(lambda a, b: mkl(a, b, reorder_output=True)), check, limit))
    else:
        found.append(absent("mkl", "sparse-dot-mkl"))
    if version("python-graphblas"):
        found.append(method("graphblas", _graphblas(factors, dtype), check, limit))
    else:
        found.append(absent("graphblas", "python-graphblas"))
    return found


def _graphblas(factors: tuple[Any, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
    """Return the product by SuiteSparse:GraphBLAS of matrices that it holds, out to sorted CSR arrays."""
    gb = importlib.import_module("graphblas")
    from scipy.sparse import csr_matrix

    held = [gb.Matrix.from_csr(x.indptr, x.indices, x.data, ncols=x.shape[1]) for x in factors]
    ring = gb.semiring.lor_land if dtype.kind == "b" else gb.semiring.plus_times

    def run() -> Any:
        c = held[0].mxm(held[1], ring).new()
        for factor in held[2:]:
            c = c.mxm(factor, ring).new()
        indptr, indices, data = c.to_csr(sort=True)
        return csr_matrix((data, indices, indptr), shape=c.shape)

    return run
