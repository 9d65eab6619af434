"""Sparse products' calls, held against sums in longdouble or, of integers, in Python's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile import tsparse
from tests.random.calls import Fault, Refused, Unchanged, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.memory import Laid, Place, host, lay, numbers

SIZES = (1, 2, 3, 0, 5, 7, 8, 9, 16, 17, 33, 47, 64, 65, 97, 130)
DTYPES = (
    "float64",
    "float32",
    "float64",
    "float32",
    "float16",
    ">f8",
    ">f4",
    "int64",
    "int32",
    "int8",
    "uint64",
    "uint8",
    "bool",
    "longdouble",
    "complex128",
    "complex64",
)
FORMATS = ("csr", "csr", "csr", "csc", "coo", "bsr", "dia", "lil", "dok")
ON_GPU = ("csr", "csr", "csr", "csc", "coo")
STRUCTURES = ("uniform", "uniform", "diagonal", "hub", "empty rows", "empty", "full", "one")
VECTORS = ("C", "C", "gaps", "backwards", "shifted", "read-only", "odd address")
#: Of sums, and what rounding an input may change.
UNITS = {
    "float64": (2.0**-53, 0.0),
    "float32": (2.0**-24, 2.0**-24),
    "tf32": (2.0**-23, 2.0**-11),
    "float16": (2.0**-23, 2.0**-11),
}


@dataclass
class Sparse:
    """A factor, the memory that its arrays lie in, and what it is in exact arithmetic."""

    matrix: Any
    laid: dict[str, Laid]
    exact: np.ndarray  # of longdouble or Python's integers
    sizes: np.ndarray  # sums of absolute values
    stored: np.ndarray  # of bool
    canonical: bool
    duplicates: int


def sparse(draw: Draw, name: str, shape: tuple[int, int], dtype: Any, place: Place, *, plain: bool = False) -> Sparse:
    """Return a random factor of any format, structure, order of entries, type of indices and layout."""
    rng, dtype = draw.rng(f"pattern of {name}"), np.dtype(dtype)
    m, n = shape
    rows, columns = _pattern(draw(f"structure of {name}", STRUCTURES), m, n, rng)
    repeated = 0
    if len(rows) and not plain and draw.rarely(f"duplicates of {name}", 4):
        again = rng.integers(0, len(rows), max(1, len(rows) // 3))
        rows, columns, repeated = np.append(rows, rows[again]), np.append(columns, columns[again]), 6
    order = np.lexsort((columns, rows))
    unsorted = not plain and draw.rarely(f"unsorted {name}", 4)
    if unsorted:
        order = np.lexsort((rng.random(len(rows)), rows))
    rows, columns = rows[order], columns[order]
    values = numbers(draw, name, (len(rows),), dtype)
    if draw.rarely(f"stored zeros of {name}", 6) and len(values):
        values[::3] = 0
    rare = dtype == np.float16 or not dtype.isnative
    # SciPy makes no such matrices, and takes those whose values are.
    form = "csr" if plain or rare else draw(f"format of {name}", ON_GPU if place.on_gpu else FORMATS)
    wide = draw(f"indices of {name}", [np.int32, np.int32, np.int64])
    layout = "C" if place.on_gpu else draw(f"layout of {name}", VECTORS)
    kind = "matrix" if place.on_gpu else draw(f"kind of sparse {name}", ["array", "matrix"])
    if place.on_gpu and (dtype.kind in "iu" or not dtype.isnative or dtype == np.float16):
        dtype = np.dtype(
            "float64"
        )  # which are all that cupyx stores beside single precision, Booleans and complex numbers
        values = values.astype(dtype)
    exact, sizes, stored = _exact(shape, rows, columns, values)
    laid: dict[str, Laid] = {}

    def vector(what: str, array: np.ndarray) -> Any:
        laid[f"{what} of {name}"] = one = lay(array, layout, place)
        return one.array

    major, minor, length = (rows, columns, m) if form != "csc" else (columns, rows, n)
    if form in ("csr", "csc", "coo"):
        if form == "csc":
            again = np.argsort(major, kind="stable") if unsorted else np.lexsort((minor, major))
            major, minor, values = major[again], minor[again], values[again]
        data = vector("data", values)
        if form == "coo":
            pair = vector("rows", rows.astype(wide)), vector("columns", columns.astype(wide))
            matrix = getattr(place.sparse, f"coo_{kind}")(shape)
            if kind == "array":
                matrix.coords = pair
            else:
                matrix.row, matrix.col = pair
            matrix.data = data
            matrix.has_canonical_format = False
        else:
            indptr = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=length))]).astype(wide)
            matrix = getattr(place.sparse, f"{form}_{kind}")(shape)
            matrix.data, matrix.indices = data, vector("indices", minor.astype(wide))
            matrix.indptr = vector("indptr", indptr)
    else:
        clean = (
            sp.csr_array((values, (rows, columns)), shape=shape)
            if not repeated
            else sp.csr_array(_summed(values, rows, columns, shape))
        )
        if form == "bsr":
            clean = clean.tobsr((2 if m % 2 == 0 and m else 1, 2 if n % 2 == 0 and n else 1))
        with np.errstate(all="ignore"):
            matrix = clean.asformat(form)
        if kind == "matrix":
            matrix = getattr(sp, f"{form}_matrix")(matrix)
        exact, sizes, stored = _exact_of(matrix, shape, dtype)
    return Sparse(matrix, laid, exact, sizes, stored, form == "csr" and not repeated and not unsorted, repeated)


def _summed(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    with np.errstate(all="ignore"):
        _, first = np.unique(rows * shape[1] + columns, return_index=True)
    return sp.coo_array((values[first], (rows[first], columns[first])), shape=shape)


def _pattern(structure: str, m: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    mask = np.zeros((m, n), bool)
    if structure == "uniform":
        mask = rng.random((m, n)) < rng.choice([0.02, 0.1, 0.4])
    elif structure == "diagonal":
        mask = np.abs(np.subtract.outer(np.arange(m), np.arange(n))) <= 1
    elif structure == "hub" and m and n:
        mask = rng.random((m, n)) < 0.02
        mask[rng.integers(m)] = mask[:, rng.integers(n)] = True
    elif structure == "empty rows":
        mask = rng.random((m, n)) < 0.2
        mask[rng.random(m) < 0.7] = False
    elif structure == "full":
        mask[:] = True
    elif structure == "one" and m and n:
        mask[rng.integers(m), rng.integers(n)] = True
    rows, columns = np.nonzero(mask)
    return rows, columns


def _exact(
    shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    whole = values.dtype.kind in "biu"
    numbers_ = (
        np.array([int(v) for v in values], object)
        if whole
        else values.astype(np.clongdouble if values.dtype.kind == "c" else np.longdouble)
    )
    exact = np.zeros(shape, object if whole else numbers_.dtype)
    sizes = np.zeros(shape, object if whole else np.longdouble)
    np.add.at(exact, (rows, columns), numbers_)
    np.add.at(sizes, (rows, columns), np.abs(numbers_))
    if values.dtype.kind == "b":  # whose sums are Boolean too
        exact, sizes = np.minimum(exact, 1), np.minimum(sizes, 1)
    stored = np.zeros(shape, bool)
    stored[rows, columns] = True
    return exact, sizes, stored


def _exact_of(matrix: Any, shape: tuple[int, int], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a converted matrix holds; which zeros it stores is its format's business."""
    coo = matrix.tocoo()
    return _exact(shape, np.asarray(coo.row), np.asarray(coo.col), np.asarray(coo.data).astype(dtype))


def _pair(draw: Draw, place: Place, *, plain: bool = False) -> tuple[Sparse, Sparse]:
    m, k, n = draw("m", SIZES), draw("k", SIZES), draw("n", SIZES)
    dtype_a = draw("dtype of A", DTYPES)
    dtype_b = draw("dtype of B", [None] * 4 + list(DTYPES)) or dtype_a
    if not plain and draw.rarely("B is A", 6):
        a = sparse(draw, "A", (m, m), dtype_a, place)
        return a, a
    return sparse(draw, "A", (m, k), dtype_a, place, plain=plain), sparse(
        draw, "B", (k, n), dtype_b, place, plain=plain
    )


def _unchanged(*factors: Sparse) -> Unchanged:
    return Unchanged(**{name: laid for factor in factors for name, laid in factor.laid.items()})


def spgemm(draw: Draw, place: Place) -> None:
    """One product of factors of any format."""
    a, b = _pair(draw, place)
    keywords: dict[str, Any] = {"backend": place.backend}
    precision = draw("precision", [None, None, None, "float64", "float32", "tf32", "float16"])
    limit = draw("memory_limit", [None, None, None, 10**9, 10_000, 200])
    keywords |= {"precision": precision} if precision else {}
    keywords |= {"memory_limit": limit} if limit else {}
    unchanged = _unchanged(a, b)
    result = call(draw, tsparse.spgemm, a.matrix, b.matrix, **keywords)
    unchanged.check()
    if isinstance(result, Refused):
        if not _may_refuse(result, a, b, keywords):
            must(result)
        return
    _check(result, a, b, precision, place)
    again = call(draw, tsparse.spgemm, a.matrix, b.matrix, **keywords)
    same_bits(result, again)
    if limit:
        keywords.pop("memory_limit")
        same_bits(result, tsparse.spgemm(a.matrix, b.matrix, **keywords), "no memory limit")
    if place.backend == "cpu" and not draw("error_bound", [True, False]):
        bound = call(draw, tsparse.error_bound, a.matrix, b.matrix, precision=precision)
        if isinstance(bound, Refused) or _kinds(a, b) == "longdouble":
            return
        dense = bound.toarray().astype(np.longdouble)
        exact = _product(a, b)[0]
        if _kinds(a, b) == "bool" and precision is None:
            exact = exact > 0
        error = np.abs(_dense(result) - exact)
        off = error > dense * (1 + 1e-9)
        holds(
            not off.any() or not np.isfinite(_dense(result)[off].astype(float)).all(),
            f"error_bound {dense[off][:1]}, error {error[off][:1]}",
        )
        holds(
            np.array_equal(bound.indptr, result.indptr) and np.array_equal(bound.indices, result.indices),
            "the bound has another pattern",
        )


def _kinds(a: Sparse, b: Sparse) -> str:
    dtypes = [np.dtype(x.matrix.dtype) for x in (a, b)]
    if any(dtype.kind == "c" for dtype in dtypes):
        return "complex"
    if any(dtype.char == "g" for dtype in dtypes):
        return "longdouble"
    if all(dtype.kind == "b" for dtype in dtypes):
        return "bool"
    if all(dtype.kind in "biu" for dtype in dtypes):
        return "integer"
    return "real"


def _narrow(a: Sparse, b: Sparse) -> bool:
    return np.result_type(a.matrix.dtype, b.matrix.dtype) in (np.float16, np.float32, np.complex64)


def _may_refuse(refused: Refused, a: Sparse, b: Sparse, keywords: dict[str, Any]) -> bool:
    kind, precision = _kinds(a, b), keywords.get("precision")
    if any(np.dtype(x.matrix.dtype) == np.longdouble for x in (a, b)):
        return True
    if kind == "complex" and precision in ("tf32", "float16"):
        return True
    if isinstance(refused.error, MemoryError):
        return bool(keywords.get("memory_limit", 10**9) < 10**8)
    if any(x.duplicates and np.max(x.sizes) > np.finfo(np.float64).max for x in (a, b)):
        return True  # duplicates whose sum no float64 holds
    sizes = _product(a, b)[1]
    largest = float(sizes.max(initial=0))
    entries = max(float(np.max(x.sizes, initial=0)) for x in (a, b))
    if kind == "integer" and precision is None:
        narrow = all(np.can_cast(x.matrix.dtype, np.int32) for x in (a, b))
        most = 2**31 if narrow else 2**53 if keywords.get("backend") == "cuda" else 2**63
        return max(largest, entries) >= most * (1 - 2.0**-20)
    if precision == "float64":
        return False
    top = 3.4e38 / 2
    if precision == "float16":
        # Ranges of rows are judged by the call alone; a refusal names them.
        return "float16" in str(refused.error) or entries > top or largest > top
    if precision is None and not _narrow(a, b):
        return False
    return entries > top or largest > top


def _product(a: Sparse, b: Sparse) -> tuple[np.ndarray, np.ndarray]:
    """Return A B and |A| |B|."""
    return a.exact @ b.exact, a.sizes @ b.sizes


def _dense(c: Any) -> np.ndarray:
    dense = np.zeros(c.shape, np.clongdouble if c.dtype.kind == "c" else np.longdouble)
    rows = np.repeat(np.arange(c.shape[0]), np.diff(host(c.indptr)))
    dense[rows, host(c.indices)] = host(c.data)
    return dense


def _check(c: Any, a: Sparse, b: Sparse, precision: str | None, place: Place) -> None:
    kind = _kinds(a, b)
    m, n = a.exact.shape[0], b.exact.shape[1]
    holds(c.format == "csr" and c.shape == (m, n), f"C is {c.format} of shape {c.shape}, not csr of {(m, n)}")
    arrays = isinstance(a.matrix, sp.sparray) or isinstance(b.matrix, sp.sparray)
    if not place.on_gpu:
        holds(isinstance(c, sp.sparray) == arrays, f"C is a {type(c).__name__}")
    indptr, indices = host(c.indptr), host(c.indices)
    holds(c.has_canonical_format, "C is not said to be canonical")
    holds(
        indptr[0] == 0 and len(indptr) == m + 1 and indptr[-1] == len(indices) == len(c.data),
        "C's row pointer is wrong",
    )
    rows = np.repeat(np.arange(m), np.diff(indptr))
    keys = rows.astype(np.int64) * n + indices
    holds((np.diff(keys) > 0).all() and ((indices >= 0) & (indices < n)).all(), "C's columns do not ascend")
    stored = np.zeros((m, n), bool)
    stored[rows, indices] = True
    pattern = (a.stored.astype(np.float64) @ b.stored.astype(np.float64)) > 0
    holds(np.array_equal(stored, pattern), f"C stores {stored.sum()} entries, its pattern has {pattern.sum()}")
    exact, sizes = _product(a, b)
    found = _dense(c)
    if kind == "bool" and precision is None:
        holds(c.dtype == bool and np.array_equal(found != 0, exact.astype(float) != 0), "a Boolean product is wrong")
        return
    if kind == "integer" and precision is None:
        off = found != exact.astype(np.longdouble)
        narrow = all(np.can_cast(x.matrix.dtype, np.int32) for x in (a, b))
        holds(c.dtype == (np.int32 if narrow else np.int64), f"C of integers is {c.dtype}")
        holds(not off.any(), f"integers: {found[off][:1]}, not {exact[off][:1]}")
        return
    if precision is None:
        precision = "float32" if _narrow(a, b) or (kind == "bool") else "float64"
    wide, single = ("complex128", "complex64") if kind == "complex" else ("float64", "float32")
    holds(c.dtype == (wide if precision == "float64" else single), f"C is {c.dtype} for {precision}")
    exact, sizes = exact.astype(found.dtype), sizes.astype(np.longdouble)
    allowed = _allowed(a, b, precision, sizes)
    largest = float(np.finfo(c.dtype).max)
    finite = np.isfinite(found.astype(complex if kind == "complex" else float))
    overflow = ~finite & (sizes < largest / 4)
    holds(not overflow.any(), f"C holds {found[overflow][:1]}, not {exact[overflow][:1]}")
    error = np.where(finite, np.abs(found - exact), 0)
    off = error > allowed
    if off.any():
        at = tuple(int(i[0]) for i in np.nonzero(off))
        numbers_ = f"C{at} = {found[at]:.8g}, not {exact[at]:.8g}"
        raise Fault(f"{numbers_}: off by {error[at]:.2g}, allowed {allowed[at]:.2g}")


def _allowed(a: Sparse, b: Sparse, precision: str, sizes: np.ndarray) -> np.ndarray:
    """Return what rounding may change each entry of the product by."""
    unit, rounded = UNITS[precision]
    if precision == "float32" and _narrow(a, b) and not a.duplicates and not b.duplicates:
        rounded = 0.0
    count = (a.stored.astype(np.float64) @ b.stored.astype(np.float64)) + a.duplicates + b.duplicates + 3
    least = (2.0**-1074 if precision == "float64" else 2.0**-149) * (4 if _kinds(a, b) == "complex" else 1)
    if precision == "float32" and rounded:
        # Inputs that leave the range below are rounded to its grid.
        tops = max(float(a.sizes.max(initial=0)), float(b.sizes.max(initial=0)), 1.0)
        least *= 2 * tops
    if precision in ("tf32", "float16"):
        tops = max(float(a.sizes.max(initial=0)), float(b.sizes.max(initial=0)), 1.0)
        least = 2.0**-149 * (2 * tops + 1) if precision == "tf32" else 2.0**-149 * 4
    return (count * unit + 2.5 * rounded) * sizes + count * least


def symbolic(draw: Draw, place: Place) -> None:
    """A pattern that is kept, with other values on it."""
    a, b = _pair(draw, place, plain=bool(draw("canonical", [True, True, False])))
    unchanged = _unchanged(a, b)
    pattern = call(draw, tsparse.symbolic, a.matrix, b.matrix, backend=place.backend)
    unchanged.check()
    if isinstance(pattern, Refused):
        if not _may_refuse(pattern, a, b, {"precision": "float64"}):
            must(pattern)
        return
    holds(pattern.shape == (a.exact.shape[0], b.exact.shape[1]), f"the pattern has shape {pattern.shape}")
    counted = a.stored.astype(np.float64) @ b.stored.astype(np.float64)
    indices, indptr = host(pattern.indices), host(pattern.indptr)
    expected = sp.csr_array(counted > 0)
    holds(np.array_equal(indices, expected.indices) and np.array_equal(indptr, expected.indptr), "the pattern is wrong")
    holds(
        pattern.nnz == expected.nnz and pattern.products == int(counted.sum()),
        f"{pattern.nnz} entries, {pattern.products} products",
    )
    precision = draw("precision", [None, None, "float64", "float32", "tf32", "float16"])
    keywords = {"precision": precision} if precision else {}
    result = call(draw, pattern.multiply, a.matrix, b.matrix, **keywords)
    unchanged.check()
    if isinstance(result, Refused):
        if not _may_refuse(result, a, b, keywords):
            must(result)
    else:
        _check(result, a, b, precision, place)
        whole = call(draw, tsparse.spgemm, a.matrix, b.matrix, backend=place.backend, **keywords)
        same_bits(result, whole, "spgemm")
    _numeric(draw, place, pattern, a, b)


def _numeric(draw: Draw, place: Place, pattern: Any, a: Sparse, b: Sparse) -> None:
    """Other values on the places of the entries as the caller stored them, or a refusal."""
    if any(x.matrix.format not in ("csr",) for x in (a, b)):
        return
    dtype = draw("dtype of values", ["float64", "float32"])
    each = []
    for name, factor in (("A", a), ("B", b)):
        count = len(factor.matrix.indices)
        values = numbers(draw, f"new values of {name}", (count,), dtype)
        rows = np.repeat(np.arange(factor.exact.shape[0]), np.diff(host(factor.matrix.indptr)))
        exact = _exact(factor.exact.shape, rows, host(factor.matrix.indices), values)
        laid = lay(values, "C" if place.on_gpu else draw(f"layout of new {name}", VECTORS), place)
        each.append((laid, exact))
    (one, exact_a), (two, exact_b) = each
    over = draw("out", ["", "", "own", "over A", "over B"])
    out = None
    if over == "own":
        out = lay(np.zeros(pattern.nnz, dtype), "C", place)
    elif over:
        into = one if over == "over A" else two
        size = pattern.nnz * np.dtype(dtype).itemsize
        if size <= into.memory.nbytes - 64 and into.array.size:
            out = Laid(into.memory[64 : 64 + size].view(dtype), into.memory)
    unchanged = Unchanged(data_a=one, data_b=two, out=out)
    keywords = {} if out is None else {"out": out.array}
    found = call(draw, pattern.numeric, one.array, two.array, **keywords)
    unchanged.check(None if out is None else out.array)
    plain = all(x.array.flags.c_contiguous and getattr(x.array.flags, "aligned", True) for x in (one, two))
    if isinstance(found, Refused):
        holds(not (a.canonical and b.canonical and plain), f"a valid call is refused: {found}")
        return
    dense = np.zeros(pattern.shape, np.longdouble)
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(host(pattern.indptr)))
    dense[rows, host(pattern.indices)] = host(found)
    exact, sizes = exact_a[0] @ exact_b[0], exact_a[1] @ exact_b[1]
    unit, least = (2.0**-53, 2.0**-1074) if dtype == "float64" else (2.0**-24, 2.0**-149)
    count = exact_a[2].astype(float) @ exact_b[2].astype(float) + 14
    finite = np.isfinite(dense.astype(float)) | (sizes < float(np.finfo(dtype).max) / 4)
    off = finite & ~(np.abs(dense - exact) <= count * (unit * sizes + least))
    holds(not off.any(), f"numeric gives {dense[off][:1]}, not {exact[off][:1]}")


def large_product(draw: Draw, place: Place) -> None:
    """Products of so many rows that threads share them, with hubs and empty rows."""
    n, width = draw("n", (600, 1500, 3001)), draw("width", (600, 1500, 40_000))
    rng = draw.rng("pattern")
    kind = draw("kind", ("uniform", "powers", "band"))
    degrees = np.minimum(rng.zipf(1.7, n), n // 2) if kind == "powers" else rng.integers(0, 60, n)
    rows = np.repeat(np.arange(n), degrees)
    if kind == "band":
        columns = np.clip(rows + rng.integers(-40, 41, len(rows)), 0, n - 1)
    else:
        columns = rng.integers(0, n, len(rows))
    dtype = draw("dtype", ("float64", "float32"))
    a = sp.csr_array((rng.standard_normal(len(rows)).astype(dtype), (rows, columns)), shape=(n, n))
    b = sp.csr_array(sp.random_array((n, width), density=30 / width, rng=rng, dtype=dtype))
    a.sum_duplicates()
    given = [place.sparse.csr_matrix(sp.csr_matrix(x)) if place.on_gpu else x for x in (a, b)]
    c = must(call(draw, tsparse.spgemm, *given, backend=place.backend))
    exact, sizes = a.astype(float) @ b.astype(float), abs(a).astype(float) @ abs(b).astype(float)
    exact.sort_indices()
    sizes.sort_indices()
    holds(
        np.array_equal(host(c.indptr), exact.indptr) and np.array_equal(host(c.indices), exact.indices),
        "the pattern is wrong",
    )
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    off = np.abs(host(c.data) - exact.data) > (n + 3) * unit * sizes.data
    holds(not off.any(), f"{off.sum()} entries are off, the first {host(c.data)[off][:1]}, not {exact.data[off][:1]}")
    pattern = tsparse.symbolic(*given, backend=place.backend)
    same_bits(c, pattern.multiply(*given), "symbolic")
    if place.on_gpu:
        return
    import numba

    before = numba.get_num_threads()
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            same_bits(c, tsparse.spgemm(a, b, backend="cpu"), f"{threads} threads")
            same_bits(c, pattern.multiply(a, b), f"symbolic with {threads} threads")
    finally:
        numba.set_num_threads(before)
