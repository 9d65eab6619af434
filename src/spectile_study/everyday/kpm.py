"""Everyday draws of spectral densities: ``kpm_dos(H, M, R)`` as called, bounds included.

The rival is the chain that a user makes of the libraries' products: the scaled matrix, one product of R vectors a step
that subtracts the vectors before, and one kernel for all scalar products; its bounds are Gershgorin's, which take less
time than ours.  Moments are held against the same recurrence in float64 by SciPy's or CuPy's product: all of them, or
of large problems the first ones.  ``setup`` is the call with two moments, so that the rest is the recurrence alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from spectile import kpm_dos
from spectile.core.compile import PORTABLE, Unit
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.kpm import bounds, reference
from spectile.kpm.operators.user import OperatorRecursion, ProductOperator
from spectile.kpm.reference import seed_of
from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.kpm import model
from spectile_study.everyday.problem import Cost, Drawn, Params, Place, absent, method, version
from spectile_study.everyday.sparse import hermitian, lengths_about, offsets_around, places_of, power_lengths
from spectile_study.everyday.strata import Strata

ROWS, ENTRIES, VECTORS, MOMENTS = (10_000, 10_000_000), (2, 100), (1, 64), (64, 2048)
KINDS = ("lattice", "Wannier", "disorder", "random", "unequal")
DTYPES = ("float32", "float64", "complex64", "complex128")
#: Moments are all compared where the products of the reference are no more; else the first `FIRST`.
CHECKED = {"cpu": 3e8, "cuda": 2e10}
FIRST = 16
#: Vectors that the reference takes at a time.
TOGETHER = 8
#: Largest error of the moments, in units of ε: at first, and more with each moment.
AT_FIRST = 1000.0
UNITS = tuple(
    Unit(__package__, ("dots.cu",), PORTABLE, {"real": "double" if wide else "float", "COMPLEX": str(pair)})
    for wide in (False, True)
    for pair in (0, 1)
)


def draw(strata: Strata) -> Params:
    """Return the parameters of a draw."""
    kind = strata.one_of("kind", KINDS)
    params: Params = {
        "rows": strata.log_integer("rows", *ROWS),
        "entries": strata.log_integer("entries", *ENTRIES),
        "kind": kind,
        "dtype": strata.one_of("dtype", DTYPES),
        "vectors": strata.log_integer("vectors", *VECTORS),
        "moments": strata.log_integer("moments", *MOMENTS),
    }
    if kind in ("lattice", "Wannier", "disorder"):
        params["dimensions"] = strata.one_of("dimensions", (1, 2, 3))
    if kind == "Wannier":
        params["orbitals"] = strata.log_integer("orbitals", 2, 16)
    if kind == "unequal":
        params["exponent"] = strata.between("exponent", 1.5, 3.0)
    return params


def told(params: Params) -> str:
    """Return the draw in words."""
    where = f" {params['dimensions']}-D" if "dimensions" in params else ""
    return (
        f"{params['kind']}{where}, {params['rows']:,} rows, {params['entries']} entries, {params['dtype']}, "
        f"R = {params['vectors']}, M = {params['moments']}"
    )


def cost(params: Params) -> Cost:
    """Return about what the draw takes."""
    rows, width, item = params["rows"], params["vectors"], np.dtype(params["dtype"]).itemsize
    nnz = float(rows * params["entries"])
    # Keys, the matrix, its copy in float64 and the scaled one; the states of ours or of the rival, and the reference's.
    memory = nnz * (60 + 3 * item) + rows * (3.0 * width * item + 4.0 * TOGETHER * 16)
    steps = params["moments"] / 2
    # Gathered entries take ten times as long as those of dense products, and complex ones four times.
    work = 10 * nnz * width * steps * (4 if params["dtype"].startswith("complex") else 1)
    return Cost(memory, dense=work, bytes=steps * model.step_bytes("aug_spmmv", rows, int(nnz), width, params["dtype"]))


def build(params: Params, numbers: np.random.Generator, place: Place) -> Drawn:
    """Return the draw with its matrix."""
    matrix = _matrix(params, place.rng(numbers), place)
    m, r, seed = params["moments"], params["vectors"], int(numbers.integers(2**31))
    dtype = np.dtype(params["dtype"])
    count = m if matrix.nnz * r * (m / 2) <= CHECKED[place.device] else min(m, FIRST)
    limit = float(np.finfo(dtype).eps) * (AT_FIRST + m)
    wide = np.promote_types(dtype, np.float64)
    starts = {
        "ours": _phases(seed_of(seed), matrix.shape[0], wide, place),
        "rival": _starts(seed, matrix.shape[0], r, wide, place),
    }
    check = _checked(matrix, r, count, starts, place)

    def called(name: str, moments: int) -> Method:
        def ours(density: Any) -> dict[str, float]:
            return check(density.moments[:count], bounds.scaling(density.bounds), "ours", min(moments, count))

        run = place.call(kpm_dos, matrix, moments, r, rng=seed, backend=place.device)
        return method(name, run, ours, limit)

    steps = m / 2

    def allowed(seconds: Mapping[str, float]) -> float | None:
        if "setup" not in seconds:
            return None
        # The recurrence alone, as a part of the call that it would be at the rate of a copy.
        bytes_ = (steps - 1) * model.step_bytes("aug_spmmv", matrix.shape[0], matrix.nnz, r, dtype)
        recurrence = seconds["spectile"] - seconds["setup"]
        return seconds["spectile"] * bytes_ / seconds["copy"] / recurrence if recurrence > 0 else None

    return Drawn(
        call=f"kpm_dos(H, {m}, {r})",
        function=kpm_dos,
        arguments=((matrix, m, r), {"rng": seed, "backend": place.device}),
        ours=called("spectile", m),
        rivals=_rivals(matrix, m, r, seed, count, limit, check, place),
        others=[called("setup", 2)],
        asked=limit,
        check="exact" if count == m else "probes",
        result_bytes=8 * m,
        allowed=allowed,
        work=lambda: _shape(matrix, place.xp),
    )


def _shape(matrix: Any, xp: Any) -> dict[str, float]:
    """Return rows, entries, those of the longest row, and slots where 32 rows are as long as the longest of them."""
    lengths = xp.diff(matrix.indptr)
    whole = xp.concatenate([lengths, xp.zeros(-len(lengths) % 32, lengths.dtype)]).reshape(-1, 32)
    slots = 32 * int(whole.max(axis=1).sum())
    return {"rows": matrix.shape[0], "nnz": matrix.nnz, "longest": int(lengths.max()), "slots": slots}


def _matrix(params: Params, rng: Any, place: Place) -> Any:
    """Return the Hamiltonian: about so many entries a row, half of them above the diagonal."""
    xp, kind, entries = place.xp, params["kind"], params["entries"]
    if kind in ("random", "unequal"):
        rows = params["rows"]
        half = entries / 2
        lengths = (
            power_lengths(rows, half, params["exponent"], rows // 20, rng, xp)
            if kind == "unequal"
            else lengths_about(rows, half, rng, xp)
        )
        low, _ = places_of(lengths, xp)
        return hermitian(low, rng.integers(0, rows, len(low)), rows, params["dtype"], "random", rng, place)
    orbitals, dimensions = params.get("orbitals", 1), params["dimensions"]
    side = max(3, round((params["rows"] / orbitals) ** (1 / dimensions)))
    cells = side**dimensions
    steps = xp.asarray(offsets_around(side, dimensions, max(3, round(entries / orbitals))))
    cell = xp.arange(cells, dtype=np.int64)
    low, high = (x.ravel() for x in xp.broadcast_arrays(cell[:, None], (cell[:, None] + steps[None, :]) % cells))
    if orbitals > 1:
        one, two = (x.ravel() for x in xp.meshgrid(xp.arange(orbitals), xp.arange(orbitals)))
        low = (low[:, None] * orbitals + one[None, :]).ravel()
        high = (high[:, None] * orbitals + two[None, :]).ravel()
    style = {"lattice": "constant", "disorder": "disorder", "Wannier": "random"}[kind]
    return hermitian(low, high, cells * orbitals, params["dtype"], style, rng, place)


Blocks = Callable[[int, int], Any]


def _phases(seed: int, rows: int, dtype: np.dtype[Any], place: Place) -> Blocks:
    """Return ``blocks(first, width)``: the start vectors of a call of ours with this seed."""
    real = dtype.kind != "c"

    def on_host(first: int, width: int) -> Any:
        return reference.random_phases(seed, rows, width, first_vector=first, real=real, dtype=dtype)

    def on_device(first: int, width: int) -> Any:
        from spectile.kpm.cuda.common import vectors_unit

        block = place.xp.empty((rows, width), dtype)
        kernel(vectors_unit(str(dtype)), "random_phases")(
            Shape((1024,), 256), block, np.uint64(0), np.int64(rows), np.int32(width), np.int32(width),
            np.uint64(seed), np.uint64(first),
        )  # fmt: skip
        return block

    return on_device if place.device == "cuda" else on_host


def _checked(
    matrix: Any, r: int, count: int, starts: Mapping[str, Blocks], place: Place
) -> Callable[..., dict[str, float]]:
    """Return ``check(moments, scaling, start, compared)``: the largest error of the first moments, over the 0th.

    The reference of a scaling and a start is made once: every call is held against all that it has given.
    """
    wide = matrix.astype(np.promote_types(matrix.dtype, np.float64))

    @functools.cache
    def reference_of(scaling: tuple[float, float], start: str) -> Any:
        wanted = np.zeros(count)
        for first in range(0, r, TOGETHER):
            block = starts[start](first, min(TOGETHER, r - first))
            etas = OperatorRecursion(ProductOperator(wide), *scaling, block).advance(-(-count // 2))
            wanted += reference.moments_from_etas(etas)[:count].sum(axis=1)
        return wanted / r

    def check(moments: Any, scaling: tuple[float, float], start: str, compared: int) -> dict[str, float]:
        found, wanted = np.asarray(place.on_host(moments))[:compared], reference_of(scaling, start)[:compared]
        if found.shape != wanted.shape:
            return {"error": float("nan")}
        return {"error": float(np.abs(found - wanted).max() / wanted[0])}

    return check


def _starts(seed: int, rows: int, r: int, dtype: np.dtype[Any], place: Place) -> Blocks:
    """Return the start vectors of a rival: signs by NumPy, which are quicker than ours, or ours on a device."""
    if place.device == "cuda":
        return _phases(seed, rows, dtype, place)

    def blocks(first: int, width: int) -> Any:
        signs = 2 * np.random.default_rng(seed).integers(0, 2, (rows, r), np.int8) - 1
        return signs[:, first : first + width].astype(dtype)

    return blocks


def gershgorin(matrix: Any, xp: Any) -> tuple[float, float]:
    """Return Gershgorin's bounds of the spectrum."""
    diagonal = matrix.diagonal().real
    radius = xp.asarray(abs(matrix).sum(axis=1)).ravel() - xp.abs(diagonal)
    return float((diagonal - radius).min()), float((diagonal + radius).max())


Steps = Callable[[Any, Any, Any, int], Iterator[tuple[Any, Any]]]


def _rivals(
    matrix: Any,
    m: int,
    r: int,
    seed: int,
    count: int,
    limit: float,
    check: Callable[..., dict[str, float]],
    place: Place,
) -> list[Method | Skipped]:
    xp, rows = place.xp, matrix.shape[0]

    def checked(result: tuple[Any, tuple[float, float]]) -> dict[str, float]:
        moments, scaling = result
        return check(moments, scaling, "rival", count)

    def chain(name: str, order: str, steps: Steps, dots: Callable[[Any, Any, Any], None]) -> Method:
        def run() -> Any:
            a, b = scaling = bounds.scaling(gershgorin(matrix, xp))
            one = place.sparse.identity(rows, dtype=matrix.dtype, format="csr")
            scaled = ((matrix - one * b) * a).astype(matrix.dtype).tocsr()
            start = xp.asarray(_starts(seed, rows, r, matrix.dtype, place)(0, r), order=order)
            etas = xp.zeros((m + m % 2, r))
            for step, (v, w) in enumerate(steps(scaled, start, xp.empty_like(start), -(-m // 2))):
                dots(v, w, etas[2 * step : 2 * step + 2])
            etas = place.on_host(etas)
            return reference.moments_from_etas(etas)[:m].mean(axis=1), scaling

        # The scaled matrix is rounded once more than ours.
        return method(name, run, checked, 10 * limit)

    if place.device == "cuda":
        return [
            chain("cusparse_spmm", "F", _spmm_steps, dots_of),
            chain("cusparse_spmm_rows", "C", _spmm_steps, dots_of),
        ]

    def products(multiply: Callable[[Any, Any], Any]) -> Steps:
        def steps(scaled: Any, v: Any, w: Any, count: int) -> Iterator[tuple[Any, Any]]:
            w[...] = multiply(scaled, v)
            yield v, w
            twice = scaled * 2
            for _ in range(count - 1):
                v, w = w, v
                np.subtract(multiply(twice, v), w, out=w)
                yield v, w

        return steps

    def dots(v: Any, w: Any, out: Any) -> None:
        out[0] = np.einsum("ij,ij->j", v.conj(), v, dtype=np.promote_types(v.dtype, np.float64)).real
        out[1] = np.einsum("ij,ij->j", w.conj(), v, dtype=np.promote_types(v.dtype, np.float64)).real

    found: list[Method | Skipped] = [chain("scipy", "C", products(lambda h, v: h @ v), dots)]
    if version("sparse-dot-mkl"):
        mkl = importlib.import_module("sparse_dot_mkl").dot_product_mkl
        found.append(chain("mkl", "C", products(mkl), dots))
    else:
        found.append(absent("mkl", "sparse-dot-mkl"))
    return found


def dots_of(v: Any, w: Any, etas: Any) -> None:
    """Add ⟨v|v⟩ and Re ⟨w|v⟩ of each column to `etas`, shape (2, R), by one kernel.

    Parameters
    ----------
    v, w : cupy.ndarray, shape (N, R)
        Both by rows or both by columns.
    etas : cupy.ndarray of float64, shape (2, R)
    """
    rows, width = v.shape
    beside = int(v.flags.c_contiguous)
    name = v.dtype.name
    unit = UNITS[2 * (name in ("float64", "complex128")) + (v.dtype.kind == "c")]
    held = width if beside else 1
    shape = Shape((512, 1 if beside else width), width * (256 // width) if beside else 256, 16 * held)
    kernel(unit, "dots")(shape, v, w, etas, np.int64(rows), np.int32(width), np.int32(beside))


def _spmm_steps(scaled: Any, v: Any, w: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """Take the steps of the recurrence by one product of cuSPARSE each, W = 2 H V - W."""
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse
    from cupyx.cusparse import SpMatDescriptor

    kind = importlib.import_module("cupy._core._dtype").to_cuda_dtype(v.dtype)
    by_rows = v.flags.c_contiguous
    order = cusparse.CUSPARSE_ORDER_ROW if by_rows else cusparse.CUSPARSE_ORDER_COL
    # CUSPARSE_SPMM_CSR_ALG2 is made for vectors by rows.
    algorithm = 6 if by_rows else cusparse.CUSPARSE_MM_ALG_DEFAULT
    handle = device.get_cusparse_handle()
    cusparse.setStream(handle, cupy.cuda.get_current_stream().ptr)
    sparse = SpMatDescriptor.create(scaled)
    rows, width = v.shape
    dense = [cusparse.createDnMat(rows, width, width if by_rows else rows, address(x), kind, order) for x in (v, w)]
    factors = [np.array(x, v.dtype) for x in (1, 0, 2, -1)]
    once, none, twice, minus = (address(x) for x in factors)

    def arguments(alpha: int, beta: int, step: int) -> tuple[Any, ...]:
        return (handle, 0, 0, alpha, sparse.desc, dense[step % 2], beta, dense[1 - step % 2], kind, algorithm)

    try:
        buffer = cupy.empty(cusparse.spMM_bufferSize(*arguments(twice, minus, 0)), cupy.int8)
        for step in range(count):
            cusparse.spMM(*arguments(*((twice, minus) if step else (once, none)), step), address(buffer))
            yield v, w
            v, w = w, v
    finally:
        for each in dense:
            cusparse.destroyDnMat(each)
