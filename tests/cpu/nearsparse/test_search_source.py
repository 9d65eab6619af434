"""The searches' sources, run on the host: the thresholds of the trials, and of the same steps in NumPy."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.nearsparse import bounds
from spectile.nearsparse.bounds import LEAST_NORM, NORM_SLACK
from spectile.nearsparse.cuda import kernels
from spectile.nearsparse.cuda import search as cuda_search
from spectile.nearsparse.cuda.choose import plan_search
from spectile.nearsparse.cuda.search import FIELD, SEARCH, Places, error_terms
from spectile_study.cases.spamm.reference import tau_for_ratio

from ...on_host import host_library

FOLDERS = Path(__file__).parent / "on_host", Path(kernels.__file__).parent
SOURCE = """
#include "search_{kind}.cu"
extern "C" int run(const Search* p, unsigned grid, unsigned count, long shared_bytes) {{
  return launch([p] {{ search_{kind}(*p); }}, grid, count, shared_bytes);
}}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    folder = tmp_path_factory.mktemp("search")
    flags = "-w", "-fpermissive", "-U_FORTIFY_SOURCE", "-DCHUNK=32", *(f"-I{path}" for path in FOLDERS)
    return {
        (kind, dtype): host_library(folder / (kind + dtype), SOURCE.format(kind=kind), *flags, f"-DNORM_BITS={bits}")
        for kind in ("ratio", "error")
        for dtype, bits in (("float32", 32), ("float64", 64))
    }


def by_the_kernel(library: Any, a: Any, b: Any, kind: str, held: int, **values: float) -> tuple[float, float, float]:
    """Return what a kernel writes, the threshold and of a ratio what it leaves, and how often its blocks met."""
    (rows, depth), columns = a.shape, b.shape[0]
    plan = plan_search(kind, rows, columns, depth, a.itemsize, TABLE["H200"])
    places = Places.of(rows, columns, depth, a.itemsize)
    # Nothing but the word where blocks meet is zero at launch.
    memory = np.full(places.bytes // 8 + 2, np.nan)
    spilled = [np.full(a.size, np.nan, a.dtype), np.full(b.size, np.nan, b.dtype)]
    maps = [np.concatenate([x.ravel(), np.full(4, np.nan, x.dtype)]) for x in (a, b)]
    arrived, p = np.zeros(1, np.uint32), np.zeros((), SEARCH)
    addresses = {"norms_a": maps[0].ctypes.data, "norms_b": maps[1].ctypes.data, "arrived": arrived.ctypes.data}
    own = {"columns_a": spilled[0].ctypes.data, "sorted": spilled[1].ctypes.data} if kind == "ratio" else {}
    # A slot of a chunk of 32 norms, with its tail and gaps.
    sizes = {
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "held": min(held, plan.held) if kind == "error" else held,
        "slot": 64 + 2 + rows,
    }
    for name, value in (values | sizes | addresses | places.addresses(memory.ctypes.data) | own).items():
        p[name] = value
    pointer = p.ctypes.data_as(ctypes.c_void_p)
    grid = min(3, plan.launch.grid[0])
    shared = plan.launch.shared_bytes if kind == "error" else (held + 1) * (64 + 2 + rows) * a.itemsize
    assert library.run(pointer, grid, plan.launch.threads, ctypes.c_long(shared))
    return float(memory[0]), float(memory[1]), int(arrived[0]) / grid


def for_error(libraries: Any, a: Any, b: Any, asked: tuple[str, float], listed: int) -> float:
    precision = {"float32": "fp32", "float64": "fp64"}[a.dtype.name]
    shape = 32 * a.shape[0], 32 * a.shape[1], 32 * b.shape[0]
    values = {FIELD[asked[0]]: asked[1]} | error_terms(shape, precision)
    return by_the_kernel(libraries["error", a.dtype.name], a, b, "error", listed, **values)[0]


@pytest.mark.parametrize("kind", ["Gaussian", "ties"])
def test_few_passes_find_a_threshold_where_norms_decay_fast(
    libraries: dict[tuple[str, str], Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_search.device, "describe", lambda: TABLE["H200"])
    rng = np.random.default_rng(13)
    for rows, depth, columns in ((40, 50, 45), (70, 30, 60)):
        a, b = (abs(np.arange(size)[:, None] * depth / size - np.arange(depth)) for size in (rows, columns))
        if kind == "Gaussian":
            a, b = (np.exp(-(x**2) / 8) * rng.uniform(0.5, 1, x.shape) for x in (a, b))
        else:
            a, b = (np.exp(-0.8 * x.round()) for x in (a, b))
        for rtol in (1e-2, 1e-3):
            values = {"rtol": rtol} | error_terms((32 * rows, 32 * depth, 32 * columns), "fp64")
            tau, _, met = by_the_kernel(libraries["error", "float64"], a, b, "error", 2048, **values)
            # Sizes take two meetings, the curve three, the products that are listed a few, and a pass one.
            assert 0 < tau < math.inf and met <= 16


def by_trials(a: Any, b: Any, asked: tuple[str, float]) -> tuple[float, Callable[[float], float], float]:
    """Return the threshold, what thresholds skip, and what they may skip; raise where there is none."""
    precision, slack = {"float32": "fp32", "float64": "fp64"}[a.dtype.name], NORM_SLACK[a.dtype.name]
    norms = [float(x.max()) * math.sqrt(float(((x / x.max()).astype("f8") ** 2).sum())) for x in (a, b)]
    shape = (32 * a.shape[0], 32 * a.shape[1], 32 * b.shape[0])
    rounding = bounds.rounding_bound(shape, norms[0] * slack, norms[1] * slack, precision)
    if min(norms) < LEAST_NORM[a.dtype.name]:
        raise ValueError("norms have few digits")
    scale = norms[0] * norms[1] / slack**2 if asked[0] == "rtol_factors" else 1.0
    limit = bounds.skipping_limit(asked, asked[1] * scale, rounding)
    products = a[:, None] * b[None]
    wide = a[:, None].astype("f8") * b[None].astype("f8")
    unit = bounds.square_unit(float(wide.max()))

    def skipped(tau: float) -> float:
        sums = unit * np.where(products < a.dtype.type(tau), wide, 0).sum(axis=2)
        return math.sqrt(float((sums**2).sum())) / unit * slack

    return bounds.largest_tau(skipped, float(wide.max()), limit), skipped, limit


@pytest.mark.parametrize("kind", ["decaying", "spread", "equal", "ties", "tiny", "large"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_finds_the_thresholds_of_the_trials(
    libraries: dict[tuple[str, str], Any], dtype: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_search.device, "describe", lambda: TABLE["H200"])
    rng = np.random.default_rng(5)
    for rows, depth, columns in ((3, 2, 5), (33, 40, 17)):
        a, b = (rng.standard_normal((size, depth)) for size in (rows, columns))
        if kind == "decaying":
            a, b = (np.exp(x - 0.05 * abs(np.arange(len(x))[:, None] - np.arange(depth))) for x in (a, b))
        elif kind == "spread":
            a, b = np.exp(6 * a), np.exp(6 * b)
        elif kind == "equal":
            a, b = np.full_like(a, 1.5), np.full_like(b, 2.5)
        elif kind == "ties":
            a, b = np.ceil(abs(a)), np.ceil(abs(b))
        else:
            # Products of float32 norms underflow, squares of float64 ones leave the range.
            size = {"tiny": 1e-90, "large": 1e90} if dtype == "float64" else {"tiny": 1e-20, "large": 1e15}
            a, b = size[kind] * np.exp(a), size[kind] * np.exp(b)
        for rtol, listed in ((2.0, 2048), (0.3, 16), (0.05, 2048)):
            pair = a.astype(dtype), b.astype(dtype)
            size = math.prod(float(np.linalg.norm(x.astype("f8"))) for x in pair)
            asked = ("rtol_factors", rtol) if listed == 2048 else ("atol", rtol * size)
            try:
                wanted = by_trials(*pair, asked)[0]
            except ValueError:
                wanted = math.nan
            found = for_error(libraries, *pair, asked, listed)
            # Sums in another order may decide the last bisection otherwise.
            assert found == pytest.approx(wanted, rel=2e-6, nan_ok=True)


# Exponents of the norms of A and of B, up to those of the largest and of the smallest subnormal number.
EXPONENTS = {
    "float32": [(-149, 100), (-126, 127), (-105, -45), (-75, -74), (-74, 0), (-60, -60), (0, 0), (63, 64), (126, 127)],
    "float64": [
        (-1074, 1000), (-1022, 1023), (-950, -100), (-950, -70), (-537, -537), (-514, -515), (-511, -511), (-500, -520),
        (0, -1022), (0, 0), (511, 511), (512, 512), (1023, 1023), (1023, -1023),
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", EXPONENTS)
def test_the_kernel_ends_and_is_honest_over_the_whole_range(
    libraries: dict[tuple[str, str], Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_search.device, "describe", lambda: TABLE["H200"])
    rng = np.random.default_rng(7)
    answers = set()
    for exponents in EXPONENTS[dtype]:
        for spread in (0, 40):
            a, b = (
                np.ldexp(1 + rng.random(size), exponent - rng.integers(0, spread + 1, size)).astype(dtype)
                for exponent, size in zip(exponents, ((3, 2), (5, 2)), strict=True)
            )
            for asked in (("rtol_factors", 1e-3), ("rtol_factors", 0.5), ("rtol_factors", 1e200), ("atol", 1e-20)):
                with np.errstate(all="ignore"):
                    found = for_error(libraries, a, b, asked, 2048)
                    try:
                        wanted, skipped, limit = by_trials(a, b, asked)
                    except ValueError:
                        assert math.isnan(found)
                        answers.add("refused")
                        continue
                    answers.add("all" if found == math.inf else "some")
                    assert skipped(found) <= limit * (1 + 1e-9)
                smallest = math.nextafter(0.0, 1.0)
                assert found >= wanted * (1 - 2e-6) - smallest if wanted < math.inf else found == wanted
    assert answers == {"refused", "all", "some"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["decaying", "equal", "ties", "zero", "infinite", "nan"])
def test_the_kernel_takes_the_steps_of_the_reference(
    libraries: dict[tuple[str, str], Any], kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_search.device, "describe", lambda: TABLE["H200"])
    rng = np.random.default_rng(11)
    # Norms of few digits, so that sums are the same in any order; columns of one chunk, of several, and of part of one.
    for rows, depth, columns, held in ((3, 2, 5, 9), (7, 5, 33, 9), (9, 4, 70, 1)):
        a, b = (
            np.ldexp(rng.integers(1, 64, (size, depth)), -rng.integers(0, 9, (size, depth))) for size in (rows, columns)
        )
        if kind == "equal":
            a, b = np.full_like(a, 1.5), np.full_like(b, 2.5)
        elif kind == "ties":
            a, b = np.ceil(a / 16), np.ceil(b / 16)
        elif kind == "zero":
            a[:] = 0
        elif kind in ("infinite", "nan"):
            a[0, 0] = {"infinite": np.inf, "nan": np.nan}[kind]
        a, b = a.astype(dtype), b.astype(dtype)
        for wanted, tolerance, iterations in ((0.3, 0.01, 60), (0.011, 0.0011, 60), (0.5, 0.0, 3), (1.0, 0.01, 20)):
            values = {"wanted": wanted, "tolerance": tolerance, "iterations": iterations}
            found = by_the_kernel(libraries["ratio", dtype], a, b, "ratio", held, **values)[:2]
            np.testing.assert_array_equal(found, tau_for_ratio(a, b, wanted, tolerance, iterations))
