"""Sparse products with options, by blocks, with dense and with third factors, and of very many columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile import tsparse
from tests.random.calls import Fault, Refused, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.memory import LAYOUTS, Place, host, lay, numbers
from tests.random.tsparse import (
    DTYPES,
    SIZES,
    Sparse,
    _allowed,
    _kinds,
    _may_refuse,
    _narrow,
    _pair,
    _unchanged,
    sparse,
)

SEMIRINGS = ("plus_times",) * 4 + ("min_plus", "max_plus", "max_min", "or_and", "any_pair", "plus_pair")
VALUED = {"or_and": "bool", "any_pair": "bool", "plus_pair": "int64"}
NUMBERS = (1, 1, 1, -0.5, 0, 3, 1e-30, 2 - 1j, 1e300, 1e-300, 2**70)


def spgemm_options(draw: Draw, place: Place) -> None:
    """Products over a semiring, under a mask, added to C; the same by blocks, cut to the largest, in any format."""
    a, b = _pair(draw, place)
    m, n = a.exact.shape[0], b.exact.shape[1]
    ring = draw("semiring", SEMIRINGS)
    options: dict[str, Any] = {"backend": place.backend} | ({"semiring": ring} if ring != "plus_times" else {})
    mask = sparse(draw, "mask", (m, n), draw("dtype of mask", DTYPES), place) if draw("mask", [0, 0, 1]) else None
    if mask is not None:
        options |= {"mask": mask.matrix} | ({"complement": True} if draw("complement", [False, True]) else {})
    alpha, beta = draw("alpha", NUMBERS), draw("beta", (0, 0, *NUMBERS))
    options |= {"alpha": alpha} if alpha != 1 else {}
    added = None
    if beta:
        added = sparse(draw, "C", (m, n), draw("dtype of C", [None] * 4 + list(DTYPES)) or a.matrix.dtype, place)
        options |= {"beta": beta, "C": added.matrix}
    precision = draw("precision", [None] * 4 + ["float64", "float32", "tf32", "float16"])
    options |= {"precision": precision} if precision else {}
    unchanged = _unchanged(*(one for one in (a, b, mask, added) if one is not None))
    whole = call(draw, tsparse.spgemm, a.matrix, b.matrix, **options)
    unchanged.check()
    if isinstance(whole, Refused):
        if not _options_refused(whole, a, b, (mask, added), options):
            must(whole)
        return
    _check_whole(whole, a, b, mask, added, options)
    _variants(draw, place, whole, a, b, options)
    unchanged.check()


def _options_refused(refused: Refused, a: Sparse, b: Sparse, others: Any, options: dict[str, Any]) -> bool:
    """Return whether options contradict each other or the factors, or numbers are beyond their types."""
    kind, ring, precision = _kinds(a, b), options.get("semiring", "plus_times"), options.get("precision")
    dtypes = [np.dtype(x.matrix.dtype) for x in (a, b)]
    scaled = "alpha" in options or "C" in options
    if ring != "plus_times":
        if scaled or (ring in VALUED and precision) or precision in ("tf32", "float16"):
            return True
        if ring not in VALUED and any(dtype.kind in "bc" for dtype in dtypes):
            return True
    if scaled and precision is None and kind in ("integer", "bool"):
        return True
    if scaled and kind == "bool":
        return True
    added = others[1]
    complex_ = any(np.iscomplexobj(options.get(name, 0)) for name in ("alpha", "beta"))
    complex_ |= added is not None and np.dtype(added.matrix.dtype).kind == "c"
    if complex_ and kind != "complex":
        return True
    if any(np.dtype(x.matrix.dtype) == np.longdouble for x in (a, b, *others) if x is not None):
        return True
    top = 3e38 if precision in ("float32", "tf32", "float16") or _narrow(a, b) else 1e308
    if added is not None and float(np.max(added.sizes, initial=0)) > top / 4:
        return True
    if any(abs(options.get(name, 0)) > top for name in ("alpha", "beta")):
        return True
    if any(x.duplicates and float(np.max(x.sizes, initial=0)) > top / 4 for x in (a, b)):
        return True
    if ring in ("min_plus", "max_plus", "max_min") and any(float(np.max(x.sizes, initial=0)) > top / 4 for x in (a, b)):
        return True
    if ring in ("min_plus", "max_plus", "max_min") and kind == "integer":
        return max(float(np.max(x.sizes, initial=0)) for x in (a, b)) >= 2**29
    return _may_refuse(refused, a, b, options)


def _check_whole(
    c: Any, a: Sparse, b: Sparse, mask: Sparse | None, added: Sparse | None, options: dict[str, Any]
) -> None:
    """Check a product over a semiring in CSR, entry by entry."""
    m, n = a.exact.shape[0], b.exact.shape[1]
    ring, precision = options.get("semiring", "plus_times"), options.get("precision")
    counts = a.stored.astype(np.float64) @ b.stored.astype(np.float64)
    through = np.ones((m, n), bool)
    if mask is not None:
        through = (mask.exact != 0) != options.get("complement", False)
    pattern = (counts > 0) & through
    if added is not None:
        pattern |= added.stored & through
    indptr, indices, data = (host(x) for x in (c.indptr, c.indices, c.data))
    rows = np.repeat(np.arange(m), np.diff(indptr))
    holds(c.format == "csr" and c.shape == (m, n), f"C is {c.format} of shape {c.shape}")
    holds((np.diff(rows.astype(np.int64) * n + indices) > 0).all(), "C's columns do not ascend")
    stored = np.zeros((m, n), bool)
    stored[rows, indices] = True
    holds(np.array_equal(stored, pattern), f"C stores {stored.sum()} entries, its pattern has {pattern.sum()}")
    wanted, allowed = _entries(a, b, added, options, counts)
    if options["backend"] == "cuda":  # CuPy takes numbers of single precision below 2^-126 for 0
        most = [float(np.max(one.sizes, initial=0)) for one in (a, b)]
        scales = 1 + abs(options.get("alpha", 1)) + abs(options.get("beta", 0))
        allowed = allowed + 2.0**-125 * (1 + sum(most)) * (counts.max(initial=0) + 2) * scales
    if ring in VALUED:
        value = "float64" if VALUED[ring] == "int64" and options["backend"] == "cuda" else VALUED[ring]
        holds(c.dtype == value, f"{ring} gives {c.dtype}")
    found, exact, allowed = data, wanted[rows, indices], allowed[rows, indices]
    if c.dtype.kind in "biu":
        holds((found.astype(object) == exact.astype(object)).all(), f"{ring} of integers: {found[:3]}, not {exact[:3]}")
        return
    finite = np.isfinite(found)
    with np.errstate(all="ignore"):
        size = np.abs(exact).astype(float)
        error = np.abs(np.where(finite, found - exact, 0)).astype(np.longdouble)
    beyond = float(np.finfo(c.dtype).max) / 8
    # Products are made before alpha is met.
    before = np.minimum((a.sizes.astype(np.longdouble) @ b.sizes.astype(np.longdouble))[rows, indices], 1e308)
    scale = (
        np.maximum(size, before.astype(float)) if ring == "plus_times" else np.maximum(size, 2 * allowed.astype(float))
    )
    off = np.where(finite, error > allowed, scale < beyond)
    if off.any():
        at = int(np.flatnonzero(off)[0])
        raise Fault(f"{ring} {precision}: {found[at]:.8g}, not {exact[at]:.8g}, allowed {allowed[at]:.2g}")


def _entries(
    a: Sparse, b: Sparse, added: Sparse | None, options: dict[str, Any], counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return all entries of a product over a semiring, exactly, and what rounding may change them by."""
    ring, precision = options.get("semiring", "plus_times"), options.get("precision")
    nothing = np.zeros(counts.shape, np.longdouble)
    if ring in ("any_pair", "plus_pair"):
        return (counts > 0 if ring == "any_pair" else counts), nothing
    if ring == "or_and":
        return ((a.exact != 0).astype(float) @ (b.exact != 0).astype(float)) > 0, nothing
    kind = _kinds(a, b)
    integers = kind in ("integer", "bool") and precision is None
    single = precision not in (None, "float64") or (precision is None and _narrow(a, b))
    unit, least = (2.0**-24, 2.0**-149) if single else (2.0**-53, 2.0**-1074)
    if ring != "plus_times":
        return _extremes(ring, a, b, unit, least, integers)
    exact, sizes = a.exact @ b.exact, a.sizes @ b.sizes
    if kind == "bool" and precision is None:
        return exact > 0, nothing
    if integers:
        return exact, nothing
    sizes = sizes.astype(np.longdouble)
    allowed = _allowed(a, b, precision or ("float32" if single else "float64"), sizes)
    alpha, beta = options.get("alpha", 1), options.get("beta", 0)
    wide = np.clongdouble if kind == "complex" else np.longdouble
    wanted = alpha * exact.astype(wide)
    # Sums, alpha and the product with it are rounded.
    allowed = abs(alpha) * allowed + 8 * unit * abs(alpha) * sizes + 16 * least
    if added is not None:
        wanted = wanted + beta * added.exact.astype(wide)
        allowed = allowed + 16 * unit * abs(beta) * added.sizes.astype(np.longdouble) + 16 * least * (1 + abs(beta))
    return wanted, allowed


def _extremes(
    ring: str, a: Sparse, b: Sparse, unit: float, least: float, integers: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least or largest sums, or the largest of the smaller ones, over the k where both have entries."""
    better, worst = (np.minimum, np.inf) if ring == "min_plus" else (np.maximum, -np.inf)
    shape = a.exact.shape[0], b.exact.shape[1]
    found, size = np.full(shape, worst, np.longdouble), np.zeros(shape, np.longdouble)
    left, right = a.exact.astype(np.longdouble), b.exact.astype(np.longdouble)
    for k in range(a.exact.shape[1]):
        one, two = left[:, k, None], right[None, k]
        both = a.stored[:, k, None] & b.stored[None, k]
        value = np.minimum(one, two) if ring == "max_min" else one + two
        found = np.where(both, better(found, value), found)
        size = np.maximum(size, np.where(both, np.abs(one) + np.abs(two), 0))
    # Duplicates are summed before.
    repeated = 1 + a.duplicates + b.duplicates
    return found, np.zeros_like(size) if integers else 4 * repeated * (unit * size + least)


def _csr(c: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(host(getattr(c, name)) for name in ("indptr", "indices", "data"))  # type: ignore[return-value]


def _variants(draw: Draw, place: Place, whole: Any, a: Sparse, b: Sparse, options: dict[str, Any]) -> None:
    """The same product in another way has the same bits."""
    way = draw("way", ["format", "prune", "top_n", "both", "blocks", "limit", "devices", "spelling"])
    if way == "format":
        _in_format(draw, place, whole, a, b, options)
        return
    more: dict[str, Any] = {}
    if way in ("prune", "both"):
        sizes = np.unique(np.abs(host(whole.data)).astype(np.float64))
        sizes = sizes[np.isfinite(sizes)]
        more["prune"] = draw("prune", [0.0, 1e300, *(float(x) for x in sizes[:: max(1, len(sizes) // 5)])])
    if way in ("top_n", "both"):
        more["top_n"] = draw("top_n", (1, 2, 3, 10, 2**31))
    if way == "limit":
        more["memory_limit"] = draw("memory_limit", (10**10, 10**6, 30_000))
    if way == "devices" and place.on_gpu:
        more["devices"] = draw("devices", (1, [0]))
    if way == "spelling" and "precision" in options:
        more["precision"] = {"float64": "fp64", "float32": "fp32", "float16": "fp16"}.get(options["precision"], "tf32")
    options = options | more
    found = (
        _by_blocks(draw, a, b, options)
        if way == "blocks"
        else call(draw, tsparse.spgemm, a.matrix, b.matrix, **options)
    )
    if isinstance(found, Refused):
        limited = isinstance(found.error, MemoryError) and more.get("memory_limit", 10**10) < 10**8
        holds(limited, f"a valid call is refused: {found}")
        return
    if place.on_gpu and way == "devices":
        return same_bits(found, whole, "one device that is named")
    same_bits(found, _kept(whole, more.get("prune"), more.get("top_n")), f"the product with {more or way}")


def _kept(whole: Any, prune: float | None, top_n: int | None) -> tuple[Any, ...]:
    """Return the entries of a product that are not below a size, and of each row the largest."""
    indptr, indices, data = _csr(whole)
    kept, rows = np.ones(len(data), bool), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if prune is not None:
        kept &= ~(np.abs(data).astype(np.longdouble) < prune)
    if top_n is not None:
        for row in range(len(indptr) - 1):
            mine = np.flatnonzero(kept & (rows == row))
            size = np.abs(data[mine]) if data.dtype.kind == "c" else data[mine].astype(object)
            order = sorted(range(len(mine)), key=lambda k, size=size: -size[k])  # type: ignore[misc]
            kept[mine[order[top_n:]]] = False
    pointer = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(indptr) - 1))])
    return pointer.astype(indptr.dtype), indices[kept], data[kept]


def _by_blocks(draw: Draw, a: Sparse, b: Sparse, options: dict[str, Any]) -> Any:
    """Return a product whose rows are made block by block."""
    limit = draw("memory_limit of blocks", (None, 10**6, 20_000))
    options = options | ({"memory_limit": limit} if limit else {})
    made = call(draw, lambda **given: list(tsparse.row_blocks(a.matrix, b.matrix, **given)), **options)
    draw.called.setdefault("tsparse.row_blocks", set()).update(("A", "B", *options))
    if isinstance(made, Refused):
        if limit and isinstance(made.error, MemoryError):
            return call(draw, tsparse.spgemm, a.matrix, b.matrix, **options | {"memory_limit": None})
        return made
    ends = [0, *(rows.stop for rows, _ in made)]
    holds([rows.start for rows, _ in made] == ends[:-1] and ends[-1] == a.exact.shape[0], f"blocks end at {ends}")
    parts = [_csr(part) for _, part in made]
    if not parts:
        return np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0)
    starts = np.cumsum([0, *(len(part[1]) for part in parts)])
    pointer = np.concatenate(
        [parts[0][0][:1], *(part[0][1:] + start for part, start in zip(parts, starts, strict=False))]
    )
    return pointer.astype(parts[0][0].dtype), *(np.concatenate([part[k] for part in parts]) for k in (1, 2))


def _in_format(draw: Draw, place: Place, whole: Any, a: Sparse, b: Sparse, options: dict[str, Any]) -> None:
    form = draw("format of C", ("csc", "coo", "dense", "bsr"))
    found = call(draw, tsparse.spgemm, a.matrix, b.matrix, format=form, **options)
    if isinstance(found, Refused):
        holds(form == "bsr" and place.on_gpu, f"a valid call is refused: {found}")
        return
    indptr, indices, data = _csr(whole)
    rows = np.repeat(np.arange(whole.shape[0]), np.diff(indptr))
    if form == "dense":
        missing: Any = 0
        ring = options.get("semiring", "plus_times")
        if ring in ("min_plus", "max_plus", "max_min"):
            least = ring == "min_plus"
            info = np.iinfo(data.dtype) if data.dtype.kind == "i" else None
            missing = (info.max if least else info.min) if info else np.inf if least else -np.inf
        dense = np.full(whole.shape, missing, data.dtype)
        dense[rows, indices] = data
        same_bits(found, dense, "the dense product")
        return
    holds(found.format == form and found.shape == whole.shape, f"C is {found.format}, not {form}")
    coo = (found.get() if place.on_gpu else found).tocoo()
    order = np.lexsort((coo.col, coo.row))
    there = coo.row[order], coo.col[order], coo.data[order]
    if form == "bsr":  # whose blocks hold zeros that CSR has not
        dense = np.zeros(whole.shape, data.dtype)
        dense[rows, indices] = data
        other = np.zeros(whole.shape, data.dtype)
        other[there[0], there[1]] = there[2]
        same_bits(other, dense, "the product in blocks")
        return
    holds(
        all(np.array_equal(x, y) for x, y in zip(there[:2], (rows, indices), strict=True)), f"{form} has other places"
    )
    same_bits(there[2], data, f"the product in {form}")


def spmm(draw: Draw, place: Place) -> None:
    """A sparse matrix times a dense block in any layout."""
    m, k, r = draw("m", SIZES), draw("k", SIZES), draw("r", (None, 1, 2, 3, 0, 8, 17, 33, 70))
    a = sparse(draw, "A", (m, k), draw("dtype of A", DTYPES), place)
    dtype = np.dtype(draw("dtype of X", [None] * 4 + list(DTYPES)) or a.matrix.dtype)
    values = numbers(draw, "X", (k,) if r is None else (k, r), dtype)
    if place.on_gpu:
        values = values.astype(dtype.newbyteorder("=") if dtype.char != "g" else "float64")
    x = lay(values, draw("layout of X", LAYOUTS), place)
    unchanged = _unchanged(a, Sparse(None, {"X": x}, a.exact, a.sizes, a.stored, True, 0))
    found = call(draw, tsparse.spmm, a.matrix, x.array)
    unchanged.check()
    kind = np.result_type(a.matrix.dtype, x.array.dtype)
    wide = host(x.array).astype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    exact, sizes = a.exact.astype(np.clongdouble if kind.kind == "c" else np.longdouble) @ wide, a.sizes @ np.abs(wide)
    if isinstance(found, Refused):
        beyond = float(np.max(a.sizes, initial=0)) > float(np.finfo(kind).max) / 4 if kind.kind in "fc" else True
        holds(kind.char not in "fdFD" or beyond or not np.isfinite(wide.astype(complex)).all(), f"refused: {found}")
        return
    found = host(found)
    holds(kind.char in "fdFD" and found.dtype == kind and found.shape == exact.shape, f"{found.dtype} {found.shape}")
    unit = float(np.finfo(kind).eps)
    least = float(np.finfo(kind).smallest_subnormal) * 4
    # CuPy takes numbers of single precision below 2^-126 for 0.
    least = 2.0**-126 if (place.on_gpu and "float32" in (dtype.name, kind.name)) or kind.char == "F" else least
    tops = max(1.0, float(np.max(a.sizes, initial=0)), float(np.abs(wide).max(initial=0)))
    allowed = (k + 8 + a.duplicates) * (unit * sizes + least) + (k + 1) * least * (tops if kind.char in "fF" else 1)
    finite = np.isfinite(found) | (sizes < float(np.finfo(kind).max) / 8)
    with np.errstate(all="ignore"):
        off = finite & ~(np.abs(found - exact) <= allowed)
    holds(not off.any(), f"A X holds {found[off][:1]}, not {exact[off][:1]}")
    same_bits(found, call(draw, tsparse.spmm, a.matrix, x.array))


def galerkin(draw: Draw, place: Place) -> None:
    """Three matrices of the host, and the same product for other values of the second."""
    on_host = Place()
    sizes = [draw(name, SIZES[:14]) for name in ("m", "k", "l", "n")]
    dtype = draw("dtype", ("float64", "float32", "complex128", "complex64", "int32", "longdouble", ">f8"))
    R, A, P = (sparse(draw, name, (sizes[i], sizes[i + 1]), dtype, on_host) for i, name in enumerate("RAP"))
    limit = draw("memory_limit", (None, None, 10**6, 30_000))
    unchanged = _unchanged(R, A, P)
    product = call(draw, tsparse.galerkin, R.matrix, A.matrix, P.matrix, memory_limit=limit)
    unchanged.check()
    largest = max(float(np.max(x.sizes, initial=0)) for x in (R, A, P))
    whole = R.sizes.astype(np.longdouble) @ A.sizes.astype(np.longdouble) @ P.sizes.astype(np.longdouble)
    top = 3e38 if dtype in ("float32", "complex64") else 1e308
    beyond = largest > top / 8 or float(np.minimum(whole, np.longdouble(1e4000)).max(initial=0)) > top / 8
    if isinstance(product, Refused):
        limited = limit is not None and isinstance(product.error, MemoryError)
        holds(limited or beyond or dtype in ("int32", "longdouble"), f"a valid call is refused: {product}")
        return
    if beyond:
        return
    kind = np.dtype("float64" if dtype == "longdouble" else dtype).newbyteorder("=")
    unit, least = float(np.finfo(kind).eps), float(np.finfo(kind).smallest_subnormal)
    middle = R.sizes @ A.sizes
    slack = 4 * least * (A.exact.shape[0] + 4) * (1 + float(P.sizes.max(initial=0)) * P.exact.shape[0])

    def check(C: Any, factor: int) -> None:
        exact = factor * (R.exact @ A.exact @ P.exact)
        size = (middle @ P.sizes).astype(np.longdouble)
        count = sum(sizes) + 20
        off = np.abs(C.toarray() - exact) > abs(factor) * (count * unit * size + count * slack)
        holds(C.dtype == kind and not off.any(), f"R A P of {C.dtype} is off at {np.argwhere(off)[:1]}")

    check(product.C, 1)
    if A.canonical:
        check(must(call(draw, product.numeric, A.matrix * np.array(2, kind))), 2)
    same_bits(product.C, tsparse.galerkin(R.matrix, A.matrix, P.matrix).C, "no memory limit")


def wide_product(draw: Draw, place: Place) -> None:
    """Products with 2**31 columns and more, or about as many."""
    m, k = draw("m", (1, 2, 5)), draw("k", (1, 2, 5))
    n = 2**31 + draw("beyond", (-2, -1, 0, 1, 10, 2**31, 2**33))
    rng, dtype = draw.rng("B"), draw("dtype", ("float64", "float32", "bool", "complex128"))
    dtype = "float64" if place.on_gpu and dtype == "complex128" else dtype
    a = sp.csr_array(np.where(rng.random((m, k)) < 0.7, rng.integers(1, 9, (m, k)), 0).astype(dtype))
    ends = np.array([0, 1, n // 2, n - 2, n - 1])
    columns = [np.sort(rng.choice(ends, int(rng.integers(0, 4)), replace=False)) for _ in range(k)]
    indptr = np.concatenate([[0], np.cumsum([len(x) for x in columns])]).astype(np.int64)
    indices = np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64)
    b = sp.csr_array((rng.integers(1, 9, len(indices)).astype(dtype), indices, indptr), shape=(k, n))
    wanted: dict[tuple[int, int], Any] = {}
    dense = a.toarray()
    for i, row in np.ndindex(m, k):
        for at in range(indptr[row], indptr[row + 1]) if dense[i, row] else ():
            key = i, int(indices[at])
            wanted[key] = wanted.get(key, 0) + dense[i, row] * b.data[at]
    way = draw("function", ("spgemm", "symbolic", "blocks", "limit", "mask", "top_n", "min_plus", "error_bound"))
    options: dict[str, Any] = {"backend": place.backend}
    if way == "error_bound":
        bound = must(call(draw, tsparse.error_bound, a, b, prune=0.5))
        holds(set(_places(bound)) == set(wanted), "the bound is of other places")
        return
    if way == "symbolic":
        pattern = must(call(draw, tsparse.symbolic, a, b, **options))
        holds((host(pattern.indices) >= 0).all() and pattern.nnz == len(wanted), "the pattern is wrong")
        found = must(call(draw, pattern.multiply, a, b))
    elif way == "blocks":
        found = must(call(draw, lambda: next(iter(tsparse.row_blocks(a, b, **options)))[1]))
    else:
        options |= {"memory_limit": 10**8} if way == "limit" else {"top_n": 2} if way == "top_n" else {}
        options |= {"semiring": "min_plus"} if way == "min_plus" and dtype.startswith("float") else {}
        options |= {"mask": b[[0] * m]} if way == "mask" else {}
        found = call(draw, tsparse.spgemm, a, b, **options)
        if isinstance(found, Refused) and place.on_gpu and "beyond 32 bits" in str(found):
            return
        must(found)
    places = _places(found)
    if way == "mask":
        wanted = {key: value for key, value in wanted.items() if key[1] in columns[0]}
    if way in ("top_n", "min_plus"):
        holds(set(places) <= set(wanted), "entries are where none belong")
        return
    holds(set(places) == set(wanted), f"entries at {sorted(places)[:3]}, not at {sorted(wanted)[:3]}")
    holds(
        all(places[key] == (value > 0 if dtype == "bool" else value) for key, value in wanted.items()),
        "values are wrong",
    )
    holds(found.shape == (m, n) and host(found.indices).dtype.itemsize >= (8 if n >= 2**31 else 4), "index type")


def _places(c: Any) -> dict[tuple[int, int], Any]:
    indptr, indices, data = _csr(c)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return {(int(i), int(j)): value for i, j, value in zip(rows, indices, data, strict=True)}
