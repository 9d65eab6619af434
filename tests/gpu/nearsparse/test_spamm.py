"""SpAMM on CUDA against float64: every kernel, precision, remainder and promise of the public function.

Inputs come from fresh seeds; outputs are poisoned with NaN and lie inside guard words.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import norm_map, spamm, tune_tau
from spectile.nearsparse.cuda.choose import Way
from spectile.nearsparse.cuda.tuning import Kernel

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
OUTPUTS = {"fp16": "f4", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
# Error of the executed products relative to the dense product, all in the Frobenius norm.
TOLERANCE = {"fp16": 3e-6, "fp16c16": 6e-4, "fp32": 3e-6, "tf32x3": 3e-6, "fp64": 1e-14}
PRECISIONS = list(DTYPES)
SHAPES = [(256, 256, 256), (333, 197, 411), (64, 1000, 72), (1, 1, 1), (31, 33, 65), (200, 296, 136)]


def _random(rows: int, columns: int, dtype: str, block: int = 32) -> Any:
    """Blocks whose norms decay from the diagonal, no two alike."""
    generator = np.random.default_rng()
    i, j = np.arange(rows)[:, None] // block, np.arange(columns)[None, :] // block
    return (generator.standard_normal((rows, columns)) * np.exp(-0.3 * np.abs(i - j))).astype(dtype)


def _norms(x: Any, block: int) -> Any:
    rows, columns = (-(-n // block) * block for n in x.shape)
    padded = np.zeros((rows, columns))
    padded[: x.shape[0], : x.shape[1]] = x
    return np.sqrt((padded.reshape(rows // block, block, columns // block, block) ** 2).sum(axis=(1, 3)))


def _threshold(a: Any, b: Any, block: int, share: float) -> float:
    """A tau that leaves about `share`, in the middle of the widest gap nearby: rounded norms give the same set."""
    products = np.sort((_norms(a, block)[:, :, None] * _norms(b, block)[None]).ravel())
    middle = int((1 - share) * (products.size - 1))
    window = products[max(0, middle - 10) : middle + 11]
    if window.size < 2:
        return float(products[0]) / 2
    gap = int(np.argmax(np.diff(window) / window[1:]))
    return float(window[gap : gap + 2].mean())


def _valid_product(a: Any, b: Any, tau: float, block: int) -> tuple[Any, float]:
    """Float64 product of exactly the valid tiles, and the valid ratio."""
    a, b = a.astype("f8"), b.astype("f8")
    norms_a, norms_b = _norms(a, block), _norms(b, block)
    c, count = np.zeros((a.shape[0], b.shape[1])), 0
    for k in range(norms_a.shape[1]):
        valid = norms_a[:, k, None] * norms_b[None, k] >= tau
        count += int(valid.sum())
        mask = np.repeat(np.repeat(valid, block, 0), block, 1)[: c.shape[0], : c.shape[1]]
        c += mask * (a[:, k * block : (k + 1) * block] @ b[k * block : (k + 1) * block])
    return c, count / (norms_a.size * norms_b.shape[1])


def _guarded(shape: tuple[int, int], dtype: str) -> tuple[Any, Any]:
    """A poisoned C-contiguous output between guard words."""
    import cupy

    size = math.prod(shape)
    buffer = cupy.full(size + 512, 77, dtype)
    out = buffer[256 : 256 + size].reshape(shape)
    out[...] = cupy.nan
    return out, buffer


def _check_guards(buffer: Any) -> None:
    assert bool((buffer[:256] == 77).all()) and bool((buffer[-256:] == 77).all()), "written outside of out"


def _error(found: Any, wanted: Any, a: Any, b: Any) -> float:
    scale = np.linalg.norm(a.astype("f8") @ b.astype("f8"))
    found = found.get() if hasattr(found, "get") else found
    return float(np.linalg.norm(found.astype("f8") - wanted) / scale)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_strict_multiplies_exactly_the_valid_set(precision: str, shape: tuple[int, int, int]) -> None:
    import cupy

    m, k, n = shape
    a, b = _random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])
    tau = _threshold(a, b, 32, 0.4)
    wanted, ratio = _valid_product(a, b, tau, 32)
    out, buffer = _guarded((m, n), OUTPUTS[precision])
    result = spamm(cupy.asarray(a), cupy.asarray(b), tau=tau, strict=True, precision=precision, out=out)
    assert result.c is out
    _check_guards(buffer)
    assert _error(out, wanted, a, b) < TOLERANCE[precision]
    assert result.valid_ratio == pytest.approx(ratio, abs=1e-12)
    assert result.executed_ratio == result.valid_ratio


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_lies_behind_an_operand_is_not_read(precision: str, strict: bool) -> None:
    """Rows of NaN follow the last row of A and of B, and of what is added."""
    import cupy

    for m, k, n in SHAPES:
        rows = [cupy.full((x + 40, y), cupy.nan, DTYPES[precision]) for x, y in ((m, k), (k, n))]
        a, b = (whole[:-40] for whole in rows)
        a[...], b[...] = cupy.asarray(_random(m, k, a.dtype.char)), cupy.asarray(_random(k, n, b.dtype.char))
        added = cupy.full((m + 40, n), cupy.nan, OUTPUTS[precision])[:-40]
        added[...] = 1
        words: dict[str, Any] = {"tau": 0.0, "strict": strict, "precision": precision, "backend": "cuda"}
        found = spamm(a, b, **words).c
        assert _error(found, a.get().astype("f8") @ b.get().astype("f8"), a.get(), b.get()) < 4 * TOLERANCE[precision]
        assert bool(cupy.isfinite(spamm(a, b, beta=0.5, c=added, **words).c).all())


@pytest.mark.parametrize("block", [8, 16, 64, 128])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_strict_at_other_blocks(precision: str, block: int) -> None:
    a, b = _random(300, 260, DTYPES[precision], block), _random(260, 340, DTYPES[precision], block)
    tau = _threshold(a, b, block, 0.5)
    wanted, ratio = _valid_product(a, b, tau, block)
    result = spamm(a, b, tau=tau, block=block, strict=True, precision=precision, backend="cuda")
    assert isinstance(result.c, np.ndarray)
    assert _error(result.c, wanted, a, b) < TOLERANCE[precision]
    assert result.valid_ratio == pytest.approx(ratio, abs=1e-12)


@pytest.mark.parametrize("block", [8, 32, 64])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_default_stays_within_its_bound(precision: str, block: int) -> None:
    a, b = _random(520, 392, DTYPES[precision], block), _random(392, 456, DTYPES[precision], block)
    tau = _threshold(a, b, block, 0.3)
    result = spamm(a, b, tau=tau, block=block, precision=precision, backend="cuda")
    error = np.linalg.norm(result.c.astype("f8") - a.astype("f8") @ b.astype("f8"))
    assert error <= result.error_bound
    assert result.executed_ratio >= result.valid_ratio
    assert result.error_bound_rel == pytest.approx(result.error_bound / np.linalg.norm(result.c.astype("f8")), rel=1e-6)


def _needs(kernel: str) -> None:
    from spectile.core import device

    if kernel.startswith("wgmma") and device.describe().compute_capability != (9, 0):
        pytest.skip("wgmma exists on compute capability 9.0 alone")


def _check_kernel(
    way: Way, precision: str, shape: tuple[int, int, int], betas: tuple[float, ...] = (0.0,), more: float = 1.0
) -> None:
    """Hold a kernel against the float64 product over what it executes: the valid set, widened to its grain.

    `more` is by how much a sum of many addends may err more than the short ones that the tolerance is for.
    """
    import cupy

    from spectile.nearsparse.cuda.norms import NormMaps
    from spectile.nearsparse.cuda.product import Product

    _needs(way.kernel)
    m, k, n = shape
    a, b = (_random(*size, DTYPES[precision], 32 * max(1, k // 1024)) for size in ((m, k), (k, n)))
    tau = _threshold(a, b, 32, 0.2)
    device_a, device_b = cupy.asarray(a), cupy.asarray(b)
    maps = NormMaps(device_a, device_b, 32)
    out, buffer = _guarded((m, n), OUTPUTS[precision])
    c = np.random.default_rng().standard_normal((m, n)).astype(OUTPUTS[precision])
    for beta in betas:
        out[...] = cupy.nan
        product = Product(
            device_a, device_b, out, maps, tau,
            precision=precision, alpha=1.5, beta=beta, c=cupy.asarray(c), way=way,
        )  # fmt: skip
        maps()
        product()
        _check_guards(buffer)
        rows, columns, _ = product.grain
        wide_a, wide_b = (_widest(norms, size) for norms, size in ((maps.a, rows), (maps.b, columns)))
        wanted = 1.5 * _masked_product(a, b, wide_a, wide_b, tau) + beta * c.astype("f8")
        assert _error(out, wanted, a, b) < more * TOLERANCE[precision]


@pytest.mark.parametrize("kernel", ["portable", "wgmma_small", "wgmma_wide", "wgmma_wide_pair"])
@pytest.mark.parametrize("precision", ["fp16", "fp16c16"])
@pytest.mark.parametrize("shape", [(256, 256, 256), (1000, 520, 1304), (2048, 1536, 1024)])
def test_each_half_precision_kernel(kernel: Kernel, precision: str, shape: tuple[int, int, int]) -> None:
    _check_kernel(Way(kernel), precision, shape, (0.0, -0.5))


@pytest.mark.parametrize("shape", [(256, 256, 256), (1000, 520, 1304), (132, 4096, 516)])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_three_tf32_products_on_hopper(shape: tuple[int, int, int], beta: float) -> None:
    _check_kernel(Way("wgmma_tf32"), "tf32x3", shape, (beta,))


@pytest.mark.parametrize("splits", [1, 2, 7])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(64, 2048, 128), (70, 3001, 91), (1, 5000, 33), (200, 31, 3)])
def test_blocks_share_tiles(shape: tuple[int, int, int], precision: str, splits: int) -> None:
    _check_kernel(Way("portable", splits), precision, shape, (0.0, -0.5), more=10)


@pytest.mark.parametrize(
    ("precision", "kernel", "k"),
    [("fp16", "wgmma_wide_pair", 49_152), ("fp16c16", "wgmma_wide_pair", 40_032), ("tf32x3", "wgmma_tf32", 36_864)],
)
def test_kernels_for_hopper_list_all_of_a_long_inner_dimension(precision: str, kernel: Kernel, k: int) -> None:
    _check_kernel(Way(kernel), precision, (300, k, 520), more=10)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_lists_are_longer_than_a_block_holds(precision: str) -> None:
    import cupy

    a, b = _random(100, 33000, DTYPES[precision], 1024), _random(33000, 160, DTYPES[precision], 1024)
    found = spamm(cupy.asarray(a), cupy.asarray(b), tau=0.0, precision=precision).c.get()
    # A sum of 33,000 addends errs more than the short ones that the tolerance is for.
    assert _error(found, a.astype("f8") @ b.astype("f8"), a, b) < 10 * TOLERANCE[precision]


def _widest(norms: Any, size: int) -> Any:
    """Largest norm of each group of `size` blocks, for every block of the group."""
    host = norms.get()
    padded = np.zeros((-(-host.shape[0] // size) * size, host.shape[1]), host.dtype)
    padded[: host.shape[0]] = host
    return np.repeat(padded.reshape(-1, size, host.shape[1]).max(axis=1), size, 0)[: host.shape[0]]


def _masked_product(a: Any, b: Any, norms_a: Any, norms_b: Any, tau: float) -> Any:
    """Product in float64, on the device, of the tiles whose norms multiply to tau."""
    import cupy

    a, b = cupy.asarray(a, dtype="f8"), cupy.asarray(b, dtype="f8")
    norms_a, norms_b = cupy.asarray(norms_a), cupy.asarray(norms_b)
    c = cupy.zeros((a.shape[0], b.shape[1]))
    for k in range(norms_a.shape[1]):
        valid = norms_a[:, k, None] * norms_b[None, :, k] >= np.float32(tau)
        mask = cupy.repeat(cupy.repeat(valid, 32, 0), 32, 1)[: c.shape[0], : c.shape[1]]
        c += mask * (a[:, 32 * k : 32 * k + 32] @ b[32 * k : 32 * k + 32])
    return c.get()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_zero_tau_is_dense_and_infinite_tau_is_zero(precision: str) -> None:
    a, b = _random(260, 300, DTYPES[precision]), _random(300, 280, DTYPES[precision])
    dense = spamm(a, b, tau=0, precision=precision, backend="cuda")
    assert dense.valid_ratio == dense.executed_ratio == 1
    assert _error(dense.c, a.astype("f8") @ b.astype("f8"), a, b) < TOLERANCE[precision]
    nothing = spamm(a, b, tau=math.inf, precision=precision, backend="cuda")
    assert nothing.valid_ratio == 0 and not nothing.c.any()


def test_valid_set_is_monotone_in_tau() -> None:
    a, b = _random(512, 512, "f4"), _random(512, 512, "f4")
    taus = np.linspace(0, float((_norms(a, 32)[:, :, None] * _norms(b, 32)[None]).max()) * 1.01, 12)
    ratios = [spamm(a, b, tau=float(tau), backend="cuda").valid_ratio for tau in taus]
    assert ratios[0] == 1 and ratios[-1] == 0 and all(x >= y for x, y in itertools.pairwise(ratios))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("rtol", [1e-1, 1e-2, 1e-4])
def test_an_error_is_kept(precision: str, rtol: float) -> None:
    a, b = _random(384, 448, DTYPES[precision]), _random(448, 416, DTYPES[precision])
    exact = a.astype("f8") @ b.astype("f8")
    scale = float(np.linalg.norm(a.astype("f8")) * np.linalg.norm(b.astype("f8")))
    shares = []
    for wanted in ({"rtol_factors": rtol}, {"atol": rtol * scale}):
        result = spamm(a, b, **wanted, precision=precision, method="spamm", backend="cuda")
        assert np.linalg.norm(result.c - exact) <= result.error_bound <= rtol * scale * (1 + 1e-9)
        assert result.valid_ratio < 1
        shares.append(result.valid_ratio)
    assert abs(shares[0] - shares[1]) < 0.01  # the norms have a slack that the absolute error has not
    with pytest.raises(ValueError, match="below what rounding alone"):
        spamm(a, b, rtol_factors=1e-18, precision=precision, backend="cuda")
    for method, checked in itertools.product(("auto", "spamm"), (True, False)):
        with pytest.raises(ValueError, match=r"atol = .* is below what rounding"):
            _ = spamm(a, b, atol=1e-18 * scale, method=method, check_finite=checked, backend="cuda").tau


def test_an_absolute_error_is_that_of_each_product_before_its_factor() -> None:
    import cupy

    i = np.arange(256)
    a = np.exp(-abs(i[:, None] - i) / 8.0) * np.random.default_rng(8).standard_normal((256, 256))
    stack = cupy.asarray(np.stack([a, 1e-3 * a, 0 * a]))
    result = spamm(stack, cupy.asarray(a), atol=0.5, alpha=-3.0)
    one, two = (spamm(x, cupy.asarray(a), atol=0.5, method="spamm") for x in stack[:2])
    assert (
        result.tau[:2].tolist() == pytest.approx([one.tau, two.tau], rel=1e-5) and two.valid_ratio < one.valid_ratio < 1
    )
    error = cupy.linalg.norm(result.c + 3 * stack @ cupy.asarray(a), axis=(1, 2)).get()
    assert (error <= result.error_bound).all() and (result.error_bound <= 1.5 * (1 + 1e-9)).all()


@pytest.mark.parametrize("wanted", [0.3, 0.05, 1.0])
def test_search_finds_the_valid_ratio(wanted: float) -> None:
    import cupy

    from spectile.nearsparse.cpu import search as cpu

    a, b = _random(1024, 1024, "f4"), _random(1024, 1024, "f4")
    result = spamm(cupy.asarray(a), cupy.asarray(b), valid_ratio=wanted)
    assert abs(result.valid_ratio - wanted) <= min(0.01, wanted / 10)
    maps = [norm_map(cupy.asarray(x)) for x in (a, b)]
    tau, ratio = tune_tau(*maps, wanted)
    tau_cpu, ratio_cpu = cpu.tune_tau(*(x.norms.get().astype("f8") for x in maps), wanted)
    assert ratio == pytest.approx(ratio_cpu, abs=1e-4) and tau == pytest.approx(tau_cpu, rel=1e-5)


@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_norm_map(dtype: str, block: int) -> None:
    import cupy

    for rows, columns in ((300, 500), (128, 256), (5, 7), (257, 1024)):
        a = _random(rows, columns, dtype) * (400 if dtype == "f2" else 1)
        found = norm_map(cupy.asarray(a), block).norms.get()
        np.testing.assert_allclose(
            found, _norms(a.astype("f8"), block), rtol=1e-14 if dtype == "f8" else 2e-6, atol=1e-30
        )


def test_batches_broadcast() -> None:
    import cupy

    a = np.stack([_random(96, 80, "f4") for _ in range(6)]).reshape(2, 3, 96, 80)
    b, c = _random(80, 112, "f4"), np.random.default_rng().standard_normal((2, 3, 96, 112)).astype("f4")
    wanted = 2 * (a.astype("f8") @ b.astype("f8")) - c
    found = spamm(cupy.asarray(a), cupy.asarray(b), tau=0, alpha=2, beta=-1, c=cupy.asarray(c))
    np.testing.assert_allclose(found.c.get(), wanted, rtol=1e-4, atol=1e-4)
    assert found.valid_ratio.shape == (2, 3)
    wide = spamm(cupy.asarray(a[:, :1]), cupy.asarray(np.stack([b, 2 * b, 3 * b])), valid_ratio=0.5)
    for i, j in np.ndindex(2, 3):
        alone = spamm(a[i, 0], (j + 1) * b, tau=float(wide.tau[i, j]), backend="cuda")
        np.testing.assert_allclose(wide.c[i, j].get(), alone.c, rtol=1e-5, atol=1e-6)


def test_half_batch_on_the_default_kernel() -> None:
    import cupy

    a = np.stack([_random(256, 512, "f2") for _ in range(3)])
    b = _random(512, 384, "f2")
    found = spamm(cupy.asarray(a), cupy.asarray(b), tau=0).c.get()
    np.testing.assert_allclose(found, a.astype("f8") @ b.astype("f8"), rtol=1e-3, atol=1e-3)


def test_kinds_come_back() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.rand(70, 90, device="cuda"), torch.rand(90, 50, device="cuda")
    result = spamm(a, b, tau=0.0).c
    assert isinstance(result, torch.Tensor) and result.device.type == "cuda"
    torch.testing.assert_close(result, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


def test_runs_on_the_current_stream_and_in_a_graph() -> None:
    import cupy

    a, b = _random(512, 512, "f4"), _random(512, 512, "f4")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        out = cupy.full((512, 512), cupy.nan, "f4")
        for _ in range(2):
            spamm(device_a, device_b, tau=0.0, out=out)
        stream.synchronize()
        out.fill(cupy.nan)
        # A synchronisation or a read-back would break the capture.
        stream.begin_capture()
        kept = spamm(device_a, device_b, tau=0.0, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert kept.c is out
    assert _error(out, a.astype("f8") @ b.astype("f8"), a, b) < TOLERANCE["fp32"]


@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
def test_nan_and_infinity_propagate_as_in_gemm(precision: str) -> None:
    import cupy

    a, b = _random(128, 128, DTYPES[precision]), _random(128, 128, DTYPES[precision])
    a[3, 5], b[70, 80] = np.nan, np.inf
    tau = _threshold(np.nan_to_num(a, posinf=0), np.nan_to_num(b, posinf=0), 32, 0.3)
    found = spamm(cupy.asarray(a), cupy.asarray(b), tau=tau, precision=precision).c.get()
    assert np.isnan(found[3]).all()
    assert not np.isfinite(found[:, 80]).any()
    with pytest.raises(ValueError, match="NaN or infinity"):
        spamm(a, b, tau=tau, precision=precision, backend="cuda")


def test_half_precision_overflow_is_seen() -> None:
    a = np.full((64, 64), 200, "f2")
    with pytest.raises(ValueError, match="overflows float16"):
        spamm(a, a, tau=0.0, precision="fp16c16", backend="cuda")
    assert spamm(a, a, tau=0.0, backend="cuda").c[0, 0] == 64 * 200**2


def test_3xtf32_stays_within_twice_sgemm_on_positive_matrices() -> None:
    import cupy

    from spectile_study.bench.vendor import Gemm

    # As large as SGEMM sums k in one piece: for few rows it splits k, and errs less.
    generator = cupy.random.default_rng(int(np.random.default_rng().integers(2**31)))
    a, b = (generator.random((2048, 8192), dtype="f4"), generator.random((8192, 2048), dtype="f4"))
    exact = a.astype("f8") @ b.astype("f8")
    sgemm = cupy.linalg.norm(Gemm(a, b, cupy.empty((2048, 2048), "f4"), "fp32")() - exact)
    ours = cupy.linalg.norm(spamm(a, b, tau=0.0, precision="tf32x3").c - exact)
    assert float(ours) <= 2 * float(sgemm)


def test_bad_calls_are_worded() -> None:
    import cupy

    a = cupy.zeros((64, 64), "f4")
    for given in ({"rtol_factors": 10**400}, {"valid_ratio": 10**400}, {"tau": 10**400}):
        with pytest.raises(ValueError, match="is beyond the largest number of float64"):
            spamm(cupy.ones((4, 4)), cupy.ones((4, 4)), **given)
    with pytest.raises(ValueError, match="are visible: name some of"):
        spamm(cupy.ones((4, 4)), cupy.ones((4, 4)), tau=0.0, devices=10**400)
    with pytest.raises(ValueError, match="not row-major"):
        spamm(cupy.asfortranarray(cupy.zeros((64, 32), "f4")), cupy.zeros((32, 64), "f4"), tau=0.0)
    with pytest.raises(ValueError, match="take 8, 16, 32, 64 or 128"):
        spamm(a, a, tau=0.0, block=48)
    with pytest.raises(MemoryError, match="bytes of device memory"):
        from spectile.core import memory

        with memory.allocating("a product", 1 << 50):
            cupy.empty(1 << 50, "u1")


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0)])
def test_empty_operands(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for lead in ((0,), (2,), (2, 3)):
        batch = spamm(np.zeros((*lead, m, k), "f4"), np.zeros((k, n), "f4"), tau=0.0, backend="cuda")
        assert batch.c.shape == (*lead, m, n) and not batch.c.any() and batch.valid_ratio.shape == lead
    c = np.ones((m, n), "f4")
    result = spamm(np.zeros((m, k), "f4"), np.zeros((k, n), "f4"), tau=0.0, beta=2.0, c=c, backend="cuda")
    np.testing.assert_array_equal(result.c, 2 * c)


def test_out_may_be_an_operand() -> None:
    import cupy

    a, b = _random(160, 160, "f4"), _random(160, 160, "f4")
    device_a = cupy.asarray(a)
    result = spamm(device_a, cupy.asarray(b), tau=0.0, out=device_a)
    assert result.c is device_a
    assert _error(device_a, a.astype("f8") @ b.astype("f8"), a, b) < TOLERANCE["fp32"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bound_of_a_product_that_overwrites_what_is_added(precision: str) -> None:
    import cupy

    output = OUTPUTS[precision]
    a, b = (cupy.asarray(np.stack([_random(160, 160, DTYPES[precision]) for _ in range(3)])) for _ in range(2))
    c = cupy.asarray((100 * np.random.default_rng().standard_normal((3, 160, 160))).astype(output))
    options: Any = {"tau": 1.0, "beta": 2.0, "precision": precision}
    wanted = spamm(a, b, c=c, **options)
    place = c.copy()
    found = spamm(a, b, c=place, out=place, **options)
    assert found.c is place and bool((place == wanted.c).all())
    np.testing.assert_allclose(found.error_bound, wanted.error_bound, rtol=1e-4)
    # One for all, and products launched one by one.
    for x, y in ((a[0], b), (a[:, None], b[None])):
        shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        added = cupy.ascontiguousarray(cupy.broadcast_to(c, (*shape, 160, 160)))
        alone = spamm(x, y, c=added, **options)
        place = added.copy()
        found = spamm(x, y, c=place, out=place, **options)
        assert bool((place == alone.c).all())
        np.testing.assert_allclose(found.error_bound, alone.error_bound, rtol=1e-4)
    # `out` overlaps other entries of C.
    shifted = cupy.concatenate([c[0], cupy.zeros((1, 160), output)])
    found = spamm(a[0], b[0], c=shifted[:-1], out=shifted[1:], **options)
    assert bool((found.c == wanted.c[0]).all()) and found.error_bound == pytest.approx(wanted.error_bound[0], rel=1e-4)
    # C of another dtype is converted, and C and out of the host are copied.
    double = c[0].astype("f8")
    found = spamm(a[0], b[0], c=double, out=c[0], **options)
    assert found.error_bound == pytest.approx(wanted.error_bound[0], rel=1e-4)
    place = double.get().astype(output)
    found = spamm(a[0].get(), b[0].get(), c=place, out=place, backend="cuda", **options)
    assert found.c is place and np.array_equal(place, wanted.c[0].get())
    assert found.error_bound == pytest.approx(wanted.error_bound[0], rel=1e-4)


def test_bound_where_out_is_an_operand_and_is_added() -> None:
    import cupy

    a, b = (cupy.asarray(_random(160, 160, "f4")) for _ in range(2))
    wanted = spamm(a, b, c=a, tau=1.0, beta=300.0)
    place = a.copy()
    found = spamm(place, b, c=place, out=place, tau=1.0, beta=300.0)
    assert found.c is place and bool((place == wanted.c).all())
    assert found.error_bound == pytest.approx(wanted.error_bound, rel=1e-4)


def test_a_product_that_overwrites_what_is_added_reads_nothing_back() -> None:
    import cupy

    a, b, c = (cupy.asarray(_random(512, 512, "f4")) for _ in range(3))
    wanted = spamm(a, b, c=c, tau=1.0, beta=2.0)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        place = c.copy()
        spamm(a, b, c=place, out=place, tau=1.0, beta=2.0)
        place[...] = c
        stream.begin_capture()
        kept = spamm(a, b, c=place, out=place, tau=1.0, beta=2.0)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert bool((place == wanted.c).all())
        assert kept.error_bound == pytest.approx(wanted.error_bound, rel=1e-4)


@pytest.mark.parametrize("asked", [{"tau": 1.0}, {"rtol_factors": 1e-2}])
def test_a_captured_product_writes_to_nothing_that_was_given_back(asked: dict[str, Any]) -> None:
    import cupy

    asked = asked | {"beta": 2.0, "method": "spamm"}
    # One tile of C, which blocks share: their sums take half a megabyte.
    a, b, c = (cupy.asarray(_random(*size, "f4")) for size in ((64, 8192), (8192, 64), (64, 64)))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        wanted = spamm(a, b, c=c, **asked).c
        stream.begin_capture()
        kept = spamm(a, b, c=c, **asked)
        graph = stream.end_capture()
        others = [cupy.ones(2**exponent, "f4") for exponent in range(7, 20) for _ in range(4)]
        graph.launch(stream)
        stream.synchronize()
        assert bool((kept.c == wanted).all())
        assert all(bool((other == 1).all()) for other in others)


@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_of_norms_that_equal_the_threshold_are_multiplied(precision: str, block: int) -> None:
    import cupy

    # One entry a tile: norms are powers of two, and so are their products.
    a, b = (np.zeros((3 * block, 3 * block), DTYPES[precision]) for _ in range(2))
    tiles = slice(None, None, block), slice(None, None, block)
    a[tiles], b[tiles] = [[4, 2, 1], [2, 1, 4], [1, 4, 2]], [[1, 2, 4], [4, 1, 2], [2, 4, 1]]
    products = a[tiles].astype("f8")[:, :, None] * b[tiles].astype("f8")[None]
    for tau in (1.0, 2.0, 4.0, 8.0, 16.0):
        wanted = np.where(products >= tau, products, 0).sum(axis=1)
        for strict in (True, False):
            result = spamm(cupy.asarray(a), cupy.asarray(b), tau=tau, block=block, strict=strict, precision=precision)
            assert result.valid_ratio == (products >= tau).mean()
            if strict:
                np.testing.assert_array_equal(result.c.get()[tiles], wanted)
                assert result.executed_ratio == result.valid_ratio
            else:
                assert (result.c.get()[tiles] >= wanted).all()
    # All products equal the threshold: none is multiplied for the sake of a neighbour.
    ones = cupy.ones((3 * block, 3 * block), DTYPES[precision])
    for tau, wanted in (
        (float(block) ** 2, 3 * block),
        (float(np.nextafter(np.float32(block**2), np.float32(1e9))), 0),
    ):
        result = spamm(ones, ones, tau=tau, block=block, precision=precision)
        assert (result.c == wanted).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_memory_is_that_of_the_operands_and_c(precision: str) -> None:
    import cupy

    n = 4096
    a, b = (cupy.asarray(_random(n, n, DTYPES[precision])) for _ in range(2))
    spamm(a, b, valid_ratio=0.3, precision=precision)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        result = spamm(a, b, valid_ratio=0.3, precision=precision)
        cupy.cuda.get_current_stream().synchronize()
        ours = a.nbytes + b.nbytes + result.c.nbytes
        # The pool keeps what was given back: its size is the most that was held at a time.
        assert pool.total_bytes() <= result.c.nbytes + 0.05 * ours
        assert result.error_bound_rel > 0 and 0 < result.valid_ratio <= result.executed_ratio <= 1
        assert pool.total_bytes() <= result.c.nbytes + max(0.05 * ours, 32 << 20)


def test_what_has_the_cuda_array_interface_alone_is_multiplied() -> None:
    import cupy

    class Interface:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    a, b = _random(70, 90, "f4"), _random(90, 50, "f4")
    result = spamm(Interface(cupy.asarray(a)), Interface(cupy.asarray(b)), tau=0.0)
    assert isinstance(result.c, cupy.ndarray)
    assert _error(result.c, a.astype("f8") @ b.astype("f8"), a, b) < TOLERANCE["fp32"]


@pytest.mark.parametrize("shared", [False, True])
def test_batches_of_more_products_than_one_launch_takes(shared: bool) -> None:
    import cupy

    count = 70001
    a, c = (cupy.random.standard_normal((count, 9, 8), dtype="f4") for _ in range(2))
    b = cupy.random.standard_normal((8, 8) if shared else (count, 8, 8), dtype="f4")
    place = c.copy()
    spamm(a, b, tau=0.0, block=8, beta=-1.0, c=place, out=place)
    cupy.testing.assert_allclose(place, a.astype("f8") @ b.astype("f8") - c, rtol=1e-4, atol=1e-4)
