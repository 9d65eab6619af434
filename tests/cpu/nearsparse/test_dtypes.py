"""Complex operands, multiplied by their parts, and operands of bfloat16, multiplied in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile.nearsparse import checks, norm_map, spamm, spamm_threshold, tune_tau
from spectile_study.cases.spamm import reference

ml_dtypes = pytest.importorskip("ml_dtypes")


def decay(rng: np.random.Generator, *shape: int, dtype: str = "c16", block: int = 8) -> Any:
    """Return complex entries that decay away from the diagonal by tiles."""
    x = rng.standard_normal((*shape, 2)).view("c16")[..., 0]
    return (x * 0.5 ** (abs(np.subtract.outer(*map(np.arange, shape[-2:]))) // block)).astype(dtype)


@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 70), k=st.integers(1, 70), n=st.integers(1, 70), dtype=st.sampled_from(["c8", "c16"]),
    block=st.sampled_from([1, 5, 8, 32, 40]), quantile=st.floats(0, 1), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_complex_products_are_the_references_on_exactly_the_valid_set(
    m: int, k: int, n: int, dtype: str, block: int, quantile: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = decay(rng, m, k, dtype=dtype, block=block), decay(rng, k, n, dtype=dtype, block=block)
    norms = [reference.norm_map(x, block) for x in (a, b)]
    for x, wanted in zip((a, b), norms, strict=True):
        np.testing.assert_allclose(norm_map(x, block).norms, wanted, rtol=1e-12)
    # Between two products of norms, which rounding then does not decide about.
    products = np.unique(norms[0][:, :, None] * norms[1][None])
    at = int(quantile * (len(products) - 1))
    below = products[at - 1] if at else 0.0
    if products[at] - below < 1e-9 * products[at]:
        return
    tau = (products[at] + below) / 2
    result = spamm(a, b, tau=tau, block=block, backend="cpu")
    assert result.c.dtype == a.dtype
    assert result.valid_ratio == pytest.approx(reference.valid_set(*norms, tau).mean(), abs=1e-12)
    wide = [x.astype("c16") for x in (a, b)]
    tolerance = 20 * k * np.finfo(dtype).eps * np.prod([np.linalg.norm(x) for x in wide])
    assert np.linalg.norm(result.c - reference.spamm_flat(*wide, tau, block)) <= tolerance
    assert np.linalg.norm(result.c - wide[0] @ wide[1]) <= result.error_bound


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_wanted_errors_of_complex_products_are_kept_and_used(dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, b = (decay(rng, 200, 200, dtype=dtype) for _ in range(2))
    norm = np.linalg.norm(a.astype("c16")) * np.linalg.norm(b.astype("c16"))
    for rtol in (1e-1, 1e-3):
        result = spamm(a, b, rtol_factors=rtol, block=8, backend="cpu", method="spamm")
        error = np.linalg.norm(result.c - a.astype("c16") @ b.astype("c16"))
        assert 0.05 * result.error_bound < error <= result.error_bound <= rtol * norm * (1 + 1e-9)
        assert 0 < result.valid_ratio < 1
        assert spamm_threshold(a, b, rtol_factors=rtol, block=8, backend="cpu").tau == pytest.approx(
            result.tau, rel=1e-12
        )
    share = tune_tau(a, b, 0.3, block=8)[1]
    assert share == pytest.approx(0.3, abs=0.01)
    assert spamm(a, b, valid_ratio=0.3, block=8, backend="cpu").valid_ratio == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (33, 65, 31)])
def test_complex_products_of_any_shape(dtype: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    m, k, n = shape
    a, b = decay(rng, m, k, dtype=dtype), decay(rng, k, n, dtype=dtype)
    result = spamm(a, b, tau=0, backend="cpu")
    assert result.c.shape == (m, n) and result.executed_ratio == 1
    np.testing.assert_allclose(result.c, a @ b, rtol=0, atol=1e-3 if dtype == "c8" else 1e-11)
    assert not spamm(a, b, tau=np.inf, backend="cpu").c.any() or 0 in shape


def test_layouts_sums_and_batches_of_complex_products() -> None:
    rng = np.random.default_rng(3)
    a, b, c = decay(rng, 3, 50, 40), decay(rng, 40, 30), decay(rng, 3, 50, 30)
    for one, two in (
        (np.asfortranarray(a[0]), np.asfortranarray(b)),
        (a[0].T.conj().T, b[::-1, ::-1]),
        (a[0].astype(">c16"), b.copy()),
    ):
        np.testing.assert_allclose(spamm(one, two, tau=0, backend="cpu").c, one @ two, rtol=0, atol=1e-11)
    out = np.empty((3, 50, 30), "c16")
    result = spamm(a, b, tau=0.0, alpha=-2.0, beta=0.5, c=c, out=out, backend="cpu")
    assert result.c is out and result.error_bound.shape == (3,)
    np.testing.assert_allclose(out, -2 * a @ b + 0.5 * c, rtol=0, atol=1e-11)
    assert (np.linalg.norm(out - (-2 * a @ b + 0.5 * c), axis=(1, 2)) <= result.error_bound).all()
    real = spamm(a[0], b, tau=0.0, beta=1.0, c=c[0].real, backend="cpu")
    np.testing.assert_allclose(real.c, a[0] @ b + c[0].real, rtol=0, atol=1e-11)
    square = decay(rng, 90, 90)
    wanted = square @ square
    np.testing.assert_allclose(spamm(square, square, tau=0.0, out=square, backend="cpu").c, wanted, rtol=0, atol=1e-11)
    with pytest.raises(TypeError, match="c is complex and the product is float64"):
        spamm(b.real, b.real.T, tau=0.0, beta=1.0, c=b @ b.T, backend="cpu")


def test_bad_complex_operands_are_named() -> None:
    a = np.eye(40, dtype="c16")
    a[35, 3] = complex(0, np.nan)
    with pytest.raises(ValueError, match=r"tile \(1, 0\) of b holds NaN"):
        spamm(np.eye(40, dtype="c16"), a, tau=0.1, backend="cpu")
    with pytest.raises(TypeError, match="a is complex128 and b is float64"):
        spamm(np.eye(4, dtype="c16"), np.eye(4), tau=0.1, backend="cpu")
    with pytest.raises(TypeError, match="'float64' multiplies float64, and the operands are complex128"):
        spamm(np.eye(4, dtype="c16"), np.eye(4, dtype="c16"), tau=0.1, precision="float64", backend="cpu")
    with pytest.raises(ValueError, match=r"rtol_factors = 1e-20 is below what rounding"):
        spamm(np.eye(4, dtype="c16"), np.eye(4, dtype="c16"), rtol_factors=1e-20, backend="cpu")


def test_complex_products_of_the_host_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "choose_backend", lambda wanted, *_: "cuda" if wanted == "auto" else wanted)
    a = np.eye(4, dtype="c16")
    np.testing.assert_allclose(spamm(a, 1j * a, tau=0.0).c, 1j * a)


def bfloat16(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_bfloat16_is_multiplied_in_float32() -> None:
    rng = np.random.default_rng(4)
    a, b, c = bfloat16(rng, 2, 70, 50), bfloat16(rng, 50, 60), bfloat16(rng, 2, 70, 60)
    wide = [x.astype("f8") for x in (a, b, c)]
    for wanted in ({"tau": 0.0}, {"tau": 30.0}, {"rtol_factors": 0.2}, {"valid_ratio": 0.4}):
        result = spamm(a, b, **wanted, block=8, alpha=2.0, beta=-1.0, c=c, backend="cpu")
        assert result.c.dtype == np.float32
        error = np.linalg.norm(result.c - (2 * wide[0] @ wide[1] - wide[2]), axis=(1, 2))
        assert (error <= result.error_bound).all()
    np.testing.assert_allclose(norm_map(b, 8).norms, reference.norm_map(wide[1], 8), rtol=1e-12)
    assert spamm_threshold(a[0], b, rtol_factors=0.2, block=8, backend="cpu").valid_ratio < 1
    with pytest.raises(TypeError, match="a is bfloat16 and b is float32"):
        spamm(a, b.astype("f4"), tau=0.0, backend="cpu")
    with pytest.raises(TypeError, match="out is bfloat16, and the product is float32"):
        spamm(a, b, tau=0.0, out=c, backend="cpu")


def test_bfloat16_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(12.0).reshape(3, 4).bfloat16()
    result = spamm(a, a.mT, tau=0.0, backend="cpu")
    assert result.c.dtype == torch.float32 and torch.allclose(result.c, a.float() @ a.float().mT)
    with pytest.raises(TypeError, match="requires a gradient"):
        spamm(a.requires_grad_(), a, tau=0.0, backend="cpu")


def test_bfloat16_on_a_device_is_widened_by_its_own_library() -> None:
    class Tensor:
        """A tensor on a device, of a library with conversions by `float`."""

        def __init__(self, dtype: str) -> None:
            self.dtype, self.shape = f"torch.{dtype}", (4, 4)

        def float(self) -> Tensor:
            return Tensor("float32")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    narrow = Tensor("bfloat16")
    found = checks.operands(narrow, narrow, narrow, None)
    assert found.on_gpu and {x.dtype for x in (found.a, found.b, found.c)} == {"torch.float32"}
    assert found.precision(None, "cuda") == "fp32"
    lists = checks.spread_operands([narrow] * 2, [narrow] * 2, None, None, "rows", "auto")
    assert {x.dtype for x in (*lists.a, *lists.b)} == {"torch.float32"}
