"""SpAMM on the CPU: against the reference, in its bounds, and its errors."""

import math
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile.core.threads import blas_threads
from spectile.nearsparse import NormMap, norm_map, spamm, tune_tau
from spectile.nearsparse.cpu.norms import norm_map as norm_map_cpu
from spectile.nearsparse.cpu.search import count_valid
from spectile_study.cases.spamm import reference
from spectile_study.inputs import decay

DTYPES = [np.float16, np.float32, np.float64]
# Relative to ||A||_F ||B||_F; sums are float32 for float16.
TOLERANCE = {np.float16: 1e-6, np.float32: 1e-6, np.float64: 1e-14}


def block_decay(rng, m, n, dtype, block=32, rate=0.6):
    """Random matrix whose tiles fall off exponentially from the diagonal."""
    distance = np.abs(np.arange(m)[:, None] // block - np.arange(n)[None, :] // block)
    return (rng.standard_normal((m, n)) * np.exp(-rate * distance)).astype(dtype)


def product(a, b, **options):
    return spamm(a, b, **{"backend": "cpu", "method": "spamm"} | options)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 150),
    k=st.integers(1, 150),
    n=st.integers(1, 150),
    dtype=st.sampled_from(DTYPES),
    block=st.sampled_from([8, 16, 32, 48]),
    quantile=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_reference_on_exactly_the_valid_set(m, k, n, dtype, block, quantile, seed):
    rng = np.random.default_rng(seed)
    a, b = block_decay(rng, m, k, dtype, block), block_decay(rng, k, n, dtype, block)
    norms_a, norms_b = norm_map_cpu(a, block), norm_map_cpu(b, block)
    np.testing.assert_allclose(norms_a, reference.norm_map(a, block), rtol=1e-12)
    tau = float(np.quantile(norms_a[:, :, None] * norms_b[None], quantile, method="nearest"))
    result = product(a, b, tau=tau, block=block)
    valid = reference.valid_set(norms_a, norms_b, tau)
    assert result.valid_ratio == result.executed_ratio == pytest.approx(valid.mean(), abs=1e-12)
    # The reference's products over that set, in float64.
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = np.zeros((m, n))
    for i, p, j in np.argwhere(valid):
        rows, inner, columns = (slice(x * block, (x + 1) * block) for x in (i, p, j))
        expected[rows, columns] += wide_a[rows, inner] @ wide_b[inner, columns]
    scale = np.linalg.norm(wide_a) * np.linalg.norm(wide_b)
    assert np.linalg.norm(result.c - expected) <= TOLERANCE[dtype] * scale
    assert np.linalg.norm(result.c - wide_a @ wide_b) <= result.error_bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (2, 2, 2), (33, 65, 31), (300, 7, 260)])
def test_tau_zero_is_the_dense_product_and_infinity_is_zero(dtype, shape):
    m, k, n = shape
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    dense = np.matmul(a.astype(np.float64), b.astype(np.float64))
    result = product(a, b, tau=0)
    assert result.c.shape == dense.shape
    assert result.c.dtype == (np.float32 if dtype == np.float16 else dtype)
    assert result.valid_ratio == 1
    np.testing.assert_allclose(result.c, dense, rtol=1e-4 if dtype != np.float64 else 1e-12, atol=1e-4)
    nothing = product(a, b, tau=math.inf)
    assert not nothing.c.any()
    if k and m and n:
        assert nothing.valid_ratio == 0
        assert np.linalg.norm(dense) <= nothing.error_bound
        assert nothing.error_bound_rel == math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_valid_set_shrinks_and_bound_grows_with_tau(dtype):
    rng = np.random.default_rng(11)
    a, b = block_decay(rng, 300, 200, dtype), block_decay(rng, 200, 333, dtype)
    results = [product(a, b, tau=tau) for tau in (0, 0.1, 1, 10, 100, 1e4)]
    ratios = [result.valid_ratio for result in results]
    bounds = [result.error_bound for result in results]
    assert ratios == sorted(ratios, reverse=True)
    assert bounds == sorted(bounds)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rtol=st.floats(1e-4, 2),
    rate=st.floats(0.05, 3),
    dtype=st.sampled_from(DTYPES),
    word=st.sampled_from(["atol", "rtol_factors"]),
)
def test_wanted_error_is_guaranteed_and_used(seed, rtol, rate, dtype, word):
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(20, 200, 3)
    a, b = block_decay(rng, m, k, dtype, rate=rate), block_decay(rng, k, n, dtype, rate=rate)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    scale = np.linalg.norm(wide_a) * np.linalg.norm(wide_b)
    result = product(a, b, **{word: rtol * scale if word == "atol" else rtol})
    assert np.linalg.norm(result.c - wide_a @ wide_b) <= result.error_bound <= rtol * scale * (1 + 1e-9)
    # The largest such tau: the next norm product above it would break the bound.
    norms_a, norms_b = reference.norm_map(a), reference.norm_map(b)
    products = np.unique(norms_a[:, :, None] * norms_b[None])
    above = products[products >= result.tau * (1 + 2e-6)]
    if above.size and math.isfinite(result.tau):
        broken = reference.skipped_bound(norms_a, norms_b, np.nextafter(above[0], math.inf))
        rounding = result.error_bound - reference.skipped_bound(norms_a, norms_b, result.tau)
        assert broken + rounding > rtol * scale * (1 - 1e-9)


@pytest.mark.parametrize("wanted", [{"tau": 0}, {"valid_ratio": 0.3}, {"rtol_factors": 1e-3}])
@pytest.mark.parametrize("shape", [(0, 0, 0), (3, 0, 2), (0, 3, 2), (2, 2, 2), (40, 50, 60)])
@pytest.mark.parametrize("precision", ["fp16", "fp16c16", "fp32", "fp64"])
def test_empty_and_zero_operands(wanted, shape, precision):
    m, k, n = shape
    dtype = {"fp32": np.float32, "fp64": np.float64}.get(precision, np.float16)
    result = product(np.zeros((m, k), dtype), np.zeros((k, n), dtype), precision=precision, **wanted)
    assert result.c.shape == (m, n)
    assert not result.c.any()
    assert 0 <= result.executed_ratio <= 1
    assert result.error_bound >= 0


def test_an_error_below_rounding_names_what_is_attainable():
    a = np.ones((64, 64), np.float32)
    with pytest.raises(ValueError, match=r"rtol_factors = 1e-09 is below what rounding alone is bounded by, 3\.9"):
        product(a, a, rtol_factors=1e-9)
    with pytest.raises(ValueError, match=r"atol = 1e-09 is below what rounding alone is bounded by, 0\.016"):
        product(a, a, atol=1e-9)


@pytest.mark.parametrize("method", ["auto", "spamm"])
def test_an_absolute_error_is_that_of_each_product_before_its_factor(method):
    a = block_decay(np.random.default_rng(8), 160, 160, np.float64, rate=0.5)
    stack, atol = np.stack([a, 0.3 * a, 0 * a]), 0.1 * float(np.linalg.norm(a)) ** 2
    result = product(stack, a, atol=atol, alpha=-3.0, method=method)
    one, two = (product(x, a, atol=atol, method="spamm") for x in stack[:2])
    assert result.tau[:2].tolist() == [one.tau, two.tau] and two.valid_ratio < one.valid_ratio < 1
    assert (np.linalg.norm(result.c + 3 * stack @ a, axis=(1, 2)) <= result.error_bound).all()
    assert (result.error_bound <= 3 * atol * (1 + 1e-9)).all() and result.error_bound[0] > atol


def test_alpha_beta_c_and_out():
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(shape) for shape in ((70, 40), (40, 50), (70, 50)))
    kept = c.copy()
    expected = 2.5 * a @ b - 0.5 * c
    out = np.full((70, 50), np.nan)
    result = product(a, b, tau=0, alpha=2.5, beta=-0.5, c=c, out=out)
    assert result.c is out
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    assert np.array_equal(c, kept)
    assert np.linalg.norm(out - expected) <= result.error_bound
    in_place = product(a, b, tau=0, alpha=2.5, beta=-0.5, c=c, out=c)
    assert in_place.c is c
    np.testing.assert_allclose(c, expected, rtol=1e-12)
    # With a beta of zero c is not read.
    np.testing.assert_allclose(product(a, b, tau=0, beta=0, c=np.full((70, 50), np.nan)).c, a @ b)


def test_out_may_be_an_input():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 64, 64))
    expected = a @ b
    product(a, b, tau=0, out=a)
    np.testing.assert_allclose(a, expected, rtol=1e-12)
    stack = rng.standard_normal((3, 48, 48))
    expected = stack[0] @ stack
    product(stack[0], stack, tau=0, out=stack)
    np.testing.assert_allclose(stack, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("precision", ["fp16c16", "fp32", "fp64"])
def test_bound_of_a_product_that_overwrites_what_is_added(precision):
    rng = np.random.default_rng(5)
    dtype = {"fp16c16": np.float16, "fp32": np.float32, "fp64": np.float64}[precision]
    a, b = (rng.standard_normal((3, 40, 40)).astype(dtype) for _ in range(2))
    c = (100 * rng.standard_normal((3, 40, 40))).astype(dtype)
    options = {"tau": 0.0, "beta": 2.0, "precision": precision}
    wanted = product(a, b, c=c, **options)
    place = c.copy()
    found = product(a, b, c=place, out=place, **options)
    assert np.array_equal(place, wanted.c)
    assert np.array_equal(found.error_bound, wanted.error_bound)
    # Where `out` overlaps an operand, or other entries of C.
    one = product(a[0], b[0], c=a[0], **options)
    place = a.copy()
    found = product(place[0], b[0], c=place[0], out=place[0], **options)
    assert np.array_equal(found.c, one.c) and found.error_bound == one.error_bound
    shifted = np.concatenate([c[0], np.zeros((1, 40), dtype)])
    found = product(a[0], b[0], c=shifted[:-1], out=shifted[1:], **options)
    assert np.array_equal(found.c, wanted.c[0]) and found.error_bound == wanted.error_bound[0]


def test_batches_broadcast_and_have_their_own_tau():
    rng = np.random.default_rng(6)
    a = np.stack([block_decay(rng, 160, 130, np.float64, rate=rate) for rate in (0.1, 1.0)])[:, None]
    b = np.stack([block_decay(rng, 130, 140, np.float64, rate=rate) for rate in (0.2, 0.5, 2.0)])
    result = product(a, b, valid_ratio=0.4)
    assert result.c.shape == (2, 3, 160, 140)
    assert result.tau.shape == result.valid_ratio.shape == result.error_bound.shape == (2, 3)
    for p in range(2):
        for q in range(3):
            one = product(a[p, 0], b[q], valid_ratio=0.4)
            assert np.array_equal(one.c, result.c[p, q])
            assert one.tau == result.tau[p, q]
            assert one.error_bound_rel == result.error_bound_rel[p, q]


def test_strided_and_read_only_operands():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((64, 96)), rng.standard_normal((50, 64))
    expected = a.T @ b.T
    a.setflags(write=False)
    np.testing.assert_allclose(product(a.T, b.T, tau=0).c, expected, rtol=1e-12)


class Tensor:
    """A host array of another library, known by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_kind_of_the_result_is_that_of_the_operands(monkeypatch):
    library = types.ModuleType("tensors")
    library.from_dlpack = lambda array: Tensor(np.asarray(array))
    monkeypatch.setitem(sys.modules, "tensors", library)
    monkeypatch.setattr(Tensor, "__module__", "tensors")
    a = np.arange(12.0).reshape(3, 4)
    result = product(Tensor(a), Tensor(a.T.copy()), tau=0)
    assert isinstance(result.c, Tensor)
    np.testing.assert_allclose(result.c.array, a @ a.T)
    np.testing.assert_allclose(product(a.tolist(), a.T.tolist(), tau=0).c, a @ a.T)


def test_jax_gets_its_own_arrays_back(monkeypatch):
    library = types.ModuleType("jax.numpy")
    library.from_dlpack = lambda array: Tensor(np.asarray(array))
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax.numpy", library)
    monkeypatch.setattr(Tensor, "__module__", "jaxlib._jax")
    a = np.eye(4)
    assert isinstance(product(Tensor(a), Tensor(a), tau=0).c, Tensor)


def test_half_precision_result():
    a = np.full((40, 40), 2, np.float16)
    result = product(a, a, tau=0, precision="fp16c16")
    assert result.c.dtype == np.float16
    assert (result.c == 160).all()
    with pytest.raises(ValueError, match="overflows float16"):
        product(np.full((40, 40), 200, np.float16), np.full((40, 40), 200, np.float16), tau=0, precision="fp16c16")


def test_one_thread_gives_the_same_bits():
    import threadpoolctl

    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 500, 500))
    many = product(a, b, tau=900.0)
    with threadpoolctl.threadpool_limits(1):
        assert blas_threads() == 1
        assert np.array_equal(product(a, b, tau=900.0).c, many.c)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity(bad):
    a, b = np.eye(80), np.eye(80)
    b[70, 3] = bad
    for wanted in ({"tau": 0.1}, {"valid_ratio": 0.5}, {"rtol_factors": 0.1}):
        with pytest.raises(ValueError, match=r"tile \(2, 0\) of b holds NaN or infinity"):
            product(a, b, **wanted)
    # Unchecked they propagate: no product with them is skipped.
    with np.errstate(invalid="ignore"):
        dense = a @ b
        free = product(a, b, tau=0.1, check_finite=False).c
    assert np.array_equal(np.isfinite(free[64:, :32]), np.isfinite(dense[64:, :32]))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, "exactly one of tau, valid_ratio, atol, rtol_factors and rtol; none was given"),
        ({"tau": 1, "rtol_factors": 1}, ValueError, "tau and rtol_factors were given"),
        ({"tau": -1}, ValueError, "tau = -1 is not a threshold"),
        ({"tau": math.nan}, ValueError, "tau = nan is not a threshold"),
        ({"valid_ratio": 0}, ValueError, r"valid_ratio = 0 lies outside \(0, 1\]"),
        ({"valid_ratio": 1.1}, ValueError, r"lies outside \(0, 1\]"),
        ({"rtol_factors": 0}, ValueError, "rtol_factors = 0 is not a tolerance"),
        ({"tau": 1, "block": 0}, ValueError, "block = 0 is not a tile size"),
        ({"tau": 1, "block": 32.0}, ValueError, "block = 32.0 is not a tile size"),
        ({"tau": 1, "beta": 1}, ValueError, "beta = 1 needs c"),
        ({"tau": 1, "c": np.ones((4, 4))}, ValueError, "c is given without beta"),
        ({"rtol": 0.1, "c": np.ones((4, 4))}, ValueError, "c is given without beta"),
        ({"tau": 1, "a": np.ones((2, 4, 4)), "c": np.ones((2, 4, 4))}, ValueError, "c is given without beta"),
        ({"tau": 1, "devices": 2, "c": np.ones((4, 4)), "backend": "auto"}, ValueError, "c is given without beta"),
        ({"tau": 1, "alpha": math.nan}, ValueError, "alpha = nan is not finite"),
        ({"tau": 1, "c": np.ones((3, 3)), "beta": 1}, ValueError, r"c has shape \(3, 3\)"),
        ({"tau": 1, "out": np.ones((3, 3))}, ValueError, r"out has shape \(3, 3\)"),
        ({"tau": 1, "out": np.ones((4, 4), np.float32)}, TypeError, "out is float32"),
        ({"tau": 1, "precision": "fp8"}, ValueError, "precision = 'fp8' is unknown"),
        ({"tau": 1, "precision": "fp32"}, TypeError, "'fp32' multiplies float32"),
        ({"tau": 1, "backend": "tpu"}, ValueError, "backend = 'tpu' is unknown"),
        ({"tau": 1, "b": np.ones((5, 4))}, ValueError, r"the columns of a \(4\) must be the rows of b \(5\)"),
        ({"tau": 1, "b": np.ones(4)}, ValueError, "b has shape"),
        ({"tau": 1, "b": np.ones((4, 4), np.float32)}, TypeError, "a is float64 and b is float32"),
        ({"tau": 1, "b": np.ones((4, 4), int)}, TypeError, "b has dtype int64"),
        ({"tau": 1, "a": np.ones((2, 4, 4)), "b": np.ones((3, 4, 4))}, ValueError, "do not broadcast"),
    ],
)
def test_errors_name_the_thing_and_the_mend(options, error, words):
    operands = {"a": np.ones((4, 4)), "b": np.ones((4, 4)), "backend": "cpu"}
    with pytest.raises(error, match=words):
        spamm(**(operands | options))


def test_out_must_be_contiguous():
    with pytest.raises(ValueError, match="out is not C-contiguous"):
        product(np.ones((4, 4)), np.ones((4, 4)), tau=0, out=np.ones((4, 8))[:, ::2])


def test_search_tells_what_its_threshold_leaves_and_ends_near_the_wanted_ratio():
    rng = np.random.default_rng(12)
    norms_a, norms_b = rng.random((2, 24, 24)) ** 4
    for wanted in (0.03, 0.2, 0.5, 0.9, 1.0):
        tau, found = tune_tau(NormMap(norms_a), NormMap(norms_b), wanted)
        assert abs(found - wanted) < 0.01
        assert found == reference.valid_set(norms_a, norms_b, tau).mean()


def test_search_on_zero_and_equal_norms():
    ones = NormMap(np.ones((4, 4)))
    assert tune_tau(NormMap(np.zeros((4, 4))), ones, 0.5) == (0.0, 1.0)
    tau, found = tune_tau(ones, ones, 0.3)
    assert found == reference.valid_set(np.ones((4, 4)), np.ones((4, 4)), tau).mean()
    with pytest.raises(ValueError, match="do not multiply"):
        tune_tau(ones, NormMap(np.ones((5, 4))), 0.5)


def test_norms_are_summed_in_double_precision():
    a = np.full((64, 64), 300, np.float16)
    np.testing.assert_allclose(norm_map(a).norms, 300 * 32)
    large = np.full((32, 32), 1e30, np.float32)
    np.testing.assert_allclose(norm_map(large).norms, 32e30, rtol=1e-6)


TABLE_1 = {
    1024: (1.434815, 1.456555, 1.489164, 1.521774, 1.586993, 1.695691),
    2048: (1.310666, 1.330525, 1.360312, 1.40003, 1.449676, 1.548969),
    4096: (1.195803, 1.222981, 1.250158, 1.277335, 1.322631, 1.413222),
    8192: (1.093354, 1.113983, 1.138739, 1.171746, 1.204753, 1.28727),
    16384: (0.997847, 1.012852, 1.03536, 1.06537, 1.110386, 1.170407),
    32768: (0.905539, 0.919156, 0.939582, 0.966816, 1.007668, 1.062136),
}
RATIOS = (0.30, 0.25, 0.20, 0.15, 0.10, 0.05)


@pytest.mark.parametrize("n", [1024, 2048, 4096, 8192])
def test_table_1(n):
    """The printed thresholds give the row's valid ratio within 1 % absolute, and the search finds the thresholds."""
    norms = decay.algebraic_norm_map(n, dtype=np.float32)
    for tau, wanted in zip(TABLE_1[n], RATIOS, strict=True):
        assert abs(count_valid(norms, norms, tau) / norms.shape[0] ** 3 - wanted) < 0.01
        assert tune_tau(NormMap(norms), NormMap(norms), wanted)[0] == pytest.approx(tau, rel=2e-6)


def test_table_1_largest():
    norms = decay.algebraic_norm_map(32768, dtype=np.float32)
    for tau, ratio in ((TABLE_1[32768][0], 0.2943), (TABLE_1[32768][5], 0.0511)):
        assert count_valid(norms, norms, tau) / 1024**3 == pytest.approx(ratio, abs=5e-5)


def test_matrix_multiplied_is_the_one_whose_norms_are_known():
    a = decay.algebraic(1024, dtype=np.float32)
    result = product(a, a, tau=TABLE_1[1024][4])
    assert result.valid_ratio == pytest.approx(0.1024, abs=5e-5)


def test_table_3_small():
    """Errors of N = 1024 at thresholds that give the printed valid ratios (the paper: 996, 1302, 1387)."""
    a = decay.algebraic(1024)
    exact = a @ a
    assert np.linalg.norm(exact) == pytest.approx(1422.3, abs=0.05)
    for tau, ratio, error in ((1.45, 0.2683, 996.65), (1.66, 0.0670, 1302.70), (1.82, 0.0187, 1386.99)):
        result = product(a, a, tau=tau)
        assert result.valid_ratio == pytest.approx(ratio, abs=5e-5)
        assert np.linalg.norm(exact - result.c) == pytest.approx(error, abs=0.01)
