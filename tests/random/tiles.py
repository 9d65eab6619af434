"""Tile matrices and functions of them, held against dense matrices in longdouble and eigenvectors in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile import TileMatrix, density, tiles
from tests.random.calls import Refused, Unchanged, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.memory import LAYOUTS, Place, host, lay, numbers

DTYPES = ("float64", "float32", "complex128", "complex64", "float64", "int32", ">f8", "float16", "longdouble")
SIZES = (1, 2, 5, 8, 16, 31, 33, 64, 97, 3)
WAYS = ("dense", "dense", "sparse", "tiles", "identity")


class Tiled:
    """A tile matrix, and the exact matrix that it stands for."""

    def __init__(self, made: Any, exact: np.ndarray) -> None:
        self.made, self.exact = made, exact

    def check(self, what: str) -> None:
        """Hold the stored matrix against its bounds, and its norms against it."""
        made, exact = self.made, self.exact
        dense = host(made.to_dense()).astype(exact.dtype)
        error = _norm(dense - exact)
        holds(dense.shape == exact.shape, f"{what} has shape {dense.shape}")
        holds(
            error <= made.error.fro * (1 + 1e-12) + _slack(made, exact),
            f"{what} is off by {error:.4g}, bound {made.error.fro:.4g}",
        )
        holds(made.error.spectral <= made.error.fro, f"{what} has a larger spectral bound {made.error}")
        if _norm(exact) and 1e-100 < _norm(exact) < 1e100:
            unit = float(_norm(exact))
            off = np.linalg.norm(((dense - exact) / unit).astype(complex), 2) if exact.size else 0.0
            holds(
                off <= made.error.spectral / unit * (1 + 1e-9) + 1e-16 + float(_slack(made, exact)) / unit,
                f"{what}: spectral {off * unit:.4g}, bound {made.error.spectral:.4g}",
            )
            stored = float(np.linalg.norm((dense / unit).astype(complex), 2)) if exact.size else 0.0
            holds(stored <= made.norm("spectral") / unit * (1 + 1e-9), f"{what}: the spectral norm is not bounded")
        norm = float(_norm(dense))
        holds(
            norm * (1 - 1e-9) - 1e-320 <= made.norm() <= norm * (1 + 1e-6) + 1e-300,
            f"{what}: norm {made.norm()}, {norm}",
        )
        if made.hermitian:
            holds(np.array_equal(dense, dense.conj().T), f"{what} is not Hermitian")


def _slack(made: Any, exact: np.ndarray) -> float:
    """Return what no bound tells of: rounding of longdouble, errors below all numbers, and CuPy's zeros."""
    least = 2.0**-126 if made.dtype.char in "fF" and not isinstance(made.data, np.ndarray) else 1e-320
    return 1e-18 * made.norm() + 64 * least * exact.size


def _norm(x: np.ndarray) -> Any:
    largest = np.abs(x).max(initial=0)
    return largest * np.sqrt((np.abs(x / largest) ** 2).sum()) if largest else np.longdouble(0)


def _partition(draw: Draw, name: str, n: int) -> Any:
    kind = draw(f"tiles of {name}", ("eight", "one", "drawn", "large", "ones"))
    if kind != "drawn" or n == 0:
        return {"eight": 8, "one": max(n, 1), "large": 1000, "ones": 3, "drawn": 4}[kind]
    cuts = np.unique(draw.rng(f"cuts of {name}").integers(1, n, min(5, n - 1))) if n > 1 else np.zeros(0, int)
    sizes = np.diff([0, *cuts, n])
    return draw(f"kind of tiles of {name}", (np.ndarray.tolist, np.asarray, tuple))(sizes)


def tiled(draw: Draw, name: str, place: Place, n: int, hermitian: bool, rows: Any, dtype: np.dtype) -> Tiled | None:
    """Return a square tile matrix made in one of the ways, and what it is; None where it is rightly refused."""
    way = draw(f"way of {name}", WAYS)
    real = dtype if dtype.kind in "fc" and dtype.char not in "eg" else np.dtype("float64")
    if way == "identity":
        sizes = np.diff(tiles.matrix.partitions((n, n), rows, None, False)[0])
        made = must(call(draw, TileMatrix.identity, sizes, hermitian=hermitian, dtype=real))
        return Tiled(
            made.to_device() if place.on_gpu else made,
            np.eye(n, dtype=np.clongdouble if real.kind == "c" else np.longdouble),
        )
    a = numbers(draw, name, (n, n), dtype)
    if dtype.kind in "iu":
        a = a // 4
    a = (
        (a // 2 + (a // 2).conj().T if dtype.kind in "iu" else (a / 2 + (a / 2).conj().T).astype(dtype))
        if hermitian
        else a
    )
    exact = a.astype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    options: dict[str, Any] = {"hermitian": hermitian}
    size = float(np.minimum(_norm(exact), 1e300))
    options |= (
        {"atol": draw(f"atol of {name}", (0.0, 1e-3, 0.3, 10.0)) * size}
        if draw.rarely(f"cut {name}", 3) and way != "tiles"
        else {}
    )
    options |= {"permutation": draw.rng(f"order of {name}").permutation(n)} if draw.rarely(f"permute {name}", 4) else {}
    if way == "tiles":
        with np.errstate(all="ignore"):
            exact = a.astype(real).astype(exact.dtype)
        offsets = tiles.matrix.partitions((n, n), rows, None, False)[0]
        order = options.get("permutation", np.arange(n))
        stored, sizes = a[np.ix_(order, order)], np.diff(offsets)
        pattern = [(i, j) for i in range(len(sizes)) for j in range(i if hermitian else 0, len(sizes))]

        def tile(i: int, j: int) -> Any:
            return stored[offsets[i] : offsets[i + 1], offsets[j] : offsets[j + 1]]

        made = call(draw, TileMatrix.from_tiles, tile, pattern, sizes, dtype=real, **options)
        if not isinstance(made, Refused) and place.on_gpu:
            made = call(draw, made.to_device)
    elif way == "sparse":
        made = call(
            draw,
            TileMatrix.from_sparse,
            sp.csr_array(a.astype(dtype.newbyteorder("=") if dtype.char != "e" else "float32")),
            rows,
            **options,
        )
        if not isinstance(made, Refused) and place.on_gpu:
            made = call(draw, made.to_device)
    else:
        a = a if dtype.isnative or not place.on_gpu else a.astype(real.newbyteorder("="))  # CuPy has no others
        laid = lay(a, draw(f"layout of {name}", LAYOUTS if not hermitian else LAYOUTS[:6]), place)
        exact = host(laid.array).astype(exact.dtype)
        unchanged = Unchanged(a=laid)
        made = call(draw, TileMatrix.from_dense, laid.array, rows, **options)
        unchanged.check()
    if isinstance(made, Refused):
        narrow = dtype.char in "eg"
        beyond = float(np.minimum(np.abs(exact).max(initial=0), 1e305)) > 1e150 or (
            hermitian and not np.array_equal(exact, exact.conj().T)
        )
        holds(narrow or beyond, f"a valid matrix is refused: {made}")
        return None
    holds(dtype.char not in "eg" or way != "dense", f"{dtype} is taken")
    return Tiled(made, exact)


OPERATIONS = (
    "truncate",
    "multiply",
    "square",
    "sum",
    "multiple",
    "T",
    "H",
    "shifted",
    "permuted",
    "whole",
    "part",
    "astype",
    "minus",
)


def tile_matrix(draw: Draw, place: Place) -> None:
    """Operations one after the other: errors stay within the bounds that the matrix carries."""
    n, hermitian, dtype = draw("n", SIZES), draw("hermitian", [True, False]), np.dtype(draw("dtype", DTYPES))
    rows = _partition(draw, "rows", n)
    x = tiled(draw, "a", place, n, hermitian, rows, dtype)
    if x is None:
        return
    x.check("the matrix")
    other = tiled(draw, "b", place, n, draw("b is Hermitian", [True, False]), rows, dtype)
    if other is None or (x.made.permutation is None) != (other.made.permutation is None):
        other = x
    if x.made.permutation is not None and not np.array_equal(x.made.permutation, other.made.permutation):
        other = x
    before = bytes(host(x.made.data).tobytes())
    first = x
    for step in range(draw("steps", (1, 2, 3))):
        found = _operated(draw, place, x, other, f"{step}")
        if found is None:
            return
        x = found
    holds(bytes(host(first.made.data).tobytes()) == before, "an operand changed")
    _numbers(draw, x)


def _operated(draw: Draw, place: Place, x: Tiled, other: Tiled, step: str) -> Tiled | None:
    """Return the result of one operation; None where it is rightly refused."""
    made, exact, what = x.made, x.exact, draw(f"operation {step}", OPERATIONS)
    norm = draw(f"norm {step}", ("fro", "spectral"))
    share = draw(f"share {step}", (1e-3, 0.0, 0.3, 1e-6))
    size = made.norm(norm)
    words: dict[str, Any] = {}
    alike = np.array_equal(made.rows, other.made.rows) and _alike(made.permutation, other.made.permutation)
    other = other if alike else x
    if what == "truncate":
        found, wanted = call(draw, made.truncate, share * size, norm), exact
        if not isinstance(found, Refused):
            lost = found.error[norm == "spectral"] - made.error[norm == "spectral"]
            holds(
                lost <= share * size * (1 + 1e-6) + 4e-12 * made.error.fro + 1e-300,
                f"{lost:.3g} is cut, {share * size:.3g} allowed",
            )
    elif what in ("multiply", "square"):
        choice = draw(f"choice {step}", ("", "atol", "rtol"))
        if choice:
            words = {choice: share * (size * other.made.norm(norm) if choice == "atol" else 1.0), "norm": norm}
        if what == "square":
            found, wanted = call(draw, made.square, **words), exact @ exact
        else:
            found, wanted = call(draw, made.multiply, other.made, **words), exact @ other.exact
    elif what in ("sum", "minus"):
        found = call(draw, (lambda: made + other.made) if what == "sum" else (lambda: made - other.made))
        wanted = exact + other.exact if what == "sum" else exact - other.exact
    elif what == "multiple":
        factor = draw(f"factor {step}", (2.0, -0.3, 0, 1e-30, 1j, np.float32(0.1), 1e300, -1))
        found, wanted = (
            call(draw, lambda: factor * made),
            np.asarray(factor, np.clongdouble if isinstance(factor, complex) else np.longdouble) * exact,
        )
    elif what in ("T", "H", "whole"):
        found = call(draw, lambda: getattr(made, what)) if what != "whole" else call(draw, made.whole)
        wanted = exact if what == "whole" else exact.T if what == "T" else exact.conj().T
    elif what == "shifted":
        shift = draw(f"shift {step}", (1.0, -2.5, 0.0, 1e-30)) * max(size, 1e-300)
        found, wanted = call(draw, made.shifted, shift), exact + np.longdouble(shift) * np.eye(len(exact))
    elif what == "permuted":
        order = draw.rng(f"order {step}").permutation(len(exact))
        sizes = _partition(draw, f"rows {step}", len(exact)) if draw(f"cut anew {step}", [0, 1]) else None
        found, wanted = call(draw, made.permuted, order, *([sizes] if sizes is not None else [])), exact
    elif what == "part":
        # It stands for the matrix itself, which it may differ from.
        found, wanted = call(draw, made.hermitian_part), exact
    else:
        to = draw(f"to {step}", ("float32", "complex64", "float64", "complex128", "float16"))
        found, wanted = call(draw, made.astype, to), exact
        if isinstance(found, Refused):
            holds(
                to == "float16" or (made.dtype.kind == "c" and np.dtype(to).kind != "c") or size > 1e38,
                f"astype({to}): {found}",
            )
            return None
    if isinstance(found, Refused):
        info = np.finfo(made.dtype)
        most = [size, other.made.norm(), size * other.made.norm(), size * size, abs(words.get("atol", 0))]
        beyond = max(float(np.minimum(x, 1e308)) for x in most) > min(float(info.max) / 8, 1e150) or what == "multiple"
        tight = what in ("multiply", "square") and bool(words)
        holds(beyond or tight, f"{what} is refused: {found}")
        return None
    result = Tiled(found, wanted)
    result.check(what)
    if words and "atol" in words and made.error.fro == other.made.error.fro == 0:
        holds(found.error[norm == "spectral"] <= words["atol"] * (1 + 1e-9), f"{what}: {found.error}, asked {words}")
    if words and "rtol" in words and made.error.fro == other.made.error.fro == 0 and norm == "fro":
        holds(
            found.error.fro <= words["rtol"] * float(_norm(wanted)) * (1 + 1e-9),
            f"{what}: {found.error}, asked {words}",
        )
    return result


def _alike(p: Any, q: Any) -> bool:
    return (p is None and q is None) or (p is not None and q is not None and np.array_equal(p, q))


def _numbers(draw: Draw, x: Tiled) -> None:
    """Numbers that a matrix tells of itself."""
    made = x.made
    dense = host(made.to_dense()).astype(np.clongdouble)
    size, n = float(np.minimum(_norm(dense), 1e308)), len(dense)
    if size > 1e150 or size < 1e-150:
        return
    trace, dot = must(call(draw, made.trace)), must(call(draw, made.dot, made))
    holds(abs(trace - np.trace(dense)) <= 1e-13 * n * size + 1e-300, f"the trace is {trace}, not {np.trace(dense)}")
    holds(abs(dot - size * size) <= 1e-12 * n * size * size, f"the inner product is {dot}, not {size * size}")
    holds(must(call(draw, made.norm, "fro")) >= must(call(draw, made.norm, "spectral")), "the spectral norm is larger")
    diagonal = must(call(draw, made.diagonal))
    order = np.arange(n) if made.permutation is None else made.permutation
    holds(np.array_equal(diagonal, np.diag(dense)[order].astype(diagonal.dtype)), "the diagonal is wrong")
    whole = must(call(draw, made.to_csr)).toarray()
    holds(np.array_equal(whole, dense.astype(whole.dtype)), "the CSR matrix is another")
    must(call(draw, made.to_dense))
    holds(0 <= made.fill <= 1 and made.nbytes > 0, "fill")
    if made.hermitian:
        low, high = must(call(draw, made.eigenvalue_bounds))
        values = np.linalg.eigvalsh((x.exact / size).astype(complex)) * size
        slack = 1e-12 * size
        hermitian = _norm(x.exact - x.exact.conj().T) <= 1e-12 * size
        holds(
            not hermitian or (low <= values[0] + slack and values[-1] - slack <= high),
            f"{values[[0, -1]]} leave {low, high}",
        )
    there = must(call(draw, made.to_host))
    same_bits(there.to_dense(), host(made.to_dense()), "the host's copy")


def orders(draw: Draw, place: Place) -> None:
    """Orders of points, and partitions that keep atoms whole."""
    count, d = draw("count", (1, 5, 0, 64, 500)), draw("d", (1, 2, 3))
    points = draw.rng("points").standard_normal((count, d)) * draw("scale", (1.0, 1e-300, 1e300, 0.0))
    order = must(call(draw, tiles.hilbert_order, points if draw("kind", [0, 1]) else points.tolist() or points))
    holds(np.array_equal(np.sort(order), np.arange(count)), "no order")
    sizes, block = draw.rng("sizes").integers(1, 9, count), draw("block", (32, 1, 8, 100))
    permutation, rows = must(
        call(draw, tiles.partition, sizes, block, positions=points if draw("positions", [0, 1]) else None)
    )
    holds(np.array_equal(np.sort(permutation), np.arange(sizes.sum())) and rows.sum() == sizes.sum(), "no partition")
    holds(count == 0 or rows.max() <= max(block, 8), f"a tile has {rows.max() if count else 0} rows")


def _spectrum(
    draw: Draw, name: str, n: int, dtype: np.dtype, low: float, high: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a Hermitian matrix with eigenvalues in an interval, none in the middle third, and its eigenpairs."""
    rng = draw.rng(name)
    q = np.linalg.qr(rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.kind == "c" else 0))[0]
    if draw(f"banded {name}", [False, True]):
        q = np.eye(n)[rng.permutation(n)]
    w = np.sort(np.where(rng.random(n) < 0.5, rng.uniform(0, 1 / 3, n), rng.uniform(2 / 3, 1, n))) * (high - low) + low
    a = (q * w) @ q.conj().T
    a = ((a + a.conj().T) / 2).astype(dtype)
    wide = a.astype(np.complex128 if dtype.kind == "c" else np.float64)
    return a, *np.linalg.eigh(wide)


def _given(draw: Draw, name: str, a: np.ndarray, place: Place, rows: Any) -> Any:
    kind = draw(f"kind of {name}", ("tiles", "dense", "sparse"))
    if kind == "sparse" and not place.on_gpu:
        return sp.csr_array(a)
    on = place.xp.asarray(a)
    return TileMatrix.from_dense(on, rows, hermitian=True) if kind != "dense" else on


def density_matrix(draw: Draw, place: Place) -> None:
    """Density matrices with their certificates, of orthogonal bases and others, and of a temperature."""
    n, dtype = draw("n", (2, 5, 8, 20, 40, 64, 200)), np.dtype(draw("dtype", DTYPES[:4]))
    rows, with_overlap = _partition(draw, "rows", n), draw("overlap", [0, 0, 1])
    # The products with an inverse factor have an absolute error.
    unit = draw("unit", (1.0, 1e-3, 1e4) if with_overlap else (1.0, 1e-3, 1e4, 1e-12))
    a, w, v = _spectrum(draw, "f", n, dtype, -2.0 * unit, 2.0 * unit)
    options: dict[str, Any] = {"error": draw("error", (1e-4, 1e-6, 1e-2)), "block": rows}
    options |= (
        {"method": draw("method", ("sp2_accelerated", "sp2", "trs4", "mcweeny", "eigh"))}
        if draw("name it", [0, 1])
        else {}
    )
    options |= {"permutation": draw.rng("order").permutation(n)} if draw.rarely("permute") else {}
    s, overlap = np.eye(n), None
    if with_overlap:
        s = _spectrum(draw, "s", n, dtype, 0.5, 1.5)[0]
        overlap = _given(draw, "s", s, place, rows) if "permutation" not in options else place.xp.asarray(s)
        root = np.linalg.inv(np.linalg.cholesky(s.astype(complex)))
        w, v = np.linalg.eigh(root @ a @ root.conj().T)
        v = root.conj().T @ v
    f = _given(draw, "f", a, place, rows) if "permutation" not in options else place.xp.asarray(a)
    # A number of electrons at a temperature is searched for by many Fermi functions.
    ways = ("electrons", "mu", "beta", "fraction") if n <= 20 else ("electrons", "mu", "beta")
    occupied, how = draw("occupied", (1, n // 2, n - 1, 0, n)), draw("how", ways)
    scale = max(unit, float(np.abs(w).max()))
    gap = w[occupied] - w[occupied - 1] if 0 < occupied < n else np.inf
    weights = (np.arange(n) < occupied) * 1.0
    if how == "mu":
        mu = (
            (w[occupied] + w[occupied - 1]) / 2
            if 0 < occupied < n
            else w[0] - scale
            if occupied == 0
            else w[-1] + scale
        )
        options["mu"] = float(mu)
    elif how in ("beta", "fraction"):
        beta, mu = draw("beta", (1.0, 20.0)) / scale, float(np.median(w))
        weights = 0.5 * (1 - np.tanh(beta / 2 * (w - mu)))
        options |= {"beta": beta} | ({"mu": mu} if how == "beta" else {"electrons": float(weights.sum())})
    else:
        options["electrons"] = occupied
    found = call(draw, density.density_matrix, f, overlap, **options)
    eps = float(np.finfo(dtype).eps)
    narrow = eps > 1e-10 and (options["error"] < 1e-2 or with_overlap or how in ("beta", "fraction"))
    if isinstance(found, Refused):
        small = how in ("electrons", "mu") and gap < 1e4 * eps * scale * n / options["error"]
        holds(
            small or narrow or (how == "fraction" and not 0 < weights.sum() < n),
            f"gap {gap:.3g}: a valid call is refused: {found}",
        )
        return
    exact = (v * weights) @ v.conj().T
    off = np.linalg.norm(host(found.matrix.to_dense()) - exact)
    # The reference is rounded, and rounding of a is magnified by the gap.
    slack = 1e-12 * n * max(1.0, scale / gap if np.isfinite(gap) and how in ("electrons", "mu") else 1.0)
    slack += 40 * options["error"] if how == "fraction" else 0
    holds(off <= found.error + slack, f"P is off by {off:.3g}, its bound {found.error:.3g}")
    # What f itself is off by, through rounding of its Hermitian part, counts in a Fermi function.
    own = 100 * n * eps if how in ("beta", "fraction") else 0.0
    holds(found.error <= options["error"] * (1 + 1e-9) + own, f"the error is {found.error:.3g}")
    energy = float((w * weights).sum())
    holds(
        abs(found.energy - energy) <= found.energy_error + (slack + 1e-12 * n) * scale * n,
        f"energy {found.energy} ± {found.energy_error}, not {energy}",
    )
    if how in ("electrons", "mu"):
        for ends, at in ((found.homo, occupied - 1), (found.lumo, occupied)):
            if 0 <= at < n and ends is not None:
                holds(ends[0] - 1e-12 * n * scale <= w[at] <= ends[1] + 1e-12 * n * scale, f"{w[at]} is not in {ends}")
    if draw("start", [0, 1]) and how == "electrons":
        again = call(draw, density.density_matrix, f, overlap, start=found, **options)
        holds(narrow or not isinstance(again, Refused), f"a start is refused: {again}")
        holds(
            isinstance(again, Refused) or np.linalg.norm(host(again.matrix.to_dense()) - exact) <= again.error + slack,
            "a start changes what is guaranteed",
        )


def tile_functions(draw: Draw, place: Place) -> None:
    """Functions of tile matrices, whose errors are guaranteed."""
    n, dtype = draw("n", (1, 2, 5, 8, 20, 40)), np.dtype(draw("dtype", DTYPES[:4]))
    rows, error = _partition(draw, "rows", n), draw("error", (1e-6, 1e-4, 1e-2))
    what = draw("function", ("exp", "fermi", "polynomial", "sign", "inverse_factor", "inverse_sqrt", "polar"))
    inverse = what.startswith("inverse")
    low, high = (0.3, 3.0) if inverse else (-2.0, 2.0)
    # An inverse factor is found by steps of absolute errors.
    unit = draw("unit", (1.0,) if inverse or what == "polar" else (1.0, 0.1) if what == "exp" else (1.0, 1e-6, 1e5))
    a, w, v = _spectrum(draw, "a", n, dtype, low * unit, high * unit)
    x = TileMatrix.from_dense(place.xp.asarray(a), rows, hermitian=True)
    given = x if not inverse and what != "polar" else _given(draw, "a", a, place, rows)
    words: dict[str, Any] = {"error": error}
    size = 1.0
    if what == "exp":
        f: Any = np.exp
        size = float(np.exp(w[-1]))
    elif what == "fermi":
        words |= {"mu": 0.1 * unit, "beta": draw("beta", (0.5, 10.0)) / unit}
        f = lambda w: 0.5 * (1 - np.tanh(words["beta"] / 2 * (w - words["mu"])))  # noqa: E731
    elif what == "polynomial":
        c = draw.rng("coefficients").standard_normal(draw("degree", (1, 3, 9)))
        c = c / unit ** np.arange(len(c))
        f, size = np.polynomial.Polynomial(c), float(np.abs(c) @ (2 * unit) ** np.arange(len(c)))
        given, words = x, {"coefficients": c, "error": error * max(size, 1e-6)}
    elif what == "sign":
        f = np.sign
    else:
        f, size = (lambda w: 1 / np.sqrt(w)), 2 / np.sqrt(unit)
        words = {"error": error * (size if what == "inverse_sqrt" else 1.0)} | (
            {"block": rows} if given is not x else {}
        )
    function = getattr(density, what)
    found = call(draw, function, given, **words)
    eps = float(np.finfo(dtype).eps)
    gap = float(np.abs(w).min()) / unit
    if isinstance(found, Refused):
        hard = (
            (eps > 1e-10 and error <= 1e-2)
            or (what in ("sign", "polar") and gap < 1e-3)
            or (what == "polar" and error < 1e-4)
        )
        holds(hard, f"a valid call is refused: {found}")
        return
    slack = 1e-12 * n * size * max(1.0, 1 / gap if what in ("sign", "polar") else 1.0)
    if what == "polar":
        u, p = found
        exact_u, exact_p = (v * np.sign(w)) @ v.conj().T, (v * np.abs(w)) @ v.conj().T
        for one, exact in ((u, exact_u), (p, exact_p)):
            off = np.linalg.norm(host(one.to_dense()) - exact)
            holds(
                off <= one.error.fro + slack * max(1.0, unit), f"polar is off by {off:.3g}, bound {one.error.fro:.3g}"
            )
        return
    dense = host(found.to_dense())
    if what == "inverse_factor":
        off = np.linalg.norm(dense.conj().T @ a @ dense - np.eye(n))
        holds(off <= error + 100 * n * eps, f"Z^H S Z is off by {off:.3g}")
        return
    off = np.linalg.norm(dense - (v * f(w)) @ v.conj().T)
    holds(off <= found.error.fro + slack, f"{what} is off by {off:.3g}, bound {found.error.fro:.3g}")
    # A dense matrix is rounded when its Hermitian part is taken, which is an error of its own.
    holds(
        found.error.fro <= words["error"] * (1 + 1e-6) + slack + 100 * n * eps * size,
        f"{what}: the bound is {found.error.fro:.3g}, asked {words['error']:.3g}",
    )
