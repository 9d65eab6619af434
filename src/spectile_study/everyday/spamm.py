"""Everyday draws of SpAMM: ``spamm(a, b, rtol_factors=...)`` of matrices with decay, in blocks, and density matrices.

Sites lie on a lattice of one to three dimensions in Morton's order, so that sites with near numbers are near.  Rows and
columns of a matrix are sites spread evenly over all of them.  Rivals are the dense product; ``skipping`` is the call
that never takes the dense one, and ``allowed`` what its own flops, at the dense product's rate, and bytes allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile import spamm
from spectile.nearsparse.bounds import rounding_terms
from spectile_study.bench import vendor
from spectile_study.bench.case import Method
from spectile_study.everyday.problem import PROBED, PROBES, Cost, Drawn, Params, Place, method, size
from spectile_study.everyday.strata import Strata

LEAST, LARGEST = 64, 16384
KINDS = ("exponential", "Gaussian", "algebraic", "blocks", "density matrix")
DTYPES = ("float16", "float32", "float64")
#: Wanted errors, the smallest this many times the bound of rounding, below which a call is refused.
COARSEST, FINEST, ABOVE_ROUNDING = 1e-2, 1e-10, 8.0
#: Products of up to so many multiplications are checked against the whole product in float64.
EXACT = {"cpu": 2e9, "cuda": 2e11}
PRECISIONS = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}
_GEMM: dict[str, vendor.GemmMode] = {"float16": "fp16_fp32", "float32": "fp32", "float64": "fp64"}


def draw(strata: Strata) -> Params:
    """Return the parameters of a draw."""
    sizes = {name: strata.log_integer(name, LEAST, LARGEST) for name in "mkn"}
    kind, dtype = strata.one_of("kind", KINDS), strata.one_of("dtype", DTYPES)
    params: Params = {**sizes, "dtype": dtype, "kind": kind}
    if kind == "blocks":
        params["block"] = strata.log_integer("block", 8, 512)
        params["filled"] = strata.log_between("filled", 0.01, 0.5)
    else:
        params["dimensions"] = strata.one_of("dimensions", (1, 2, 3))
        # Rates of decay: a length in sites, an exponent, or a gap in units of the hopping.
        low, high = {"exponential": (0.5, 64.0), "Gaussian": (1.0, 64.0), "algebraic": (1.0, 8.0)}.get(kind, (0.1, 3.0))
        params["decay"] = strata.log_between("decay", low, high)
    least = ABOVE_ROUNDING * rounding_terms((sizes["m"], sizes["k"], sizes["n"]), PRECISIONS[dtype]).relative
    params["rtol"] = strata.log_between("rtol", min(max(FINEST, least), COARSEST / 2), COARSEST)
    return params


def told(params: Params) -> str:
    """Return the draw in words."""
    where = f"{params['dimensions']}-D" if "dimensions" in params else f"of {params['block']}"
    sizes = " x ".join(str(params[name]) for name in "mkn")
    return f"{sizes} {params['dtype']}, {params['kind']} {where}, rtol_factors {params['rtol']:.1g}"


def cost(params: Params) -> Cost:
    """Return about what the draw takes."""
    m, k, n = (params[name] for name in "mkn")
    # Operands, results of three methods, and float64 copies for the check.
    entries = m * k + k * n + m * n
    return Cost(entries * 8 * 5.0, dense=float(m) * k * n)


def build(params: Params, numbers: np.random.Generator, place: Place) -> Drawn:
    """Return the draw with its matrices."""
    xp, rng, dtype = place.xp, place.rng(numbers), np.dtype(params["dtype"])
    m, k, n = (params[name] for name in "mkn")
    entries = _entries(params, max(m, k, n), rng, xp)
    a, b = entries(m, k).astype(dtype), entries(k, n).astype(dtype)
    rtol = float(params["rtol"])
    norms = float(xp.linalg.norm(a.astype(np.float64))) * float(xp.linalg.norm(b.astype(np.float64)))
    exact = m * k * n <= EXACT[place.device]
    whole = a.astype(np.float64) @ b.astype(np.float64) if exact else None
    signs = None if exact else xp.where(rng.random((n, PROBES)) < 0.5, -1.0, 1.0)
    image = None if exact else _times(a, _times(b, signs, xp), xp)

    def error_of(c: Any) -> float:
        if whole is not None:
            return float(xp.linalg.norm(c.astype(np.float64) - whole)) / (norms or 1.0)
        return float(xp.linalg.norm(_times(c, signs, xp) - image)) / np.sqrt(PROBES) / (norms or 1.0)

    factor = 1.0 if exact else PROBED
    shares: dict[str, float] = {}

    def check(result: Any) -> dict[str, float]:
        error = error_of(result.c)
        shares["share"] = float(result.executed_ratio)
        bound = float(result.error_bound) / (norms or 1.0)
        return {"error": error, "over_bound": error / bound if bound else float(error > 0)}

    def ours(name: str, **more: Any) -> Method:
        made = method(
            name, place.call(spamm, a, b, rtol_factors=rtol, backend=place.device, **more), check, rtol * factor
        )
        made.limits = {**made.limits, "over_bound": factor}
        return made

    def allowed(seconds: Mapping[str, float]) -> float | None:
        if "dense" not in seconds or "share" not in shares:
            return None
        return max(shares["share"] * seconds["dense"], (size(a, b) + m * n * max(4, dtype.itemsize)) / seconds["copy"])

    def dense_check(c: Any) -> dict[str, float]:
        return {"error": error_of(c)}

    return Drawn(
        call="spamm(a, b, rtol_factors=rtol)",
        function=spamm,
        arguments=((a, b), {"rtol_factors": rtol, "backend": place.device}),
        ours=ours("spectile"),
        rivals=[method("dense", _dense(a, b, place), dense_check, rtol * factor)],
        others=[ours("skipping", method="spamm")],
        asked=rtol * factor,
        check="exact" if exact else "probes",
        result_bytes=m * n * max(4, dtype.itemsize),
        allowed=allowed,
        work=lambda: dict(shares),
        taken=lambda result: str(result.method),
    )


def _times(x: Any, y: Any, xp: Any) -> Any:
    """Return x y in float64, some rows at a time: a float64 copy of all of x may not fit."""
    rows = max(1, 2**26 // max(x.shape[1], 1))
    return xp.concatenate([x[first : first + rows].astype(np.float64) @ y for first in range(0, x.shape[0], rows)])


def _dense(a: Any, b: Any, place: Place) -> Callable[[], Any]:
    if place.device == "cpu":
        # NumPy multiplies float16 one by one: its user converts.
        if a.dtype == np.float16:
            return lambda: a.astype(np.float32) @ b.astype(np.float32)
        return lambda: a @ b
    import cupy

    wide = np.float64 if a.dtype == np.float64 else np.float32

    def run() -> Any:
        # Made for each call, as the result of ours is.
        out = cupy.empty((a.shape[0], b.shape[1]), wide)
        return place.wait(vendor.Gemm(a, b, out, _GEMM[a.dtype.name])())

    return run


def _entries(params: Params, sites: int, rng: Any, xp: Any) -> Callable[[int, int], Any]:
    """Return ``entries(rows, columns)``, which makes a matrix in float32 or float64."""
    kind = params["kind"]
    if kind == "blocks":
        return lambda rows, columns: _blocks(rows, columns, params["block"], params["filled"], rng, xp)
    dimensions = params["dimensions"]
    where, side = _sites(sites, dimensions)
    if kind == "density matrix":
        kernel = xp.asarray(_projector(side, dimensions, params["decay"]))

        def of(difference: Any, one: Any, two: Any) -> Any:
            place = xp.zeros(difference.shape[:2], np.int64)
            for axis in range(dimensions):
                place = place * side + difference[..., axis] % side
            parity = (one.sum(axis=-1) % 2)[:, None] + 0 * place
            return kernel[parity, place]
    else:
        profile = {
            "exponential": lambda d: xp.exp(-d / params["decay"]),
            "Gaussian": lambda d: xp.exp(-((d / params["decay"]) ** 2)),
            "algebraic": lambda d: 1 / (1 + d ** params["decay"]),
        }[kind]

        def of(difference: Any, one: Any, two: Any) -> Any:
            distance = xp.sqrt((difference.astype(np.float64) ** 2).sum(axis=-1))
            return profile(distance) * (0.5 + rng.random(distance.shape))

    def entries(rows: int, columns: int) -> Any:
        one, two = (xp.asarray(where[np.arange(count) * sites // count]) for count in (rows, columns))
        made = xp.empty((rows, columns), np.float64 if params["dtype"] == "float64" else np.float32)
        step = max(1, 2**22 // columns)
        for first in range(0, rows, step):
            part = one[first : first + step]
            made[first : first + step] = of(part[:, None, :] - two[None, :, :], part, two)
        return made

    return entries


def _blocks(rows: int, columns: int, block: int, filled: float, rng: Any, xp: Any) -> Any:
    tall, wide = -(-rows // block), -(-columns // block)
    kept = rng.random((tall, wide)) < filled
    kept[xp.arange(tall), xp.arange(tall) * wide // tall] = True  # no matrix is zero
    made = rng.standard_normal((rows, columns), dtype=np.float32)
    row, column = xp.arange(rows) // block, xp.arange(columns) // block
    for first in range(0, rows, 1024):
        made[first : first + 1024] *= kept[row[first : first + 1024][:, None], column[None, :]]
    return made


def _sites(count: int, dimensions: int) -> tuple[np.ndarray, int]:
    """Return the coordinates of sites in Morton's order, and the lattice's side, which is even."""
    side = max(2, int(np.ceil(count ** (1 / dimensions) - 1e-9)))
    side += side % 2
    axes = np.indices((side,) * dimensions).reshape(dimensions, -1).T
    code = np.zeros(len(axes), np.int64)
    for bit in range(int(side).bit_length()):
        for axis in range(dimensions):
            code |= ((axes[:, axis] >> bit) & 1) << (bit * dimensions + axis)
    return axes[np.argsort(code, kind="stable")][:count], side


def _projector(side: int, dimensions: int, gap: float) -> np.ndarray:
    """Return the density matrix of a half-filled ionic lattice: by the parity of one site, and the step to the other.

    Sites of even and odd parity have the energies ±`gap` and neighbours hop with -1, all periodic: in momentum space
    H = [[gap, t], [t, -gap]] with t = -2 Σ cos k, and P = (1 - H / |H|) / 2.

    Returns
    -------
    ndarray, shape (2, side ** dimensions)
    """
    k = 2 * np.pi * np.fft.fftfreq(side)
    t = -2 * sum(np.cos(axis) for axis in np.meshgrid(*[k] * dimensions, indexing="ij"))
    energy = np.sqrt(gap**2 + t**2)
    between = np.fft.ifftn(-t / energy / 2).real  # odd steps alone
    within = np.fft.ifftn(gap / energy / 2).real  # even steps alone
    one = np.zeros((side,) * dimensions)
    one.flat[0] = 0.5
    return np.stack([(one - within + between).ravel(), (one + within + between).ravel()])
