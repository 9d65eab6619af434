"""What users do that no sheet holds, on the GPU: any shape, any layout, tiny and huge entries."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import norm_map, spamm, spamm_threshold, tune_tau

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
TOLERANCE = {"fp16": 3e-6, "fp16c16": 6e-4, "fp32": 3e-6, "tf32x3": 3e-6, "fp64": 1e-14}
SIDES = (1, 2, 31, 32, 33, 127, 128, 129)


def _random(rows: int, columns: int, dtype: str) -> Any:
    import cupy

    return cupy.random.standard_normal((rows, columns)).astype(dtype)


def _check(a: Any, b: Any, precision: str, **options: Any) -> None:
    import cupy

    result = spamm(a, b, tau=0.0, precision=precision, **options)
    exact = a.astype("f8") @ b.astype("f8")
    error = float(cupy.linalg.norm(result.c.astype("f8") - exact))
    scale = float(cupy.linalg.norm(a.astype("f8")) * cupy.linalg.norm(b.astype("f8")))
    assert error <= max(TOLERANCE[precision] * scale, 1e-300), (a.shape, b.shape, precision)
    assert error <= result.error_bound * (1 + 1e-6)


@pytest.mark.parametrize("precision", DTYPES)
def test_any_shape(precision: str) -> None:
    dtype = DTYPES[precision]
    for m, k, n in itertools.product(SIDES, repeat=3):
        _check(_random(m, k, dtype), _random(k, n, dtype), precision)
    for m, k, n in [(1, 1, 65537), (65537, 1, 1), (1, 65537, 1), (3, 40009, 5), (40009, 3, 2), (2, 3, 40009)]:
        _check(_random(m, k, dtype), _random(k, n, dtype), precision)
    for m, k, n in [(0, 5, 7), (5, 0, 7), (5, 7, 0)]:
        assert not spamm(_random(m, k, dtype), _random(k, n, dtype), tau=0.0, precision=precision).c.any()


@pytest.mark.parametrize("precision", DTYPES)
def test_views_of_odd_pitch_and_address(precision: str) -> None:
    dtype = DTYPES[precision]
    for m, k, n in [(1, 1, 1), (65, 130, 67), (256, 256, 256), (1, 300, 200), (300, 200, 1)]:
        for offset, pitch in itertools.product((0, 1, 3, 8), (0, 1, 8)):
            a = _random(m + 1, k + offset + pitch, dtype)[1:, offset : offset + k]
            b = _random(k + 2, n + offset + pitch, dtype)[2:, offset : offset + n]
            _check(a, b, precision)
            _check(a, b, precision, strict=True)


@pytest.mark.parametrize("precision", ["fp16", "tf32x3", "fp32"])
def test_batches_of_any_stride(precision: str) -> None:
    import cupy

    a, b = (cupy.random.standard_normal((5, 128, 128)).astype(DTYPES[precision]) for _ in range(2))
    for x, y in ((a[::-1], b), (a, b[::-1]), (a[::2], b[::2]), (cupy.broadcast_to(a[:1], a.shape), b), (a[:1], b[:1])):
        found = spamm(x, y, tau=0.0, precision=precision).c
        cupy.testing.assert_allclose(found, x.astype("f8") @ y.astype("f8"), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
def test_operands_in_fortrans_order(precision: str) -> None:
    import cupy

    a, b = (cupy.asfortranarray(_random(500, 500, DTYPES[precision])) for _ in range(2))
    found = spamm(a, b, valid_ratio=0.5, precision=precision)
    plain = spamm(cupy.ascontiguousarray(a), cupy.ascontiguousarray(b), valid_ratio=0.5, precision=precision)
    assert found.c.flags.f_contiguous and plain.c.flags.c_contiguous
    assert abs(found.valid_ratio - plain.valid_ratio) < 0.01
    _check(a, b, precision)
    host = spamm(a.get(), b.get(), tau=0.0, precision=precision, backend="cuda").c
    np.testing.assert_allclose(host, a.get().astype("f8") @ b.get().astype("f8"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("block", [8, 32, 64, 128])
@pytest.mark.parametrize(
    ("dtype", "scale"), [("f4", 1e-24), ("f4", 1e-40), ("f4", 1e19), ("f8", 1e-170), ("f8", 1e160), ("f4", 1.0)]
)
def test_norms_of_entries_whose_squares_leave_the_range(dtype: str, scale: float, block: int) -> None:
    import cupy

    a = np.random.default_rng().standard_normal((300, 500)) * np.exp(-0.02 * np.arange(500))
    a[64:200] = 0
    a = (a * scale).astype(dtype)
    wide = a.astype("f8") / scale
    padded = np.zeros((-(-300 // block) * block, -(-500 // block) * block))
    padded[:300, :500] = wide
    tiles = padded.reshape(padded.shape[0] // block, block, -1, block)
    wanted = np.sqrt((tiles**2).sum(axis=(1, 3)))
    found = norm_map(cupy.asarray(a), block).norms.get().astype("f8") / scale
    # Of subnormal numbers there are few.
    least = 3e-5 if scale == 1e-40 else 0.0
    np.testing.assert_allclose(found, wanted, rtol=1e-12 if dtype == "f8" else 3e-6, atol=least)


@pytest.mark.parametrize(
    ("precision", "scale"), [("fp32", 1e-24), ("tf32x3", 1e-24), ("fp64", 1e-170), ("fp32", 1e-18)]
)
def test_the_bound_holds_where_products_underflow(precision: str, scale: float) -> None:
    import cupy

    a, b = ((scale * cupy.random.standard_normal((256, 256))).astype(DTYPES[precision]) for _ in range(2))
    exact = (a.astype("f8") / scale) @ (b.astype("f8") / scale)
    for tau in (0.0, float(norm_map(a).norms.max()) * float(norm_map(b).norms.max()) / 2):
        result = spamm(a, b, tau=tau, precision=precision)
        error = float(cupy.linalg.norm(result.c.astype("f8") / scale / scale - exact))
        assert error <= result.error_bound / scale / scale * (1 + 1e-6)
    if scale < 1e-20:
        for method in ("spamm", "auto"):
            with pytest.raises(ValueError, match="underflow"):
                _ = spamm(a, b, rtol_factors=1e-3, precision=precision, method=method).tau  # type: ignore[arg-type]


# Powers of two by which entries below 1 are scaled, and whether norms of 256 x 256 of them have a product within range
# of which little underflows.
SCALES = [
    *(("fp16", exponent, True) for exponent in (-3, 0, 8, 15)),
    ("fp16c16", 0, True),
    *(("fp32", exponent, -60 <= exponent <= 55) for exponent in (-100, -60, -30, 30, 55, 64, 100, 127)),
    *(("tf32x3", exponent, -30 <= exponent <= 55) for exponent in (-100, -60, -30, 30, 55, 64, 100, 127)),
    *(("fp64", exponent, -500 <= exponent <= 505) for exponent in (-537, -500, -300, -200, 200, 300, 505, 520, 1000)),
]


@pytest.mark.parametrize(("precision", "exponent", "fits"), SCALES)
def test_a_wanted_error_is_met_or_refused_wherever_entries_lie(precision: str, exponent: int, fits: bool) -> None:
    import cupy

    i = np.arange(256)
    a = np.exp(-abs(i[:, None] - i) / 20).astype(DTYPES[precision])
    a[a < 1e-3] = 0
    scaled, rtol = cupy.asarray(np.ldexp(a, exponent)), 1e-3
    if not fits:
        for method in ("spamm", "auto"):
            result = spamm(scaled, scaled, rtol_factors=rtol, precision=precision, method=method)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="below what rounding"):
                _ = result.tau
            assert result.executed_ratio == 1
        with pytest.raises(ValueError, match=r"below what rounding|norm overflows"):
            _ = spamm_threshold(scaled, scaled, rtol_factors=rtol, precision=precision).tau
        if exponent > 0:
            assert spamm(scaled, scaled, tau=0.0, precision=precision).error_bound == np.inf
        return
    plain, found = (
        spamm(x, x, rtol_factors=rtol, precision=precision, method="spamm") for x in (cupy.asarray(a), scaled)
    )
    assert 0.1 < plain.valid_ratio < 0.9 and found.valid_ratio == pytest.approx(plain.valid_ratio, abs=0.02)
    assert np.ldexp(found.tau, -2 * exponent) == pytest.approx(plain.tau, rel=1e-4)
    wide = a.astype(float)
    error = np.linalg.norm(np.ldexp(found.c.get().astype(float), -2 * exponent) - wide @ wide)
    bound = np.ldexp(found.error_bound, -2 * exponent)
    assert 0 < error <= bound <= rtol * np.linalg.norm(wide) ** 2 * (1 + 1e-4)


@pytest.mark.parametrize("choice", [{"tau": 3000.0}, {"valid_ratio": 0.3}, {"rtol_factors": 0.1}])
@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
def test_a_threshold_is_that_of_the_product(choice: dict[str, float], precision: str) -> None:
    a, b = _random(700, 500, DTYPES[precision]), _random(500, 600, DTYPES[precision])
    made = spamm(a, b, precision=precision, method="spamm", **choice)
    told = spamm_threshold(a, b, precision=precision, **choice)
    assert (told.tau, told.valid_ratio) == (made.tau, made.valid_ratio)
    assert told.error_bound == pytest.approx(made.error_bound)


@pytest.mark.parametrize("precision", ["fp32", "tf32x3"])
def test_the_largest_entries_beside_tiny_ones(precision: str) -> None:
    import cupy

    a, b = cupy.zeros((64, 64), "f4"), cupy.eye(64, dtype="f4") * np.float32(1e-10)
    a[3, 5] = np.finfo("f4").max
    result = spamm(a, b, tau=0.0, precision=precision)
    searched = spamm(a, b, rtol_factors=1e-3, precision=precision, method="spamm")
    if precision == "fp32":
        assert float(result.c[3, 5]) == float(a[3, 5] * b[5, 5]) and result.error_bound < np.inf
        assert searched.tau > 0
    else:
        assert result.error_bound == np.inf
        with pytest.raises(ValueError, match="below what rounding"):
            _ = searched.tau


def test_no_finite_bound_stands_beside_an_infinite_c_in_half_precision() -> None:
    import cupy

    a = cupy.full((64, 64), 200, "f2")
    result = spamm(a, a, tau=0.0, precision="fp16c16")
    assert cupy.isinf(result.c).all() and result.error_bound == result.error_bound_rel == np.inf
    half = spamm(a / 64, a, tau=0.0, precision="fp16c16")
    error = float(cupy.linalg.norm(half.c.astype("f8") - a.astype("f8") @ a.astype("f8") / 64))
    assert error <= half.error_bound < np.inf


def test_matrices_are_told_from_norm_maps() -> None:
    a = _random(256, 256, "f4")
    for matrix in (a, abs(a)):
        assert tune_tau(matrix, matrix, 0.25) == tune_tau(norm_map(matrix), norm_map(matrix), 0.25)


def test_what_fails_for_memory_says_so_and_leaves_the_next_call_as_it_was() -> None:
    import cupy

    a, b = _random(1024, 1024, "f4"), _random(1024, 1024, "f4")
    wanted = spamm(a, b, tau=20.0).c
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.get_limit()
    try:
        for free in (1 << 12, 1 << 20, (4 << 20) + (1 << 10), (4 << 20) + (1 << 14)):
            pool.set_limit(pool.used_bytes() + free)
            try:
                spamm(a, b, tau=20.0)
            except MemoryError as error:
                assert "bytes of device memory" in str(error)
            pool.free_all_blocks()
    finally:
        pool.set_limit(before)
    cupy.testing.assert_array_equal(spamm(a, b, tau=20.0).c, wanted)
