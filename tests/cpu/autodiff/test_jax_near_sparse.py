"""Near-sparse products of JAX's arrays: their derivatives, and the error of these."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import spectile.jax as ours  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")


def decay(m, n, seed=0, dtype="float64", length=4.0):
    x = np.random.default_rng(seed).standard_normal((m, n, 2)).view("complex128")[..., 0]
    x *= np.exp(-abs(np.subtract.outer(np.arange(m), np.arange(n))) / length)
    return jnp.asarray(x if dtype.startswith("complex") else x.real, dtype)


def exact(a, b):
    return ours.spamm(a, b, tau=0.0, block=2, backend="cpu").c


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_without_a_threshold_derivatives_of_every_mode_are_exact(dtype):
    a, b = decay(3, 2, 1, dtype), decay(2, 2, 2, dtype)
    check_grads(exact, (a, b), order=2, modes=("fwd", "rev"))
    check_grads(exact, (jnp.stack([a, 2 * a]), b), order=1, modes=("fwd", "rev"))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    "wanted", [{"rtol_factors": 1e-2}, {"tau": 1.0, "backward_rtol_factors": 1e-2}, {"valid_ratio": 0.5}]
)
def test_gradients_have_the_error_that_is_asked(wanted, dtype):
    a, b, bar = decay(96, 80, 1, dtype), decay(80, 64, 2, dtype), decay(96, 64, 3, dtype)
    product = ours.spamm(a, b, **wanted, block=8, backend="cpu")
    wide = [np.asarray(x, "complex128") for x in (a, b, bar)]
    assert np.linalg.norm(np.asarray(product.c) - wide[0] @ wide[1]) <= product.error_bound
    _, pull = jax.vjp(lambda a, b: ours.spamm(a, b, **wanted, block=8, backend="cpu").c, a, b)
    rtol = wanted.get("rtol_factors", wanted.get("backward_rtol_factors", 0.0))
    for found, (x, y) in zip(pull(bar), ((wide[2], wide[1].T), (wide[0].T, wide[2])), strict=True):
        error = np.linalg.norm(np.asarray(found) - x @ y) / np.linalg.norm(x) / np.linalg.norm(y)
        assert found.dtype == a.dtype
        assert error <= (rtol or 1e-6)


def test_transformations():
    a = decay(5, 4)

    def cost(x):
        return (exact(x, x.mT) ** 3).sum()

    def dense(x):
        return ((x @ x.mT) ** 3).sum()

    np.testing.assert_allclose(jax.hessian(cost)(a), jax.hessian(dense)(a), rtol=1e-10, atol=1e-10)
    several = jnp.stack([a, 2 * a])
    found = jax.jit(jax.vmap(jax.grad(cost)))(several)
    np.testing.assert_allclose(found, jax.vmap(jax.grad(dense))(several), rtol=1e-10, atol=1e-12)
    product = jax.jit(jax.vmap(lambda x: ours.spamm(x, a.T, rtol_factors=1e-3)))(several)
    assert product.c.shape == (2, 5, 5) and product.error_bound.shape == (2,)
    bound = jax.grad(lambda x: ours.spamm(x, a.T, rtol_factors=1e-3).error_bound)(a)
    assert not bound.any()  # a constant


def test_bounds_in_single_precision_are_rounded_up():
    a = decay(40, 40, 5)
    with jax.enable_x64(False):
        bound = ours.spamm(jnp.asarray(a, "float32"), jnp.asarray(a, "float32"), tau=1.0, block=8).error_bound
    assert bound.dtype == np.float32
    import spectile

    wide = spectile.spamm(np.asarray(a, "f4"), np.asarray(a, "f4"), tau=1.0, block=8, backend="cpu").error_bound
    assert wide <= float(bound) <= wide * (1 + 1e-6)


def test_refusals_name_the_thing():
    a = decay(6, 6)
    for options, error, words in (
        ({}, ValueError, "exactly one of tau"),
        ({"tau": 1.0, "backward_rtol_factors": -1.0}, ValueError, "backward_rtol_factors = -1.0 is not a tolerance"),
        ({"tau": 1.0, "b": a[:5]}, ValueError, "do not multiply"),
        ({"tau": 1.0, "b": a.astype("float32")}, TypeError, "a is float64 and b is float32"),
        ({"tau": 1.0, "b": a * jnp.inf}, Exception, "holds NaN or infinity"),
    ):
        with pytest.raises(error, match=words):
            jax.block_until_ready(ours.spamm(a, **({"b": a} | options)))
