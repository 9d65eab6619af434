"""Near-sparse products of tensors: their derivatives, and the error of these."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import spectile.torch as ours  # noqa: E402


def decay(m, n, seed=0, dtype="float64", length=4.0):
    x = np.random.default_rng(seed).standard_normal((m, n, 2)).view("complex128")[..., 0]
    x *= np.exp(-abs(np.subtract.outer(np.arange(m), np.arange(n))) / length)
    return torch.tensor(x if dtype.startswith("complex") else x.real).to(getattr(torch, dtype))


def exact(a, b):
    return ours.spamm(a, b, tau=0.0, block=2, backend="cpu").c


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_without_a_threshold_derivatives_of_every_mode_are_exact(dtype):
    a, b = decay(3, 2, 1, dtype).requires_grad_(), decay(2, 3, 2, dtype).requires_grad_()
    assert torch.autograd.gradcheck(exact, (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(exact, (a, b))
    batch = torch.stack([a.detach(), 2 * a.detach()]).requires_grad_()
    assert torch.autograd.gradcheck(exact, (batch, b), check_batched_grad=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "wanted", [{"rtol_factors": 1e-2}, {"tau": 1.0, "backward_rtol_factors": 1e-2}, {"valid_ratio": 0.5}]
)
def test_gradients_have_the_error_that_is_asked(wanted, dtype):
    a, b = decay(96, 80, 1, dtype).requires_grad_(), decay(80, 64, 2, dtype).requires_grad_()
    product = ours.spamm(a, b, **wanted, block=8, backend="cpu")
    assert product.error_bound.dtype == torch.float64 and not product.error_bound.requires_grad
    wide = [x.detach().to(torch.complex128) for x in (a, b)]
    assert (product.c - wide[0] @ wide[1]).norm() <= product.error_bound
    bar = decay(96, 64, 3, dtype)
    product.c.backward(bar)
    bar = bar.to(torch.complex128)
    rtol = wanted.get("rtol_factors", wanted.get("backward_rtol_factors", 0.0))
    for found, dense, norms in (
        (a.grad, bar @ wide[1].mH, bar.norm() * wide[1].norm()),
        (b.grad, wide[0].mH @ bar, wide[0].norm() * bar.norm()),
    ):
        error = (found - dense).norm() / norms
        assert found.dtype == a.dtype
        assert error <= (rtol or 1e-6)


@pytest.mark.parametrize(
    "wanted", [{"tau": 0.5}, {"valid_ratio": 0.5}, {"atol": 1.0}, {"rtol_factors": 1e-3}, {"rtol_factors": 0.5}]
)
def test_products_of_the_backward_pass_skip_what_they_were_allowed_and_nothing_else(wanted):
    n, rng = 768, np.random.default_rng(4)
    i = np.arange(n)
    # Of so many tiles so few count that a product with a tolerance skips the others.
    a, b, bar = (torch.tensor(0.5 ** abs(i[:, None] - i) * (1 + rng.random((n, n)))) for _ in range(3))
    a.requires_grad_()
    ours.spamm(a, b, **wanted, block=32, backend="cpu").c.backward(bar)
    error = (a.grad - bar @ b.mT).norm() / (bar.norm() * b.norm())
    allowed = wanted.get("rtol_factors", 0.0)
    assert error <= max(allowed, 1e-14) and (error > 1e-5) == bool(allowed)


def test_transformations():
    a = decay(5, 4)

    def cost(x):
        return exact(x, x.mT).pow(3).sum()

    def dense(x):
        return (x @ x.mT).pow(3).sum()

    wanted = torch.func.hessian(dense)(a)
    for hessian in (torch.func.hessian(cost), torch.func.jacrev(torch.func.jacrev(cost))):
        assert torch.allclose(hessian(a), wanted, rtol=1e-10, atol=1e-10)
    several = torch.stack([a, 2 * a])
    gradients = torch.func.vmap(torch.func.grad(cost))(several)
    for found, one in zip(gradients, several, strict=True):
        assert torch.allclose(found, torch.func.grad(dense)(one), rtol=1e-10)
    bounds = torch.func.vmap(lambda x: ours.spamm(x, a.mT, tau=0.0).error_bound)(several)
    assert bounds.shape == (2,) and (bounds > 0).all()
    with pytest.raises(NotImplementedError, match="nests no forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(cost))(a)
    x = a.clone().requires_grad_()
    torch.compile(cost, backend="aot_eager", fullgraph=True)(x).backward()
    assert torch.allclose(x.grad, torch.func.grad(dense)(a), rtol=1e-10)


def test_a_cotangent_that_is_nan_propagates_where_nothing_is_skipped():
    a = torch.eye(4, dtype=torch.float64, requires_grad=True)
    (exact(a, a) * torch.tensor(float("nan"))).sum().backward()
    assert a.grad.isnan().all()


def test_refusals_name_the_thing():
    a = decay(6, 6).requires_grad_()
    for options, error, words in (
        ({}, ValueError, "exactly one of tau"),
        ({"tau": 1.0, "rtol_factors": 1.0}, ValueError, "tau and rtol_factors were given"),
        ({"tau": 1.0, "backward_rtol_factors": -1.0}, ValueError, "backward_rtol_factors = -1.0 is not a tolerance"),
        (
            {"tau": 1.0, "backward_rtol_factors": float("nan")},
            ValueError,
            "backward_rtol_factors = nan is not a tolerance",
        ),
        ({"tau": 1.0, "backward_rtol_factors": "a"}, TypeError, "backward_rtol_factors = 'a' is no real number"),
        ({"tau": 1.0, "block": 0}, ValueError, "block = 0"),
        ({"tau": 1.0, "backend": "tpu"}, ValueError, "backend = 'tpu' is unknown"),
        ({"tau": 1.0, "b": a[:5]}, ValueError, "do not multiply"),
        ({"tau": 1.0, "b": a.float()}, TypeError, "a is float64 and b is float32, and both must be of one type"),
        ({"tau": 1.0, "b": a * float("inf")}, ValueError, "holds NaN or infinity"),
    ):
        with pytest.raises(error, match=words):
            ours.spamm(a, **({"b": a} | options))
    with pytest.raises(TypeError, match="float16"):
        ours.spamm(a.half(), a.half(), tau=1.0)
    product = ours.spamm(a, a, tau=0.0, backward_rtol_factors=1e-20)
    with pytest.raises(ValueError, match="rtol_factors = 1e-20 is below what rounding"):
        product.c.sum().backward()


def test_what_is_no_dense_tensor_is_refused_by_name():
    a = torch.eye(4, dtype=torch.float64)
    calls = {
        "a": [
            *(lambda x, f=f: f(x) for f in (ours.eigh, ours.eigvalsh, ours.expm, ours.polar)),
            lambda x: ours.spamm(x, a, tau=0.0),
        ],
        "b": [lambda x: ours.eigh(a, x), lambda x: ours.spamm(a, x, tau=0.0)],
    }
    for wrong in (np.eye(4), [[1.0]], a.to_sparse()):
        for name, given in calls.items():
            for call in given:
                with pytest.raises(TypeError, match=f"^{name} is no dense tensor"):
                    call(wrong)
