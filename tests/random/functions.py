"""Functions of Hermitian matrices and their derivatives, refined eigenvectors, what is told of calls."""

from __future__ import annotations

from typing import Any

import numpy as np

import spectile
from spectile import evd, kpm, nearsparse, tsparse
from tests.random.calls import Refused, Unchanged, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.evd import BATCHES, DTYPES, SQUARE_LAYOUTS, hermitian, scaled, working
from tests.random.memory import Place, host, lay

SIZES = (1, 2, 3, 5, 8, 17, 32, 33, 64, 0, 90)
NAMED = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sign": np.sign, "abs": np.abs}
SLOPES = {
    "exp": np.exp,
    "log": lambda w: 1 / w,
    "sqrt": lambda w: 0.5 / np.sqrt(w),
    "sign": np.zeros_like,
    "abs": np.sign,
}
SHORT = {"expm": "exp", "logm": "log", "sqrtm": "sqrt", "sign": "sign"}


def _positive(draw: Draw, name: str, lead: Any, n: int, dtype: np.dtype, shift: bool) -> np.ndarray:
    """Return Hermitian matrices, of moderate size, positive definite where they are shifted."""
    rng = draw.rng(name)
    x = rng.standard_normal((*lead, n, n)) + (1j * rng.standard_normal((*lead, n, n)) if dtype.kind == "c" else 0)
    x = (x + np.swapaxes(x.conj(), -1, -2)) / 2 / np.sqrt(max(n, 1))
    x = x + 3 * np.eye(n) if shift else x
    return x.astype(dtype)


def _same(draw: Draw, way: str) -> tuple[str, Any, Any, Any]:
    """Return a function's name, what is passed, and it and its slope in float64."""
    name = draw("f", [*NAMED, "callable", "complex"] if way not in SHORT else [SHORT[way]])
    if name == "callable":
        return name, (lambda w: w * w * w), (lambda w: w**3), (lambda w: 3 * w * w)
    if name == "complex":

        def turn(w: Any) -> Any:
            return (2j * w).__class__(2j * w) if np.isscalar(w) else _exp(2j * w)

        return name, turn, (lambda w: np.exp(2j * w)), (lambda w: 2j * np.exp(2j * w))
    return name, name, NAMED[name], SLOPES[name]


def _exp(z: Any) -> Any:
    return np.exp(z)


def matrix_functions(draw: Draw, place: Place) -> None:
    """Functions by name and by callable, their short names, polar factors, derivatives."""
    dtype, n = np.dtype(draw("dtype", DTYPES)), draw("n", SIZES)
    lead = draw("batch", BATCHES) if n <= 33 else ()
    way = draw("way", ("matrix_function", "frechet", "polar", *SHORT))
    name, f, exact_f, slope = _same(draw, way)
    whole = dtype.kind in "fc" and dtype.char not in "eg"
    a = _positive(draw, "a", lead, n, dtype, name in ("log", "sqrt")) if whole else hermitian(draw, "a", lead, n, dtype)
    lower = draw("lower", [True, False])
    laid = lay(a, draw("layout of a", SQUARE_LAYOUTS), place)
    words: dict[str, Any] = {"backend": place.backend} | ({} if lower else {"lower": False})
    overwrite = draw.rarely("overwrite", 5)
    unchanged = Unchanged(a=laid)
    direction = None
    if way == "frechet":
        kind = draw("dtype of e", (None, None, "float64", "complex64", "int32"))
        rng = draw.rng("e")
        e = (3 * rng.standard_normal((*lead, n, n))).astype(kind or working(dtype))
        direction = lay(e, draw("layout of e", SQUARE_LAYOUTS), place)
        words |= {"df": slope} if callable(f) else {}
        found = call(draw, spectile.matrix_function_frechet, f, laid.array, direction.array, **words)
    else:
        words |= {"overwrite_a": True} if overwrite else {}
        if way == "polar":
            found = call(draw, spectile.polar, laid.array, **words)
        elif way in SHORT:
            found = call(draw, getattr(spectile, way), laid.array, **words)
        else:
            found = call(draw, spectile.matrix_function, f, laid.array, **words)
    if not words.get("overwrite_a"):
        unchanged.check()
    full, exponent = scaled(a)
    w, v = np.linalg.eigh(full) if full.size else (np.zeros((*lead, n)), np.zeros((*lead, n, n)))
    eps, size = (
        float(np.finfo(working(dtype) if dtype.char != "g" else "float64").eps),
        max(1.0, float(np.abs(w).max(initial=0))),
    )
    if isinstance(found, Refused):
        near = float(np.abs(w).min(initial=1)) < 100 * n * eps * size
        negative = float(w.min(initial=1)) < 100 * n * eps * size
        singular = (near and (name in ("log", "sqrt", "sign", "abs") or way == "polar")) or (
            negative and name in ("log", "sqrt")
        )
        holds(not whole or singular or exponent > 5, f"a valid call is refused: {found}")
        return
    if not whole or exponent != 0:
        w = np.ldexp(w, exponent)
        if not np.isfinite(w).all() or np.abs(w).max(initial=0) > 30:
            return
        size = max(size, float(np.abs(w).max(initial=0)))

    def of(f: Any) -> np.ndarray:
        with np.errstate(all="ignore"):
            return (v * np.asarray(f(w))[..., None, :]) @ np.swapaxes(v.conj(), -1, -2)

    gap = max(float(np.abs(w).min(initial=1)), 1e-3)
    steep = (
        float(np.exp(np.abs(w).max(initial=0)))
        if name in ("exp",)
        else 3 * size**2
        if name in ("callable", "complex")
        else size / gap
    )
    allowed = (
        200 * max(n, 1) * eps * (steep + size) * (1 / gap if name in ("sign", "log", "sqrt") or way == "polar" else 1)
    )
    if way == "polar":
        u, p = (host(x) for x in found)
        for one, exact in ((u, of(np.sign)), (p, of(np.abs))):
            holds(
                one.shape == exact.shape and np.abs(one - exact).max(initial=0) <= allowed,
                f"polar is off by {np.abs(one - exact).max(initial=0):.2g}",
            )
        return
    value = host(found[0] if way == "frechet" else found)
    exact = of(exact_f)
    holds(value.shape == exact.shape, f"{name} has shape {value.shape}, not {exact.shape}")
    off = float(np.abs(value - exact).max(initial=0))
    holds(off <= allowed, f"{name} is off by {off:.2g}, allowed {allowed:.2g}")
    if way == "frechet" and direction is not None and n:
        e = host(direction.array).astype(complex)
        with np.errstate(all="ignore"):
            fw, sw = np.asarray(exact_f(w)), np.asarray(slope(w))
            difference = w[..., :, None] - w[..., None, :]
            table = np.where(
                np.abs(difference) > 1e-5 * size,
                (fw[..., :, None] - fw[..., None, :]) / difference,
                (sw[..., :, None] + sw[..., None, :]) / 2,
            )
        inner = np.swapaxes(v.conj(), -1, -2) @ e @ v
        exact = v @ (table * inner) @ np.swapaxes(v.conj(), -1, -2)
        off = float(np.abs(host(found[1]) - exact).max(initial=0))
        scale = float(np.abs(e).max(initial=0)) * n
        if name not in ("sign", "abs") or gap > 0.05:
            holds(
                off <= (1e-4 * steep * eps**0.1 + 10 * allowed / gap**2) * scale,
                f"the derivative of {name} is off by {off:.2g}",
            )
    if not words.get("overwrite_a") and way == "matrix_function":
        same_bits(value, call(draw, spectile.matrix_function, f, laid.array, **words))


def refined(draw: Draw, place: Place) -> None:
    """Eigenvectors that are refined from those of a matrix nearby, or far away."""
    dtype, n = np.dtype(draw("dtype", DTYPES[:6])), draw("n", (1, 2, 5, 16, 33, 64, 120))
    lead = draw("batch", BATCHES) if n <= 16 else ()
    if dtype.char in "eg":
        return
    a = hermitian(draw, "a", lead, n, dtype)
    full, exponent = scaled(a)
    rng = draw.rng("near")
    start = (
        np.linalg.eigh(full + draw("distance", (1e-6, 0.0, 1e-2, 10.0)) * np.eye(n)[::-1] * rng.uniform(-1, 1))[1]
        if full.size
        else full
    )
    how = draw("start", ("near", "scaled", "random", "zeros", "identity", "NaN"))
    start = {"near": start, "scaled": 3 * start, "random": rng.standard_normal(start.shape), "zeros": 0 * start}.get(
        how, start
    )
    start = np.broadcast_to(np.eye(n), full.shape) if how == "identity" else start
    start = start * np.nan if how == "NaN" else start
    start = start.astype(working(dtype))
    laid, near = (
        lay(a, draw("layout of a", SQUARE_LAYOUTS), place),
        lay(start, draw("layout of x0", SQUARE_LAYOUTS), place),
    )
    words = {"backend": place.backend, "x0": near.array} | ({"UPLO": "U"} if draw("UPLO", [0, 1]) else {})
    unchanged = Unchanged(a=laid, x0=near)
    found = call(draw, evd.eigh, laid.array, **words)
    unchanged.check()
    if isinstance(found, Refused):
        info = np.finfo(np.empty(0, working(dtype)).real.dtype)
        holds(how == "NaN" or exponent > info.maxexp - 12, f"a valid call is refused: {found}")
        return
    w, v = (host(x) for x in found)
    eps, reference = (
        float(np.finfo(working(dtype)).eps),
        np.linalg.eigvalsh(full) if full.size else np.zeros((*lead, n)),
    )
    size = max(1.0, float(np.abs(reference).max(initial=0)))
    with np.errstate(all="ignore"):
        values = np.ldexp(w.astype(float), -exponent)
    least = float(np.ldexp(np.longdouble(np.finfo(w.dtype).smallest_subnormal), -exponent))
    allowed = 20 * max(n, 1) * (eps * size + least)
    holds(
        np.abs(values - reference).max(initial=0) <= allowed,
        f"values are off by {np.abs(values - reference).max(initial=0):.2g}",
    )
    residual = np.abs(full @ v - v * values[..., None, :]).max(initial=0)
    gram = np.abs(np.swapaxes(v.conj(), -1, -2) @ v - np.eye(n)).max(initial=0)
    holds(
        residual <= 3 * allowed and gram <= 60 * max(n, 1) * eps, f"residual {residual:.2g}, orthogonality {gram:.2g}"
    )
    same_bits(found, evd.eigh(laid.array, **words))


def told(draw: Draw, place: Place) -> None:
    """What is said of a call before it, and of the machine."""
    import scipy.sparse as sp

    rng, n = draw.rng("a"), draw("n", (1, 5, 40, 200))
    a = rng.standard_normal((n, n)).astype(draw("dtype", ("float64", "float32")))
    h, s = a + a.T, sp.csr_matrix(np.where(abs(a) > 1, a, 0))
    s = s + s.T
    on, sparse = place.xp.asarray(h), place.sparse.csr_matrix(s) if place.on_gpu else s
    words = {"backend": place.backend} if draw("backend", [0, 1]) or place.on_gpu else {}
    asked: dict[str, Any] = {
        "spamm": (spectile.spamm, (on, on), {"rtol_factors": 0.1}, nearsparse.explain),
        "spamm tau": (spectile.spamm, (on, on), {"tau": 0.5, "strict": True}, nearsparse.explain),
        "spgemm": (spectile.spgemm, (sparse, sparse), {}, tsparse.explain),
        "top": (spectile.spgemm, (sparse, sparse), {"top_n": 2}, tsparse.explain),
        "eigh": (spectile.eigh, (on,), {}, evd.explain),
        "part": (spectile.eigh, (on,), {"subset_by_index": (0, 0)}, evd.explain),
        "kpm_dos": (spectile.kpm_dos, (sparse, 64, 4), {}, kpm.explain),
        "rows": (tsparse.row_blocks, (sparse, sparse), {}, None),
        "eigvalsh": (spectile.eigvalsh, (on,), {}, None),
    }
    function, arguments, more, own = asked[draw("function", list(asked))]
    listed = must(call(draw, spectile.explain, function, *arguments, **more, **words))
    holds(
        len(listed) and all(one.kernel and (one.seconds is None or not one.seconds < 0) for one in listed), f"{listed}"
    )
    holds(any(one.seconds is not None for one in listed), "no way is taken")
    holds(all(one.seconds is not None or one.why for one in listed), "a way is left out without a reason")
    if own is not None:
        same = must(call(draw, own, *arguments, **more, **words))
        holds({one.kernel for one in same} == {one.kernel for one in listed}, "the two explanations differ")
    told_ = must(call(draw, spectile.show_config, "dicts"))
    holds(isinstance(told_, dict) and told_, "nothing is told of the machine")


def devices(draw: Draw, place: Place) -> None:
    """Plans and operands of GPUs: as without them, or a sentence where there is none."""
    rng, dtype = draw.rng("a"), draw("dtype", ("float32", "float64", "float16"))
    m, k, n = (draw(name, (1, 31, 64, 130, 257)) for name in "mkn")
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    x, y = place.xp.asarray(a), place.xp.asarray(b)
    block, tau = draw("block", (32, 16, 64)), draw("tau", (0.0, 5.0, 1e9))
    strict = draw("strict", [False, True])
    plan = call(draw, spectile.spamm_plan, x, y, block=block, strict=strict)
    parts = call(draw, nearsparse.distribute, x, y, tau, 1, block=block) if place.on_gpu else None
    if not place.on_gpu:
        holds(isinstance(plan, Refused) and "CuPy" in str(plan), f"a plan of NumPy's arrays: {plan}")
        return
    found = must(plan).execute(tau)
    whole = spectile.spamm(x, y, tau=tau, block=block, strict=strict, method="spamm")
    same_bits(found.c, whole.c, "a plan")
    left, right = must(parts)
    holds(len(left) == len(right) == 1, "the operands are not on one device")
    spread = spectile.spamm(left, right, tau=tau, block=block, devices=1, strict=strict)
    same_bits(spread.c[0], whole.c, "distributed operands")
