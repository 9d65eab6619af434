"""SpAMM's calls, held against products in longdouble."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile import nearsparse
from spectile.nearsparse.bounds import LEAST_NORM
from tests.random.calls import Refused, Unchanged, call, holds, must, norm, same_bits
from tests.random.draw import Draw
from tests.random.memory import MARGIN, Laid, Place, host, lay, lay_drawn, numbers

SIZES = (1, 2, 3, 0, 5, 7, 16, 17, 31, 32, 33, 47, 64, 65, 97, 128, 131, 200, 257, 289, 300)
DTYPES = (
    "float64",
    "float32",
    "float16",
    "float64",
    "float32",
    ">f8",
    ">f4",
    "longdouble",
    "int32",
    "bool",
    "complex64",
)
MULTIPLIED = ("float16", "float32", "float64")
BATCHES = (((), ()),) * 7 + (((3,), (3,)), ((2,), ()), ((2, 1), (3,)), ((0,), ()), ((1,), (1,)))
#: Of sums, of rounding C, and half the smallest number that one multiply-add may lose.
ROUNDING = {
    "float64": (2.0**-53, 0.0, 2.0**-1074),
    "float32": (2.0**-24, 0.0, 2.0**-149),
    "float16": (2.0**-24, 0.0, 0.0),
    "float16c16": (2.0**-24, 2.0**-11, 2.0**-25),
    "tf32x3": (2.0**-20, 0.0, 2.0**-120),
}


#: Entries that tensor cores take for as large as these when they align a sum.
ALIGNED = {"tf32x3": 2.0**-107, "float16": 2.0**-14, "float16c16": 2.0**-14}


class Norms:
    """Norms of tiles in longdouble, and what a threshold leaves of their products."""

    def __init__(self, a: np.ndarray, b: np.ndarray, block: int) -> None:
        self.a, self.b, self.block = a, b, block
        norms_a, norms_b = tile_norms(a, block), tile_norms(b, block)
        self.products = norms_a[:, :, None] * norms_b[None]
        self.ascending = np.sort(self.products, axis=None)
        #: What norms below the normal range are off by shows in their products.
        self.least = 4 * np.longdouble(2) ** -1074 * (norms_a.max(initial=0) + norms_b.max(initial=0) + 1)

    def share(self, tau: float) -> float:
        count = self.ascending.size
        return 1 - int(np.searchsorted(self.ascending, tau)) / count if count else 1.0

    def skipped(self, tau: float) -> Any:
        return norm(np.where(self.products < tau, self.products, 0).sum(axis=1))

    def product(self, tau: float) -> np.ndarray:
        """Return the sum over the products that a threshold leaves."""
        m, n, block = self.a.shape[0], self.b.shape[1], self.block
        c = np.zeros((m, n), np.longdouble)
        valid = self.products >= tau
        for k in range(valid.shape[1]):
            part = self.a[:, k * block : (k + 1) * block] @ self.b[k * block : (k + 1) * block]
            c += part * np.repeat(np.repeat(valid[:, k], block, 0)[:m], block, 1)[:, :n]
        return c


def tile_norms(a: np.ndarray, block: int) -> np.ndarray:
    """Return the Frobenius norms of the tiles."""
    rows, columns = (np.arange(0, length, block) for length in a.shape)
    if not a.size:
        return np.zeros((len(rows), len(columns)), np.longdouble)
    squares = np.square(a.astype(np.longdouble))
    return np.sqrt(np.add.reduceat(np.add.reduceat(squares, rows, axis=0), columns, axis=1))


def spamm(draw: Draw, place: Place) -> None:
    """One product of any shape, layout, size of entries, choice of threshold, with C, out and overlaps."""
    dtype = np.dtype(draw("dtype", DTYPES))
    alias = draw("alias", [""] * 6 + ["b is a", "out is a", "out is b", "out near a", "out near b", "out is c"])
    m, k, n = draw("m", SIZES), draw("k", SIZES), draw("n", SIZES)
    if alias and alias != "out is c":
        # What overlaps needs some size: small operands are packed before anything is written.
        m = k = n = draw("order", (64, 33, 289, 300, 3, 1))
    block = draw("block", (32, 32, 32, 16, 64, 8, 128) if place.on_gpu else (32, 32, 32, 16, 64, 8, 33, 5, 128, 1000))
    lead_a, lead_b = ((), ()) if alias else draw("batch", BATCHES)
    if lead_a or lead_b:
        m, k, n = min(m, 97), min(k, 97), min(n, 97)
    a = lay_drawn(draw, "a", numbers(draw, "a", (*lead_a, m, k), dtype), place)
    b = a if alias == "b is a" else lay_drawn(draw, "b", numbers(draw, "b", (*lead_b, k, n), dtype), place)
    wide_a, wide_b = (host(x.array).astype(np.clongdouble if dtype.kind == "c" else np.longdouble) for x in (a, b))
    lead = np.broadcast_shapes(lead_a, lead_b)
    shape = (*lead, m, n)

    precision = draw("precision", [None, None, None, "float16c16", "tf32x3"])
    if precision == "float16c16" and dtype != np.float16:
        precision = None
    if precision == "tf32x3" and (dtype != np.float32 or not place.on_gpu):
        precision = None
    output = {"float16": "float32"}.get(dtype.name, dtype.name) if precision != "float16c16" else "float16"
    keywords: dict[str, Any] = {"block": block, "backend": place.backend}
    if precision is not None:
        keywords["precision"] = precision
    alpha, beta = draw("alpha", [1.0, 1.0, 1.0, -0.5, 0.0, 3.0]), draw("beta", [0.0, 0.0, 0.0, 1.0, -2.0])
    strict = draw("strict", [False, True])
    keywords |= {"strict": True} if strict else {}
    keywords |= {"alpha": alpha} if alpha != 1 else {}
    wide_c, c = np.zeros(shape, np.longdouble), None
    if beta:
        c = lay_drawn(draw, "c", numbers(draw, "c", shape, output), place)
        wide_c = host(c.array).astype(wide_a.dtype)
        keywords |= {"beta": beta, "c": c.array}
    out = _out(draw, alias, a, b, c, shape, output, place)
    if out is not None:
        keywords["out"] = out.array

    norms = _threshold(draw, keywords, wide_a, wide_b, block)
    method = draw("method", [None, None, "spamm", "auto"])
    dense = not strict and method != "spamm" and (method == "auto" or {"atol", "rtol_factors"} & keywords.keys())
    keywords |= {"method": method} if method is not None else {}
    unchanged = Unchanged(a=a, b=b, c=c, out=out)
    result = call(draw, nearsparse.spamm, a.array, b.array, **keywords)
    unchanged.check(None if out is None else out.array)
    supported = dtype.isnative and dtype.name in MULTIPLIED
    if isinstance(result, Refused):
        if supported and not _may_refuse(result, keywords, wide_a, wide_b, shape, precision or dtype.name, output):
            must(result)
        return
    holds(dtype.kind in "fc", f"{dtype} is multiplied")
    found = host(result.c)
    holds(found.shape == shape and found.dtype == output, f"C is {found.dtype} {found.shape}, not {output} {shape}")
    holds(out is None or result.c is out.array, "C is not the array out")
    if dtype.kind == "c":
        with np.errstate(all="ignore"):
            off = found.astype(wide_a.dtype) - np.longdouble(alpha) * (wide_a @ wide_b) - np.longdouble(beta) * wide_c
            error = np.sqrt((np.abs(off) ** 2).sum(axis=(-2, -1)))
        bound = np.asarray(result.error_bound)
        holds(bool(np.all((error <= bound) | ~np.isfinite(bound))), f"errors {error} above their bounds {bound}")
        return
    numbers_found = call(draw, _numbers, result)
    if isinstance(numbers_found, Refused):  # a GPU says what its search found when it is read
        if not _may_refuse(numbers_found, keywords, wide_a, wide_b, shape, precision or dtype.name, output):
            must(numbers_found)
        return
    holds(dense or result.method == "spamm", f"the dense product is taken with {keywords}")
    left_out = () if result.method == "spamm" else ("tau", "valid_ratio")  # nothing is
    asked = {name: value for name, value in keywords.items() if name not in left_out}
    for name, value in numbers_found.items():
        holds(np.shape(value) == lead, f"{name} has shape {np.shape(value)}, the batch {lead}")
    each_a, each_b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (wide_a, wide_b))
    for index in np.ndindex(*lead):
        one = {name: float(np.asarray(value)[index]) for name, value in numbers_found.items()}
        _check_one(
            each_a[index],
            each_b[index],
            wide_c[index],
            found[index].astype(np.longdouble),
            one,
            asked,
            precision or dtype.name,
            norms if not lead else None,
        )
    if not alias.startswith("out"):
        again = call(draw, nearsparse.spamm, a.array, b.array, **keywords)
        same_bits((result.c, *numbers_found.values()), (again.c, *(getattr(again, name) for name in numbers_found)))
    # BLAS may sum in another order where it has other threads.
    ours = place.backend == "cpu" and result.method == "spamm"
    if ours and not alias.startswith("out") and draw.rarely("threads", 4):
        from threadpoolctl import threadpool_limits

        with threadpool_limits(draw("number of threads", (1, 2, 3, 4))):
            other = nearsparse.spamm(a.array, b.array, **keywords)
        same_bits(result.c, other.c, "another number of threads")


def _numbers(result: Any) -> dict[str, Any]:
    return {name: getattr(result, name) for name in ("tau", "valid_ratio", "executed_ratio", "error_bound")}


def _out(
    draw: Draw, alias: str, a: Laid, b: Laid, c: Laid | None, shape: tuple[int, ...], output: str, place: Place
) -> Laid | None:
    """Return where the result goes: nowhere, into memory of its own, or over an operand."""
    if alias == "out is c":
        return c if c is not None and c.array.flags.c_contiguous and _writeable(c.array) else None
    if not alias.startswith("out"):
        return lay(np.zeros(shape, output), "C", place) if draw("out", [False, False, True]) else None
    over = a if alias.endswith("a") else b
    itemsize = np.dtype(output).itemsize
    count = math.prod(shape) * itemsize
    if "near" in alias:
        first = MARGIN + itemsize * draw("shift", (1, 2, 16, 100))
    else:
        first = MARGIN
    if first + count > over.memory.nbytes:
        first = over.memory.nbytes - count - (over.memory.nbytes - count) % 16
    if first < 0 or not over.array.flags.c_contiguous or not over.memory.flags.c_contiguous:
        return None
    return Laid(over.memory[first : first + count].view(output).reshape(shape), over.memory)


def _writeable(array: Any) -> bool:
    return bool(getattr(array.flags, "writeable", True) and getattr(array.flags, "aligned", True))


def _threshold(draw: Draw, keywords: dict[str, Any], a: np.ndarray, b: np.ndarray, block: int) -> Norms | None:
    """Add one of tau, valid_ratio, atol and rtol_factors to the keywords; return the norms, of two matrices."""
    norms = Norms(a, b, block) if a.ndim == b.ndim == 2 and a.dtype.kind == "f" else None
    choice = draw("choice", ["tau", "tau", "valid_ratio", "rtol_factors", "atol"])
    if choice == "tau":
        options: list[float] = [0.0, math.inf, 1.0]
        if norms is not None and norms.products.size:
            with np.errstate(over="ignore"):
                options += [float(x) for x in np.quantile(norms.products.astype(np.float64), (0.1, 0.5, 0.9, 1.0))]
        keywords["tau"] = draw("tau", [x if x >= 0 else 0.0 for x in options])
    elif choice == "valid_ratio":
        keywords["valid_ratio"] = draw("valid_ratio", (1.0, 0.5, 0.1, 0.9, 1e-3, 1e-9))
    else:
        value = draw("error", (0.1, 1e-2, 1e-4, 1e-8, 1e-12, 10.0))
        if choice == "atol":
            size = float(np.max(norm(a), initial=0)) * float(np.max(norm(b), initial=0))
            value = min(max(value * (size if 0 < size < math.inf else 1.0), 5e-324), 1e308)
        keywords[choice] = value
    return norms


def _allowed(keywords: dict[str, Any], size: Any) -> Any:
    """Return the error that is asked for of products whose factors' norms have this product, None where none is."""
    if "atol" in keywords:
        return keywords["atol"] + 0 * size
    return keywords["rtol_factors"] * size if "rtol_factors" in keywords else None


def _rounding(shape: tuple[int, ...], k: int, size: Any, keywords: dict[str, Any], norm_c: Any, name: str) -> Any:
    """Return a bound of the rounding error of its own."""
    unit, of_result, least = ROUNDING[name]
    alpha, beta = abs(keywords.get("alpha", 1.0)), abs(keywords.get("beta", 0.0))
    steps = np.longdouble(k + 4) * unit
    whole = alpha * size + beta * norm_c
    products = least * (k + 4) * max(alpha, 1.0) * math.sqrt(max(1, shape[-1] * shape[-2]))
    return steps / (1 - steps) * alpha * size + 4 * unit * beta * norm_c + of_result * whole * 1.01 + products


def _overflow(a: Any, b: Any) -> bool:
    """Return whether norms, their products, or the sum of these, may be beyond float64, in which a GPU has them."""
    sizes = [np.max(norm(x), initial=0) for x in (a, b)]
    most = sizes[0] * sizes[1] * max(1, a.size) * max(1, b.size)
    return bool(max(most, *sizes) > _largest("float64") / 2)


def _largest(name: str) -> float:
    return {"float64": float(np.finfo("f8").max), "float16c16": 65504.0}.get(name, float(np.finfo("f4").max))


def _may_refuse(
    refused: Refused, keywords: dict[str, Any], a: Any, b: Any, shape: tuple[int, ...], name: str, output: str
) -> bool:
    """Return whether a supported call may be refused: a tolerance below rounding, float16 that overflows, the layout
    of out."""
    out = keywords.get("out")
    if out is not None and not (out.flags.c_contiguous and _writeable(out)):
        return True
    if max(float(np.max(norm(x), initial=0)) for x in (a, b)) > _largest("float64") / 2:
        return True  # a norm that no number holds
    if 0 in shape:
        return False
    sizes = np.broadcast_to(norm(a), shape[:-2]) * np.broadcast_to(norm(b), shape[:-2])
    if name == "float16c16":
        added = norm(host(keywords["c"])) if "c" in keywords else 0.0
        if np.max(abs(keywords.get("alpha", 1.0)) * sizes + abs(keywords.get("beta", 0.0)) * added) > 60000:
            return True
    if "valid_ratio" in keywords and "overflow" in str(refused):
        return _overflow(a, b)
    allowed = _allowed(keywords, sizes)
    if allowed is not None and keywords["backend"] == "cuda":
        least = min(float(np.min(norm(x))) for x in (a, b))
        if least < LEAST_NORM["float64"]:
            return True
    lifted = 2.0**8 * ALIGNED.get(name, 0.0)
    if allowed is not None and any(float(np.min(norm(x))) < lifted * math.sqrt(x.size) for x in (a, b)):
        return True
    if allowed is not None:
        # The bound that is promised may be a little above the one that is computed here.
        bounds = np.array([_rounding(shape, a.shape[-1], size, {}, 0.0, name) for size in sizes.ravel()])
        tight = bool(np.any(2 * bounds >= allowed.ravel()))
        return tight or bool(np.max(sizes) > _largest(name) / 4)
    return False


def _check_one(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    found: np.ndarray,
    one: dict[str, float],
    keywords: dict[str, Any],
    name: str,
    norms: Norms | None,
) -> None:
    """Check one product of a batch against longdouble."""
    k, block, alpha, beta = a.shape[1], keywords["block"], keywords.get("alpha", 1.0), keywords.get("beta", 0.0)
    norms = norms or Norms(a, b, block)
    exact = alpha * (a @ b) + beta * c
    size, norm_c = norm(a) * norm(b), norm(c)
    largest = _largest(name)
    rounding = _rounding(found.shape, k, size, keywords, norm_c, name)
    tau, bound = one["tau"], one["error_bound"]
    holds(tau >= 0, f"tau = {tau}")
    holds("tau" not in keywords or tau == keywords["tau"], f"tau is {keywords.get('tau')}, {tau} is said")
    if bound == math.inf:
        holds(
            max(size, abs(alpha) * size + abs(beta) * norm_c) > largest / 8
            or (keywords["backend"] == "cuda" and max(norm(a), norm(b), norm_c) > largest / 8),
            f"no finite bound though ||A|| ||B|| is {float(size):.3g}",
        )
    else:
        error = norm(found - exact)
        holds(error <= bound * (1 + 1e-9), f"the error is {float(error):.3g} and its bound {bound:.3g}")
        allowed = abs(alpha) * norms.skipped(tau * (1 + 1e-4)) * (1 + 1e-4) + 3 * rounding
        allowed += (k + 2) * norms.least * math.sqrt(found.size)
        # Tensor cores round small entries as if they were larger.
        lifts = ALIGNED.get(name, 0.0) * math.sqrt(a.size), ALIGNED.get(name, 0.0) * math.sqrt(b.size)
        lifted = norm(a) * lifts[1] + norm(b) * lifts[0] + lifts[0] * lifts[1]
        allowed += 3 * abs(alpha) * (k + 4) * ROUNDING[name][0] * lifted
        holds(bound <= allowed * (1 + 1e-3), f"the bound is {bound:.3g}, {float(allowed):.3g} would do")
        limit = _allowed(keywords, size)
        if limit is not None and alpha == 1 and beta == 0:
            holds(error <= limit * (1 + 1e-9), f"{float(limit):.3g} is allowed, the error is {float(error):.3g}")
            holds(bound <= limit * (1 + 1e-6), f"{float(limit):.3g} is allowed, the bound is {bound:.3g}")
    slack, least = (1e-9 if name == "float64" else 1e-4), 2e-323 + norms.least
    with np.errstate(over="ignore"):
        above, below = np.longdouble(tau) * (1 + slack) + least, max(np.longdouble(tau) * (1 - slack) - least, 0)
    if keywords["backend"] == "cuda":
        # Whose products of norms are beyond float64 a GPU multiplies, whatever tau is.
        below = min(below, np.longdouble(_largest("float64")) * (1 - slack))
        below = 0 if max(norm(a), norm(b)) > _largest("float64") / 2 else below
    low, high = norms.share(above), norms.share(below)
    holds(low - 1e-12 <= one["valid_ratio"] <= high + 1e-12, f"valid_ratio {one['valid_ratio']}, not {low} to {high}")
    holds(one["executed_ratio"] >= one["valid_ratio"], "executed_ratio is below valid_ratio")
    if keywords.get("strict") or one["executed_ratio"] == one["valid_ratio"]:
        holds(one["executed_ratio"] == one["valid_ratio"], "strict, and executed_ratio is above valid_ratio")
        if low == high and bound != math.inf:
            error = norm(found - alpha * norms.product(above if tau else np.longdouble(0)) - beta * c)
            holds(error <= 1.01 * rounding, f"off the valid products by {float(error):.3g}, not {float(rounding):.3g}")
    if "valid_ratio" in keywords and norms.products.size:
        _check_share(keywords["valid_ratio"], one["valid_ratio"], norms)


def _check_share(wanted: float, found: float, norms: Norms, tolerance: float | None = None) -> None:
    """A search comes as near as 20 halvings of [0, k ave] can; equal norms cannot be told apart."""
    average = float(norms.products.mean())
    if not 1e-290 < average < 1e300:
        return  # where thresholds are few
    step = 8 * average * 2.0**-20
    best = min(
        (
            abs(norms.share(tau) - wanted)
            for tau in (0.0, *np.unique(norms.products)[::-1] * (1 - 1e-6))
            if tau == 0 or tau > 2 * step
        ),
        default=1.0,
    )
    # Other norms within a step of the best threshold cannot be resolved.
    spread = float(np.mean(norms.products < 4 * step))
    holds(
        abs(found - wanted) <= max(best, tolerance or min(0.01, 0.1 * wanted)) + spread + 1e-9,
        f"valid_ratio {found} for a wanted {wanted}, {best:.3g} off were possible",
    )


def spamm_threshold(draw: Draw, place: Place) -> None:
    """What a threshold leaves is what the product says."""
    dtype = draw("dtype", MULTIPLIED)
    m, k, n = draw("m", SIZES), draw("k", SIZES), draw("n", SIZES)
    block = draw("block", (32, 16, 8, 64))
    a = lay_drawn(draw, "a", numbers(draw, "a", (m, k), dtype), place)
    b = lay_drawn(draw, "b", numbers(draw, "b", (k, n), dtype), place)
    wide_a, wide_b = (host(x.array).astype(np.longdouble) for x in (a, b))
    keywords: dict[str, Any] = {"block": block, "backend": place.backend}
    _threshold(draw, keywords, wide_a, wide_b, block)
    unchanged = Unchanged(a=a, b=b)
    before = call(draw, nearsparse.spamm_threshold, a.array, b.array, **keywords)
    product = call(draw, nearsparse.spamm, a.array, b.array, strict=True, check_finite=True, **keywords)
    unchanged.check()
    if isinstance(before, Refused) or isinstance(product, Refused):
        holds(type(before) is type(product), f"only one of spamm and spamm_threshold refuses: {before} / {product}")
        if not _may_refuse(before, keywords, wide_a, wide_b, (m, n), dtype, dtype):
            must(before)
        return
    found = (before.tau, before.valid_ratio, before.error_bound)
    said = (product.tau, product.valid_ratio, product.error_bound)
    holds(
        np.allclose(
            np.array(found, float), np.array(said, float), rtol=1e-4 if place.on_gpu else 1e-12, equal_nan=True
        ),
        f"spamm_threshold says {found}, spamm {said}",
    )
    same_bits(
        found,
        [
            getattr(nearsparse.spamm_threshold(a.array, b.array, **keywords), x)
            for x in ("tau", "valid_ratio", "error_bound")
        ],
    )


def norm_map(draw: Draw, place: Place) -> None:
    """Norms of tiles of any size of entries."""
    dtype = draw("dtype", (*MULTIPLIED, ">f8", "int16", "longdouble"))
    shape = draw("m", SIZES), draw("n", SIZES)
    block = draw("block", (32, 16, 8, 64, 128) if place.on_gpu else (32, 16, 8, 64, 7, 1, 1000))
    a = lay_drawn(draw, "a", numbers(draw, "a", shape, dtype), place)
    unchanged = Unchanged(a=a)
    result = call(draw, nearsparse.norm_map, a.array, block)
    unchanged.check()
    if isinstance(result, Refused):
        if dtype in MULTIPLIED:
            must(result)
        return
    exact = tile_norms(host(a.array).astype(np.longdouble), block)
    found = host(result.norms)
    holds(found.shape == exact.shape, f"norms have shape {found.shape}, not {exact.shape}")
    slack = 2e-5 if place.on_gpu and dtype != "float64" else 1e-12
    off = (np.abs(found - exact) > slack * exact + 2e-323) & (exact < 1e308)
    holds(not off.any(), f"norms are {found[off][:2]}, not {exact[off][:2]}")
    same_bits(result.norms, nearsparse.norm_map(a.array, block).norms)


def tune_tau(draw: Draw, place: Place) -> None:
    """A threshold for a share, of matrices and of norm maps."""
    dtype = draw("dtype", MULTIPLIED)
    m, k, n = draw("m", SIZES), draw("k", SIZES), draw("n", SIZES)
    block = draw("block", (32, 16, 8))
    a = lay_drawn(draw, "a", numbers(draw, "a", (m, k), dtype), place)
    b = lay_drawn(draw, "b", numbers(draw, "b", (k, n), dtype), place)
    wanted = draw("valid_ratio", (1.0, 0.5, 0.1, 0.9, 1e-3))
    options = draw("search", [{}, {}, {"iterations": 3}, {"tolerance": 1e-4, "iterations": 40}])
    unchanged = Unchanged(a=a, b=b)
    result = call(draw, nearsparse.tune_tau, a.array, b.array, wanted, block=block, **options)
    unchanged.check()
    if isinstance(result, Refused) and place.on_gpu and "overflow" in str(result):
        holds(_overflow(host(a.array), host(b.array)), f"a valid call is refused: {result}")
        return
    tau, share = must(result)
    holds(type(tau) is float and type(share) is float, f"tau and ratio are {type(tau)} and {type(share)}")
    norms = Norms(*(host(x.array).astype(np.longdouble) for x in (a, b)), block)
    slack, least = (1e-4 if place.on_gpu else 1e-9), 2e-323 + norms.least
    low, high = (
        norms.share(np.longdouble(tau) * (1 + slack) + least),
        norms.share(np.longdouble(tau) * (1 - slack) - least),
    )
    holds(low - 1e-12 <= share <= high + 1e-12, f"a ratio of {share} is said, tau = {tau} leaves {low} to {high}")
    if not options and norms.products.size:
        _check_share(wanted, share, norms, 0.01)
    maps = [nearsparse.norm_map(x.array, block) for x in (a, b)]
    if any(float(one.norms.max()) == math.inf for one in maps if one.norms.size):
        return  # norms that maps do not hold
    same_bits(result, nearsparse.tune_tau(*maps, wanted, **options), "the search in norm maps")
