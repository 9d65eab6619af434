"""The search on the device: the trials that a search with the host between them makes, and the same threshold."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import NormMap, bounds, norm_map, spamm, spamm_plan, spamm_threshold, tune_tau
from spectile.nearsparse.cuda import choose, dense, repeated
from spectile.nearsparse.cuda import search as cuda_search
from spectile.nearsparse.cuda.norms import NormMaps, Norms
from spectile.nearsparse.cuda.search import Wanted, search, tolerance_of
from spectile.nearsparse.cuda.survey import count_products, frobenius, rounding, skipped_bound
from spectile.nearsparse.types import Request

pytestmark = pytest.mark.gpu

# Rows, depth and columns of norm maps: one tile, fewer than a warp, odd, more columns than are sorted together.
MAPS = [
    (1, 1, 1),
    (3, 2, 5),
    (17, 33, 15),
    (64, 64, 64),
    (128, 130, 127),
    (2, 3, 2500),
    (700, 5, 1025),
    (256, 256, 256),
]


def _maps(shape: tuple[int, int, int], dtype: str, spread: float) -> Norms:
    import cupy

    rows, depth, columns = shape
    rng = np.random.default_rng()
    a, b = (
        np.exp(spread * rng.standard_normal((count, depth)) - 0.05 * abs(np.arange(count)[:, None] - np.arange(depth)))
        for count in (rows, columns)
    )
    return Norms(cupy.asarray(a.astype(dtype)), cupy.asarray(b.astype(dtype)), 32)


def ratio_by_trials(maps: Norms, wanted: float, iterations: int, tolerance: float) -> tuple[float, float]:
    """The paper's search with the host between its trials, each counted on the device."""
    import cupy

    total = maps.a.size * maps.b.shape[0]
    mean = float((maps.a.sum(axis=0, dtype="f8") * maps.b.sum(axis=0, dtype="f8")).sum()) / total

    def at(tau: float) -> float:
        return int(count_products(maps, (0, 0), cupy.asarray([tau]))[0]) / total

    if wanted == 1 or mean == 0:
        return 0.0, 1.0
    low, high = 0.0, mean
    tau, ratio = high, at(high)
    while ratio > wanted + tolerance:
        low, high = high, 2 * high
        tau, ratio = high, at(high)
    best = (tau, ratio) if abs(ratio - wanted) < 1 - wanted else (0.0, 1.0)
    for _ in range(iterations):
        if abs(best[1] - wanted) < tolerance:
            break
        tau = (low + high) / 2
        ratio = at(tau)
        if abs(ratio - wanted) < abs(best[1] - wanted):
            best = tau, ratio
        low, high = (tau, high) if ratio > wanted else (low, tau)
    return best


def error_by_trials(maps: Norms, wanted: Wanted, shape: tuple[int, int, int], precision: str) -> float:
    """The largest threshold of an error, each trial read back."""
    import cupy

    norm_a, norm_b = frobenius(maps.a), frobenius(maps.b)
    if norm_a == 0 or norm_b == 0:
        return math.inf
    slack = bounds.norm_slack(Request(precision).arithmetic.dtype)
    allowed = wanted.value * (norm_a * norm_b / slack**2 if wanted.asked == "rtol_factors" else 1.0)
    limit = bounds.skipping_limit(
        (wanted.asked, wanted.value), allowed, rounding(shape, maps.a, maps.b, Request(precision))
    )
    largest = float((maps.a.max(axis=0).astype("f8") * maps.b.max(axis=0)).max())
    return bounds.largest_tau(
        lambda tau: float(skipped_bound(maps, (0, 0), cupy.asarray([tau]), slack)), largest, limit
    )


@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", MAPS, ids=lambda shape: "x".join(map(str, shape)))
def test_a_ratio_is_searched_as_with_the_host(shape: tuple[int, int, int], dtype: str, spread: float) -> None:
    maps = _maps(shape, dtype, spread)
    for wanted in (0.001, 0.05, 0.3, 0.9, 1.0):
        tolerance = tolerance_of(wanted)
        tau, ratio = (
            search(maps, (0, 0), Wanted("valid_ratio", wanted, 60, tolerance), (1, 1, 1), "fp32").get().tolist()
        )
        assert (tau, ratio) == pytest.approx(ratio_by_trials(maps, wanted, 60, tolerance), rel=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", MAPS, ids=lambda shape: "x".join(map(str, shape)))
def test_an_error_is_searched_as_with_the_host(shape: tuple[int, int, int], dtype: str, spread: float) -> None:
    maps = _maps(shape, dtype, spread)
    precision = "fp32" if dtype == "f4" else "fp64"
    sizes = tuple(32 * size for size in (shape[0], shape[1], shape[2]))
    for rtol in (0.9, 0.1, 1e-2) if dtype == "f4" else (0.9, 1e-2, 1e-9):
        if rtol < 1e-6 * shape[1] and dtype == "f4":
            continue
        size = frobenius(maps.a) * frobenius(maps.b)
        for asked in (Wanted("rtol_factors", rtol), Wanted("atol", rtol * size)):
            found = float(search(maps, (0, 0), asked, sizes, precision)[0])  # type: ignore[arg-type]
            # Sums in another order may decide the last bisection otherwise.
            assert found == pytest.approx(error_by_trials(maps, asked, sizes, precision), rel=2e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["misled", "ties", "equal", "tiny"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_error_of_maps_that_mislead_a_sample(dtype: str, kind: str) -> None:
    import cupy

    shape = (301, 260, 310)
    rng = cupy.random.default_rng()
    maps, precision = _maps(shape, dtype, 1.0), "fp32" if dtype == "f4" else "fp64"
    sizes = tuple(32 * size for size in shape)
    if kind == "misled":
        # Few rows, of which a sample has none or too many.
        maps.a[[17, 200]] *= 300
    elif kind == "ties":
        # More equal products than are listed.
        maps.a[:], maps.b[:] = (rng.integers(1, 4, x.shape) for x in (maps.a, maps.b))
    elif kind == "equal":
        maps.a[:], maps.b[:], maps.b[3:90, 5:70] = 1.5, 2.5, 0
    else:
        # Products of float32 norms that underflow.
        maps.a *= 1e-30
        maps.b *= 1e-12 * cupy.exp(6 * rng.standard_normal(maps.b.shape))
    for rtol in (1.5, 0.7, 0.3, 0.05):
        try:
            wanted = error_by_trials(maps, Wanted("rtol_factors", rtol), sizes, precision)  # type: ignore[arg-type]
        except ValueError:
            wanted = math.nan
        found = float(search(maps, (0, 0), Wanted("rtol_factors", rtol), sizes, precision)[0])  # type: ignore[arg-type]
        # Sums in another order may decide the last bisection otherwise.
        assert found == pytest.approx(wanted, rel=2e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("listed", [64, 2048])
def test_an_error_by_a_list_of_any_length(dtype: str, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*arguments: Any) -> choose.SearchPlan:
        plan = plan_search(*arguments)
        return plan if arguments[0] == "ratio" else dataclasses.replace(plan, held=min(listed, plan.held))

    plan_search = cuda_search.plan_search
    monkeypatch.setattr(cuda_search, "plan_search", planned)
    for shape in ((513, 512, 530), (1000, 7, 900), (40, 45, 50)):
        maps, precision = _maps(shape, dtype, 1.0), "fp32" if dtype == "f4" else "fp64"
        sizes = tuple(32 * size for size in shape)
        for rtol in (0.3, 1e-2):
            found = float(search(maps, (0, 0), Wanted("rtol_factors", rtol), sizes, precision)[0])  # type: ignore[arg-type]
            wanted = error_by_trials(maps, Wanted("rtol_factors", rtol), sizes, precision)  # type: ignore[arg-type]
            # Sums in another order may decide the last bisection otherwise.
            assert found == pytest.approx(wanted, rel=2e-6)


def test_maps_of_nothing_but_zeros_and_of_nan() -> None:
    import cupy

    zeros = cupy.zeros((20, 30), "f4")
    ones = cupy.ones((10, 30), "f4")
    for maps in (Norms(zeros, ones, 32), Norms(ones, zeros, 32)):
        assert search(maps, (0, 0), Wanted("valid_ratio", 0.3, 60, 0.01), (1, 1, 1), "fp32").get().tolist() == [
            0.0,
            1.0,
        ]
        assert float(search(maps, (0, 0), Wanted("rtol_factors", 0.3), (640, 960, 320), "fp32")[0]) == math.inf
    ones[3, 4] = cupy.nan
    maps = Norms(ones, ones, 32)
    for wanted in (Wanted("valid_ratio", 0.3, 60, 0.01), Wanted("rtol_factors", 0.3)):
        assert math.isnan(float(search(maps, (0, 0), wanted, (320, 960, 320), "fp32")[0]))


def _random(n: int, dtype: str) -> Any:
    import cupy

    i = cupy.arange(n) // 32
    return (cupy.random.standard_normal((n, n)) * cupy.exp(-0.2 * abs(i[:, None] - i))).astype(dtype)


@pytest.mark.parametrize(
    "choice", [{"valid_ratio": 0.2}, {"rtol_factors": 0.05}], ids=lambda choice: next(iter(choice))
)
@pytest.mark.parametrize("precision", ["float16", "float32", "tf32x3", "float64"])
def test_repeated_calls_plans_and_graphs_search_alike(precision: str, choice: dict[str, float]) -> None:
    import cupy

    dtype = {"float16": "f2", "float64": "f8"}.get(precision, "f4")
    pairs = [(_random(1024, dtype), _random(1024, dtype)) for _ in range(2)]
    wanted = []
    for a, b in pairs:
        repeated._plans.clear()
        wanted.append(spamm(a, b, precision=precision, method="spamm", **choice))  # type: ignore[arg-type]
        told = spamm_threshold(a, b, precision=precision, **choice)  # type: ignore[arg-type]
        assert (told.tau, told.valid_ratio) == (wanted[-1].tau, wanted[-1].valid_ratio)
        assert (wanted[-1].c == spamm(a, b, tau=told.tau, precision=precision).c).all()  # type: ignore[arg-type]
    for _ in range(3):
        for (a, b), first in zip(pairs, wanted, strict=True):
            again = spamm(a, b, precision=precision, method="spamm", **choice)  # type: ignore[arg-type]
            assert again.tau == first.tau and again.valid_ratio == first.valid_ratio
            assert again.error_bound == pytest.approx(first.error_bound) and (again.c == first.c).all()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        plan = spamm_plan(*pairs[0], precision=precision)  # type: ignore[arg-type]
        out = cupy.empty_like(wanted[0].c)
        assert (plan.execute(**choice).c == wanted[0].c).all()  # type: ignore[arg-type]
        stream.synchronize()
        stream.begin_capture()
        kept = plan.execute(out=out, **choice)  # type: ignore[arg-type]
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            assert (out == wanted[0].c).all() and kept.tau == wanted[0].tau


def test_a_batch_searches_for_each_product() -> None:
    import cupy

    a = cupy.stack([_random(256, "f4") * scale for scale in (1.0, 10.0, 0.1)])
    b = _random(256, "f4")
    found = spamm(a, b, valid_ratio=0.3)
    for i in range(3):
        assert found.tau[i] == spamm(a[i], b, valid_ratio=0.3).tau


def test_a_tolerance_that_cannot_be_kept_is_said_when_it_is_read() -> None:
    a = (1e-24 * _random(256, "f4")).astype("f4")
    for method in ("spamm", "auto", "spamm", "auto"):
        result = spamm(a, a, rtol_factors=1e-3, method=method)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="underflow"):
            _ = result.tau
        assert result.executed_ratio == 1
        with pytest.raises(ValueError, match="below what rounding"):
            spamm(a, a, rtol_factors=1e-12)
    with pytest.raises(ValueError, match="underflow"):
        spamm(a, a, rtol_factors=1e-3, check_finite=True, method="spamm")


def test_more_rows_than_a_grid_has_blocks_for() -> None:
    import cupy

    rows = 65535 * 128 + 300
    a = cupy.ones((rows, 8), "f2")
    a[-1] = 3
    norms = norm_map(a, 128).norms
    assert norms.shape == (-(-rows // 128), 1) and float(norms[0, 0]) == 32.0
    last = rows % 128
    assert float(norms[-1, 0]) == pytest.approx(math.sqrt(8 * (last - 1) + 72))
    maps = NormMaps(a, cupy.empty((8, 0), "f2"), 32)
    maps()
    assert float(maps.a[:-1].min()) == float(maps.a[:-1].max()) == 16.0


def test_norm_maps_searched_from_the_library() -> None:
    maps = _maps((100, 90, 80), "f8", 2.0)
    tau, ratio = tune_tau(NormMap(maps.a), NormMap(maps.b.T), 0.2)
    assert (tau, ratio) == pytest.approx(ratio_by_trials(maps, 0.2, 20, 0.01), rel=1e-12)


@pytest.mark.parametrize("choice", ["tau", "valid_ratio", "atol", "rtol_factors"])
@pytest.mark.parametrize(
    ("n", "precision"), [(512, "float16"), (1500, "float32"), (4096, "float32"), (2048, "float64")]
)
def test_auto_takes_one_of_both_products_and_says_which(n: int, precision: str, choice: str) -> None:
    import cupy

    dtype = {"float16": "f2", "float64": "f8"}.get(precision, "f4")
    a, b = _random(n, dtype), _random(n, dtype)
    exact = a.astype("f8") @ b.astype("f8")
    for share in (0.02, 0.95):
        known = spamm(a, b, valid_ratio=share, precision=precision)  # type: ignore[arg-type]
        scale = float(cupy.linalg.norm(a.astype("f8")) * cupy.linalg.norm(b.astype("f8")))
        bound = 1.01 * known.error_bound
        value = {"tau": known.tau, "valid_ratio": share, "atol": bound, "rtol_factors": bound / scale}[choice]
        methods = set()
        for alpha in (1.0, 1.0, 1.0, -2.0):
            found = spamm(a, b, precision=precision, method="auto", alpha=alpha, **{choice: value})  # type: ignore[arg-type]
            error = float(cupy.linalg.norm(found.c.astype("f8") - alpha * exact))
            assert error <= found.error_bound * (1 + 1e-9)
            methods.add(found.method)
            if found.method == "dense":
                assert (found.tau, found.valid_ratio, found.executed_ratio) == (0.0, 1.0, 1.0)
                assert "dense" in repr(found)
            elif choice in ("tau", "valid_ratio"):
                assert found.tau == pytest.approx(known.tau, rel=1e-6)
        assert len(methods) == 1
        if choice == "valid_ratio" and precision != "float16":
            assert methods == {"spamm" if share < 0.5 else "dense"}
    c = _random(n, "f4" if precision == "float16" else dtype)
    wanted = 0.5 * exact - c.astype("f8")
    limit = {"float16": 1e-3, "float32": 1e-4, "float64": 1e-12}[precision] * float(cupy.linalg.norm(wanted))
    for out in (None, cupy.empty_like(c), c):
        found = spamm(a, b, tau=0.0, alpha=0.5, beta=-1.0, c=c, out=out, precision=precision, method="auto")  # type: ignore[arg-type]
        assert float(cupy.linalg.norm(found.c.astype("f8") - wanted)) <= limit


@pytest.mark.parametrize("choice", ["tau", "rtol_factors"])
@pytest.mark.parametrize("precision", ["float16", "float32", "tf32x3", "float64"])
def test_auto_by_the_count(precision: str, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    # Sizes at which counting pays are large: here it decides at every size, at a share of a half.
    monkeypatch.setattr(dense, "decide_here", lambda *_: ("count", 0.5))
    dtype = {"float16": "f2", "float64": "f8"}.get(precision, "f4")
    a, b = _random(512, dtype), _random(512, dtype)
    scale = float(cupy.linalg.norm(a.astype("f8")) * cupy.linalg.norm(b.astype("f8")))
    exact = a.astype("f8") @ b.astype("f8")
    repeated._plans.clear()
    for share, wanted in ((0.1, "spamm"), (0.7, "dense"), (0.1, "spamm")):
        known = spamm(a, b, valid_ratio=share, precision=precision)  # type: ignore[arg-type]
        value = known.tau if choice == "tau" else 1.001 * known.error_bound / scale
        for turn in range(3):
            found = spamm(a, b, precision=precision, method="auto", **{choice: value})  # type: ignore[arg-type]
            if choice == "tau":
                assert found.method == wanted, (share, turn)
            assert float(cupy.linalg.norm(found.c.astype("f8") - exact)) <= found.error_bound * (1 + 1e-9)
            assert found.method == "dense" or found.valid_ratio <= 0.5
    repeated._plans.clear()
    monkeypatch.undo()
    # A capture reads nothing back: SpAMM multiplies there.
    stream, out, tau = cupy.cuda.Stream(non_blocking=True), cupy.empty_like(found.c), float(known.tau)
    cupy.cuda.Device().synchronize()
    with stream:
        for method in ("spamm", "auto"):  # loads what is launched
            spamm(a, b, tau=tau, precision=precision, method=method, out=out, check_finite=True)  # type: ignore[arg-type]
        stream.synchronize()
        stream.begin_capture()
        try:
            kept = spamm(a, b, tau=tau, precision=precision, method="auto", out=out)  # type: ignore[arg-type]
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert kept.method == "spamm" and float(cupy.linalg.norm(out.astype("f8") - exact)) <= kept.error_bound


def test_what_counting_found_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(dense, "decide_here", lambda *_: ("count", 0.5))
    a = _random(512, "f4")
    scale = float(cupy.linalg.norm(a.astype("f8"))) ** 2
    repeated._plans.clear()
    for share, method in ((0.1, "spamm"), (0.7, "dense")):
        rtol = 1.001 * spamm(a, a, valid_ratio=share).error_bound / scale
        found = [spamm(a, a, rtol_factors=rtol, method="auto") for _ in range(12)]
        assert {one.method for one in found} == {method}
        for one in found[1:]:
            assert (one.c == found[0].c).all() and one.error_bound <= rtol * scale * (1 + 1e-4)
    repeated._plans.clear()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [*MAPS, (65, 33, 31), (64, 32, 32)], ids=lambda shape: "x".join(map(str, shape)))
def test_valid_products_are_counted(shape: tuple[int, int, int], dtype: str) -> None:
    import cupy

    maps = _maps(shape, dtype, 2.0)
    products = maps.a.get()[:, None, :] * maps.b.get()[None]
    for tau in (0.0, 0.3, 1.0, 5.0, math.inf, math.nan):
        wanted = int((~(products < np.dtype(dtype).type(tau))).sum())
        assert int(count_products(maps, (0, 0), cupy.asarray([tau]))[0]) == wanted


@pytest.mark.parametrize(
    ("n", "precision"),
    [(512, "float16"), (2048, "float16"), (1500, "float16"), (1024, "float32"), (2048, "float32"), (1024, "float64"),
     (1024, "tf32x3"), (1152, "fp16c16")],
)  # fmt: skip
def test_a_product_that_is_cancelled_writes_nothing(n: int, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    dtype = {"float16": "f2", "fp16c16": "f2", "float64": "f8"}.get(precision, "f4")
    a, b = _random(n, dtype), _random(n, dtype)
    known = spamm(a, b, valid_ratio=0.3, precision=precision)  # type: ignore[arg-type]
    out = cupy.empty_like(known.c)
    share = known.valid_ratio
    for limit, method in ((share * 0.99, "dense"), (share, "spamm"), (share * 0.99, "dense")):
        monkeypatch.setattr(dense, "decide_here", lambda *_, limit=limit: ("count", limit))
        repeated._plans.clear()
        with monkeypatch.context() as context:
            for turn in range(3):
                # The first call goes through all checks and reads the count back.
                if turn == 1:
                    context.setattr(dense, "multiply", lambda *_: None)
                out.fill(cupy.nan)
                found = spamm(a, b, tau=known.tau, out=out, precision=precision, method="auto")  # type: ignore[arg-type]
                assert found.method == method
                if method == "spamm":
                    assert (out == known.c).all()
                elif turn > 0:
                    assert cupy.isnan(out).all()
    repeated._plans.clear()


def test_auto_of_what_it_does_not_choose_for() -> None:
    import cupy

    a = cupy.stack([_random(96, "f4")] * 2)
    assert spamm(a, a, tau=0.0, method="auto").method == "spamm"
    host = a[0].get()
    assert spamm(host, host, tau=0.0, method="auto", backend="cuda").method in ("spamm", "dense")
    assert spamm(a[0], a[0], rtol_factors=0.1, strict=True).method == spamm(a[0], a[0], tau=0.0).method == "spamm"
    assert spamm(a[0], a[0], rtol_factors=0.1).method == "dense"  # so small a product always is
    host[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        spamm(host, host, tau=0.0, method="auto", backend="cuda")
    empty = cupy.zeros((0, 5), "f4")
    assert spamm(empty, cupy.zeros((5, 3), "f4"), tau=1.0, method="auto").c.shape == (0, 3)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("chunks", [2, 3, 5, 7])
def test_ratios_in_maps_of_which_blocks_hold_a_part(chunks: int, dtype: str) -> None:
    import cupy

    columns, depth = 1024 * chunks - 3, 8000 // chunks
    norms_a = cupy.exp(cupy.random.standard_normal((4, depth))).astype(dtype).astype("f8")
    norms_b = cupy.exp(cupy.random.standard_normal((depth, columns))).astype(dtype).astype("f8")
    # Memory that the search gets has NaN where nothing was written.
    for size in (norms_a.size, norms_b.size, norms_a.size + norms_b.size + (1 << 16)):
        cupy.full(2 * size, cupy.nan)
    given = NormMap(norms_a.astype(dtype)), NormMap(norms_b.astype(dtype))
    tau, ratio = tune_tau(*given, 0.2, iterations=40, tolerance=0.0)
    count = sum(int((row[:, None] * norms_b >= tau).sum()) for row in norms_a)
    assert ratio == count / (4 * depth * columns)
