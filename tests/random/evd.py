"""The eigensolver's calls, held against residuals and NumPy's eigenvalues in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from spectile import evd
from tests.random.calls import Refused, Unchanged, call, holds, same_bits
from tests.random.draw import Draw
from tests.random.memory import LAYOUTS, Laid, Place, exponents, host, lay, lay_drawn, numbers

SIZES = (1, 2, 3, 0, 4, 5, 7, 8, 16, 17, 31, 32, 33, 48, 64, 65, 97, 130, 150, 257)
DTYPES = (
    "float64",
    "float32",
    "complex128",
    "complex64",
    "float64",
    "float32",
    "float16",
    ">f8",
    ">c8",
    "int64",
    "int8",
    "uint8",
    "bool",
    "longdouble",
)
BATCHES = ((),) * 6 + ((1,), (3,), (2, 2), (0,))
#: Layouts of Hermitian matrices: to repeat a row would leave one with equal entries.
SQUARE_LAYOUTS = tuple(layout for layout in LAYOUTS if layout != "broadcast")
STRUCTURES = (
    "random",
    "random",
    "random",
    "diagonal",
    "rank one",
    "zero",
    "identity",
    "clustered",
    "graded",
    "block",
    "negative",
)


def working(dtype: Any) -> np.dtype:
    """Return the dtype in which a matrix is solved."""
    dtype = np.dtype(dtype)
    return (
        np.dtype("float64")
        if dtype.kind in "biu"
        else np.dtype("float32")
        if dtype == np.float16
        else dtype.newbyteorder("=")
    )


def hermitian(draw: Draw, name: str, lead: tuple[int, ...], n: int, dtype: Any) -> np.ndarray:
    """Return Hermitian matrices of a structure and of any size of entries."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        a = numbers(draw, name, (*lead, n, n), dtype)
        return np.where(np.tri(n, dtype=bool), a, np.swapaxes(a, -1, -2)).astype(dtype)
    rng, structure = draw.rng(f"values of {name}"), draw(f"structure of {name}", STRUCTURES)
    real = np.empty(0, dtype).real.dtype.newbyteorder("=")
    exponent = draw(f"exponent of {name}", exponents(real))
    x = rng.standard_normal((*lead, n, n))
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal((*lead, n, n))
    a = (x + np.conj(np.swapaxes(x, -1, -2))) / 2
    if structure == "diagonal":
        a = a * np.eye(n)
    elif structure == "rank one" and n:
        a = x[..., :1] * np.conj(np.swapaxes(x[..., :1], -1, -2))
    elif structure == "zero":
        a = a * 0
    elif structure == "identity":
        a = a * 0 + np.eye(n)
    elif structure in ("clustered", "graded", "negative") and n:
        q = np.linalg.qr(x)[0]
        w = {
            "clustered": 1 + 1e-9 * np.arange(n),
            "graded": 2.0 ** -np.linspace(0, 60, n),
            "negative": -1 - np.arange(n),
        }[structure]
        a = (q * w) @ np.conj(np.swapaxes(q, -1, -2))
        a = (a + np.conj(np.swapaxes(a, -1, -2))) / 2
    elif structure == "block":
        a = a * (np.arange(n)[:, None] // 3 == np.arange(n) // 3)
    a = a / max(1.0, 2.0 * float(np.max(np.abs(a), initial=0)))
    wide = a.astype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    with np.errstate(all="ignore"):
        parts = [np.ldexp(part, exponent) for part in (wide.real, wide.imag)]
        return (parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]).astype(dtype)


def scaled(full: np.ndarray) -> tuple[np.ndarray, int]:
    """Return a matrix in double precision with its largest entry near 1, and the exponent it was divided by."""
    wide = full.astype(np.clongdouble if full.dtype.kind == "c" else np.longdouble)
    largest = np.max(np.abs(wide), initial=0)
    exponent = int(np.frexp(largest)[1]) if largest > 0 else 0
    parts = [np.ldexp(part, -exponent).astype(np.float64) for part in (wide.real, wide.imag)]
    return (parts[0] + 1j * parts[1] if full.dtype.kind == "c" else parts[0]), exponent


def down(values: Any, exponent: int) -> np.ndarray:
    """Return eigenvalues divided by a power of two, in double precision."""
    return np.ldexp(host(values).astype(np.longdouble), -exponent).astype(np.float64)


def grain(dtype: Any, exponent: int) -> float:
    """Return the smallest number of a dtype, divided by a power of two: what underflow may cost."""
    info = np.finfo(np.empty(0, dtype).real.dtype)
    return float(np.ldexp(np.longdouble(info.smallest_subnormal), -exponent))


def _subset(draw: Draw, n: int, w: np.ndarray, exponent: int, lead: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
    """Return the keywords of a part of the spectrum, and which indices it has, or bounds of them."""
    kind = draw("part", ["all", "all", "index", "value"])
    if kind == "all" or n == 0:
        return {}, (0, n)
    rng = draw.rng("ends of the part")
    if kind == "index":
        first = int(rng.integers(n))
        last = int(rng.integers(first, n)) if draw("many", [False, True]) else first
        return {"subset_by_index": (first, last)}, (first, last + 1)
    if lead:
        return {}, (0, n)
    low, high = np.sort(rng.choice(np.append(w, [w.min() - 1, w.max() + 1, -np.inf, np.inf]), 2))
    at_values = draw("ends at eigenvalues", [False, True])
    if not at_values:
        low, high = low + 1e-3 * abs(rng.standard_normal()), high + 2e-3
    if not low < high:
        return {}, (0, n)
    ends = tuple(float(np.ldexp(np.longdouble(x), exponent)) if np.isfinite(x) else float(x) for x in (low, high))
    if not ends[0] < ends[1]:
        return {}, (0, n)
    return {"subset_by_value": ends}, (low, high)


def eigh(draw: Draw, place: Place) -> None:
    """Eigenvalues and vectors of one matrix or a batch: any dtype, layout, triangle, part, driver."""
    dtype, n = np.dtype(draw("dtype", DTYPES)), draw("n", SIZES)
    lead = draw("batch", BATCHES) if n <= 65 else ()
    a = hermitian(draw, "a", lead, n, dtype)
    lower = draw("lower", [True, False])
    if draw("other triangle", ["alike", "alike", "NaN"]) == "NaN" and dtype.kind in "fc" and n:
        beside = np.triu(np.ones((n, n), bool), 1) if lower else np.tril(np.ones((n, n), bool), -1)
        given = np.where(beside, np.asarray(np.nan, a.dtype), a)
    else:
        given = a
    laid = lay(given, draw("layout of a", SQUARE_LAYOUTS), place)
    full, exponent = scaled(a)
    reference = np.linalg.eigvalsh(full) if full.size else np.zeros((*lead, n))
    one = reference if not lead else np.zeros(n)
    part, wanted = _subset(draw, n, one, exponent, lead)
    keywords: dict[str, Any] = {"backend": place.backend, **part}
    keywords |= {} if lower else {"lower": False}
    driver = draw("driver", [None] * 6 + ["ev", "evd", "evr", "evx"])
    if driver and not (part and driver in ("ev", "evd")):
        keywords["driver"] = driver
    vectors = draw("vectors", [True, True, False])
    function = evd.eigh if vectors else draw("function", [evd.eigvalsh, evd.eigh])
    keywords |= {"eigvals_only": True} if not vectors and function is evd.eigh else {}
    overwrite = draw.rarely("overwrite", 5)
    keywords |= {"overwrite_a": True} if overwrite else {}
    unchanged = Unchanged(a=laid)
    result = call(draw, function, laid.array, **keywords)
    if not overwrite:
        unchanged.check()
    solved = working(dtype) if dtype.char != "g" else dtype
    if dtype.char == "g":
        holds(isinstance(result, Refused), "longdouble is solved")
        return
    eps = float(np.finfo(solved).eps)
    top = float(np.ldexp(np.longdouble(np.finfo(np.empty(0, solved).real.dtype).max), -exponent))
    if isinstance(result, Refused):
        holds(max(np.abs(reference).max(initial=0), 1.0) * 8 * max(1, n) > top, f"a valid call is refused: {result}")
        return
    w, v = result if vectors else (result, None)
    if np.abs(reference).max(initial=0) > top * (1 - 20 * n * eps):
        return
    _check_pairs(
        full,
        reference,
        w,
        v,
        wanted,
        exponent,
        eps * 20 * max(n, 1),
        solved,
        lead,
        bool(part) and "subset_by_value" in part,
    )
    if not overwrite:
        same_bits(result, call(draw, function, laid.array, **keywords))


def _check_pairs(
    full: np.ndarray,
    reference: np.ndarray,
    w: Any,
    v: Any,
    wanted: Any,
    exponent: int,
    allowed: float,
    dtype: np.dtype,
    lead: tuple[int, ...],
    by_value: bool,
    gram: np.ndarray | None = None,
) -> None:
    """Check eigenvalues and vectors; `allowed` is relative to the largest eigenvalue."""
    n, real = full.shape[-1], np.empty(0, dtype).real.dtype
    w, v = host(w), None if v is None else host(v)
    holds(w.dtype == real, f"eigenvalues are {w.dtype}, not {real}")
    norms = np.abs(reference).max(axis=-1, initial=0)
    slack = allowed * float(np.max(norms, initial=0)) + 4 * n * grain(real, exponent)
    if by_value:
        low, high = wanted
        least = int(np.sum((reference > low + 2 * slack) & (reference <= high - 2 * slack)))
        most = int(np.sum((reference > low - 2 * slack) & (reference <= high + 2 * slack)))
        holds(least <= len(w) <= most, f"{len(w)} eigenvalues in the interval, there are {least} to {most}")
        if least != most:
            return
        first = int(np.sum(reference <= low))
        first, last = min(first, n - len(w)), min(first, n - len(w)) + len(w)
    else:
        first, last = wanted
    count = last - first
    holds(w.shape == (*lead, count), f"eigenvalues have shape {w.shape}, not {(*lead, count)}")
    holds(v is None or (v.shape == (*lead, n, count) and v.dtype == dtype), "eigenvectors have another shape or dtype")
    found = down(w, exponent)
    holds(np.isfinite(found).all(), "eigenvalues are not finite")
    holds((np.diff(w, axis=-1) >= 0).all(), "eigenvalues do not ascend")
    for index in np.ndindex(*lead) if n else ():
        size = max(float(norms[index]), 1e-300)
        slack = allowed * size + 4 * n * grain(real, exponent)
        off = np.abs(found[index] - reference[index][first:last]).max(initial=0)
        holds(off <= slack, f"an eigenvalue is off by {off / size:.2g} of the norm, allowed {slack / size:.2g}")
        if v is None:
            continue
        x = v[index].astype(np.complex128 if dtype.kind == "c" else np.float64)
        metric = np.eye(n) if gram is None else gram
        residual = np.linalg.norm(full[index] @ x - x * found[index], axis=0).max(initial=0)
        holds(residual <= slack * 2, f"a residual is {residual / size:.2g} of the norm, allowed {2 * slack / size:.2g}")
        off = np.abs(x.conj().T @ metric @ x - np.eye(count)).max(initial=0)
        holds(off <= max(allowed, 1e-15), f"vectors are orthogonal to {off:.2g}, allowed {allowed:.2g}")


def generalized(draw: Draw, place: Place) -> None:
    """Problems with a second, positive definite matrix."""
    dtype = np.dtype(draw("dtype", DTYPES[:6]))
    n, kind = draw("n", SIZES[:18]), draw("type", (1, 2, 3))
    lead = draw("batch", ((), (), (), (2,)))
    a = hermitian(draw, "a", lead, n, dtype)
    rng = draw.rng("b")
    x = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.kind == "c" else 0)
    exponent_b = draw("exponent of b", [0, 0, 0, 3, -20, 20])
    b = ((x @ x.conj().T / max(n, 1) + np.eye(n)) * 2.0**exponent_b).astype(dtype)
    b = ((b + b.conj().T) / 2).astype(dtype)
    lower = draw("lower", [True, False])
    laid = lay(a, draw("layout of a", SQUARE_LAYOUTS), place)
    laid_b = lay(b, draw("layout of b", SQUARE_LAYOUTS), place)
    keywords: dict[str, Any] = {"backend": place.backend, "lower": lower, "type": kind}
    driver = draw("driver", [None, None, None, "gv", "gvd", "gvx"])
    keywords |= {"driver": driver} if driver else {}
    part, wanted = {}, (0, n)
    if n and draw("part", [False, True]) and driver in (None, "gvx"):
        first = int(rng.integers(n))
        last = int(rng.integers(first, n))
        part, wanted = {"subset_by_index": (first, last)}, (first, last + 1)
    unchanged = Unchanged(a=laid, b=laid_b)
    result = call(draw, evd.eigh, laid.array, laid_b.array, **keywords, **part)
    unchanged.check()
    full, exponent = scaled(a)
    eps = float(np.finfo(working(dtype)).eps)
    info = np.finfo(working(dtype))
    room = info.maxexp - abs(exponent) - 45 > 0 and exponent + info.minexp * 0 > info.minexp + 60
    if isinstance(result, Refused):
        holds(not room, f"a valid call is refused: {result}")
        return
    if not room:
        return
    wide_b = b.astype(full.dtype)
    w, v = (host(x) for x in result)
    condition = float(np.linalg.cond(wide_b)) if n else 1.0
    half = np.linalg.cholesky(wide_b) if n else wide_b
    for index in np.ndindex(*lead) if n else ():
        one = full[index]
        if kind == 1:
            inner = scipy.linalg.solve_triangular(
                half, scipy.linalg.solve_triangular(half, one, lower=True).conj().T, lower=True
            )
        else:
            inner = half.conj().T @ one @ half
        reference = np.linalg.eigvalsh((inner + inner.conj().T) / 2)[slice(*wanted)]
        size = max(float(np.linalg.norm(inner)), 1e-300)
        found = down(w[index], exponent)
        allowed = 100 * n * eps * condition
        off = np.abs(found - reference).max(initial=0)
        holds(
            off <= allowed * size + 100 * n * grain(info.dtype, exponent),
            f"an eigenvalue is off by {off / size:.2g}, allowed {allowed:.2g}",
        )
        x = v[index].astype(full.dtype)
        metric = wide_b if kind != 3 else np.linalg.inv(wide_b)
        off = np.abs(x.conj().T @ metric @ x - np.eye(x.shape[1])).max(initial=0)
        holds(off <= allowed, f"vectors are normalized to {off:.2g}, allowed {allowed:.2g}")
        left, right = {1: (one @ x, wide_b @ x), 2: (one @ (wide_b @ x), x), 3: (wide_b @ (one @ x), x)}[kind]
        residual = np.linalg.norm(left - right * found)
        scale = max(np.linalg.norm(left), np.linalg.norm(right) * size, 1e-300)
        holds(residual <= allowed * scale + 1e-290, f"a residual is {residual / scale:.2g}, allowed {allowed:.2g}")
    same_bits(result, call(draw, evd.eigh, laid.array, laid_b.array, **keywords, **part))


def tridiagonalize(draw: Draw, place: Place) -> None:
    """A = Q T Qᴴ with T real and tridiagonal."""
    dtype, n = np.dtype(draw("dtype", DTYPES)), draw("n", SIZES)
    a = hermitian(draw, "a", (), n, dtype)
    laid = lay(a, draw("layout of a", SQUARE_LAYOUTS), place)
    keywords: dict[str, Any] = {
        "lower": draw("lower", [True, False]),
        "calc_q": draw("calc_q", [True, True, False]),
        "backend": place.backend,
    }
    unchanged = Unchanged(a=laid)
    result = call(draw, evd.tridiagonalize, laid.array, **keywords)
    unchanged.check()
    if dtype.char == "g":
        holds(isinstance(result, Refused), "longdouble is solved")
        return
    full, exponent = scaled(a)
    solved = working(dtype)
    info = np.finfo(np.empty(0, solved).real.dtype)
    top = float(np.ldexp(np.longdouble(info.max), -exponent))
    reference = np.linalg.eigvalsh(full) if n else np.zeros(0)
    if isinstance(result, Refused):
        holds(np.abs(reference).max(initial=0) * 8 * max(1, n) > top, f"a valid call is refused: {result}")
        return
    if np.linalg.norm(full) > top / 2:
        return
    d, e, q = (None if x is None else host(x) for x in result)
    holds(
        d.shape == (n,) and e.shape == (max(n - 1, 0),) and d.dtype == e.dtype == info.dtype,
        "d or e has another shape or dtype",
    )
    t = (
        np.diag(down(d, exponent)) + np.diag(down(e, exponent), -1) + np.diag(down(e, exponent), 1)
        if n > 1
        else down(d, exponent).reshape(n, n)
    )
    size = max(float(np.linalg.norm(full)), 1e-300)
    slack = 20 * max(n, 1) * float(info.eps) * size + 4 * n * grain(info.dtype, exponent)
    off = np.abs(np.linalg.eigvalsh(t) - reference).max(initial=0) if n else 0
    holds(off <= slack, f"eigenvalues of T are off by {off / size:.2g}, allowed {slack / size:.2g}")
    holds((q is not None) == keywords["calc_q"], "Q is there or not as it should not be")
    if q is not None and n:
        x = q.astype(full.dtype)
        off = np.abs(x.conj().T @ x - np.eye(n)).max()
        holds(off <= 20 * n * info.eps, f"Q is unitary to {off:.2g}")
        off = np.linalg.norm(x @ t @ x.conj().T - full)
        holds(off <= 2 * slack, f"Q T Qᴴ is off by {off / size:.2g}, allowed {2 * slack / size:.2g}")
    same_bits(result, call(draw, evd.tridiagonalize, laid.array, **keywords))


def _selected(draw: Draw, reference: np.ndarray, exponent: int, slack: float) -> tuple[dict[str, Any], Any]:
    n = reference.shape[-1]
    kind = draw("select", ["a", "a", "i", "v"])
    if kind == "a" or n == 0 or reference.ndim > 1:
        return {}, (0, n)
    rng = draw.rng("select range")
    if kind == "i":
        first = int(rng.integers(n))
        last = int(rng.integers(first, n))
        return {"select": "i", "select_range": (first, last)}, (first, last + 1)
    low, high = np.sort(rng.uniform(-1.2, 1.2, 2)) * max(float(np.abs(reference).max()), 1e-3)
    ends = tuple(float(np.ldexp(np.longdouble(x), exponent)) for x in (low, high))
    if not np.isfinite(ends).all() or not ends[0] < ends[1]:
        return {}, (0, n)
    return {"select": "v", "select_range": ends}, (low, high)


def narrow_tridiagonal(draw: Draw, place: Place) -> None:
    """Tridiagonal problems by SciPy's signature."""
    dtype, n = np.dtype(draw("dtype", ("float64", "float32", "float64", ">f8", "int32", "float16"))), draw("n", SIZES)
    n = max(n, 1)
    d, e = numbers(draw, "d", (n,), dtype), numbers(draw, "e", (n - 1,), dtype)
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            d, e = (d / 64).astype(dtype), (e / 64).astype(dtype)
    laid = [lay_drawn(draw, name, x, place) for name, x in (("d", d), ("e", e))]
    d, e = (host(x.array) for x in laid)
    if not (np.isfinite(d.astype(float)).all() and np.isfinite(e.astype(float)).all()):
        return
    full, exponent = scaled(
        np.diag(d.astype(np.longdouble)) + np.diag(e.astype(np.longdouble), -1) + np.diag(e.astype(np.longdouble), 1)
    )
    _narrow(draw, place, full, exponent, working(dtype), laid, evd.eigh_tridiagonal, evd.eigvalsh_tridiagonal, {})


def narrow_banded(draw: Draw, place: Place) -> None:
    """Band problems by SciPy's signature."""
    dtype, n = (
        np.dtype(draw("dtype", ("float64", "float32", "complex128", "complex64", ">f8", "int32", "float16"))),
        draw("n", SIZES),
    )
    n, width = max(n, 1), draw("width", (0, 1, 2, 5, 16, 33, 70))
    width = min(width, n - 1)
    lower = draw("lower", [False, True])
    a = hermitian(draw, "a", (), n, dtype)
    band = np.zeros((width + 1, n), dtype)
    for offset in range(width + 1):
        if lower:
            band[offset, : n - offset] = np.diag(a, -offset)
        else:
            band[width - offset, offset:] = np.diag(a, offset)
    laid = lay(band, draw("layout of a_band", SQUARE_LAYOUTS), place)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    full, exponent = scaled(np.where(distance <= width, a, np.zeros((), a.dtype)))
    _narrow(draw, place, full, exponent, working(dtype), [laid], evd.eig_banded, evd.eigvals_banded, {"lower": lower})


def _narrow(
    draw: Draw,
    place: Place,
    full: np.ndarray,
    exponent: int,
    dtype: np.dtype,
    laid: list[Laid],
    pairs: Any,
    values: Any,
    keywords: dict[str, Any],
) -> None:
    n, info = len(full), np.finfo(np.empty(0, dtype).real.dtype)
    reference = np.linalg.eigvalsh(full)
    size = max(float(np.abs(reference).max(initial=0)), 1e-300)
    allowed = 20 * n * float(info.eps)
    part, wanted = _selected(draw, reference, exponent, 4 * allowed * size)
    if pairs is evd.eigh_tridiagonal:
        driver = draw("lapack_driver", ["auto"] * 4 + ["stemr", "stebz", "stev", "stevd"])
        if driver in ("stemr", "stebz") or not part:
            part |= {"lapack_driver": driver} if driver != "auto" else {}
        # Inverse iteration and representations lose orthogonality within clusters.
        allowed *= 50 if part.get("lapack_driver", "auto") in ("stemr", "stebz", "auto") and part else 1
    vectors = draw("vectors", [True, False])
    function = pairs if vectors else values
    unchanged = Unchanged(**{str(k): one for k, one in enumerate(laid)})
    result = call(draw, function, *(one.array for one in laid), **keywords, **part, backend=place.backend)
    unchanged.check()
    top = float(np.ldexp(np.longdouble(info.max), -exponent))
    if isinstance(result, Refused):
        # LAPACK's representations do not always converge for graded matrices.
        failed = part.get("lapack_driver") == "stemr" and isinstance(result.error, np.linalg.LinAlgError)
        holds(failed or size * 8 * n > top, f"a valid call is refused: {result}")
        return
    if size * 4 * max(1, n) > top:
        return
    w, v = result if vectors else (result, None)
    if part.get("select") == "v":
        _check_pairs(full, reference, w, v, wanted, exponent, allowed, dtype, (), True)
    else:
        _check_pairs(full, reference, w, v, wanted, exponent, allowed, dtype, (), False)
    same_bits(result, call(draw, function, *(one.array for one in laid), **keywords, **part, backend=place.backend))
