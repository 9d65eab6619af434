"""Derivatives of CUDA tensors are those of the host, on PyTorch's stream."""

import numpy as np
import pytest

from tests.spectra import CLOSED, SPECTRA, with_spectrum

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this PyTorch has no CUDA", allow_module_level=True)

import spectile.torch as ours  # noqa: E402


def cost(a):
    w, v = ours.eigh(a)
    part = v[..., :, :CLOSED]
    b = torch.linspace(-1, 1, a.shape[-1], dtype=torch.float64, device=a.device)
    return ((part * part.conj()).real.sum(-1) * b).sum().sin() + w[..., :CLOSED].sum() ** 2


@pytest.mark.parametrize("complex_valued", [False, True])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_derivatives_are_those_of_the_host(spectrum, complex_valued):
    host = torch.tensor(with_spectrum(SPECTRA[spectrum], complex_valued))
    for function in (torch.func.grad(cost), torch.func.grad(lambda a: torch.func.grad(cost)(a).abs().sum()), ours.expm):
        found = function(host.cuda())
        assert found.is_cuda and torch.allclose(found.cpu(), function(host), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n", [64, 300, 2048])
def test_large_matrices(n):
    a = torch.tensor(with_spectrum(np.linspace(-1, 1, n), False), device="cuda", requires_grad=True)
    w, v = ours.eigh(a)
    c = torch.randn(n, n, dtype=a.dtype, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    found = torch.autograd.grad((v * v * c).sum() + (w**2).sum(), a)[0]
    w0, v0 = torch.linalg.eigh(a)
    wanted = torch.autograd.grad((v0 * v0 * c).sum() + (w0**2).sum(), a)[0]
    wanted = (wanted + wanted.mT) / 2
    wanted = 2 * wanted.tril() - wanted.diagonal().diag()  # the gradient is of the triangle that is read
    assert (found - wanted).norm() < 1e-8 * wanted.norm()


@pytest.mark.parametrize("shape", [(70,), (3, 41), (2, 2, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_one_pass_between_the_products_is_what_arrays_give(dtype, shape, monkeypatch):
    generator = torch.Generator("cuda").manual_seed(1)
    a = torch.randn(*shape, shape[-1], dtype=dtype, device="cuda", generator=generator)
    a = (a + a.mH).requires_grad_()
    weight = torch.randn(a.shape, dtype=dtype.to_real(), device="cuda", generator=generator)
    w, v = ours.eigh(a)
    for costs in (((v.abs() ** 2 * weight).sum() + (w * weight[..., 0]).sum()), (v.abs() ** 2 * weight).sum()):
        (one,) = torch.autograd.grad(costs, a, retain_graph=True)
        with monkeypatch.context() as patch:
            patch.setattr("spectile.torch.eigen._once", lambda *_: False)
            (other,) = torch.autograd.grad(costs, a, retain_graph=True)
        assert (one - other).norm() <= 100 * torch.finfo(dtype).eps * other.norm()


def test_a_stream_of_ones_own():
    a = torch.tensor(with_spectrum(SPECTRA["random"], False), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        zeros = torch.zeros(4096, 4096, device="cuda", dtype=a.dtype)
        late = a + (zeros @ zeros)[0, 0]
        found = torch.func.grad(cost)(late)
    stream.synchronize()
    assert torch.allclose(found.cpu(), torch.func.grad(cost)(a.cpu()), atol=1e-9)


def test_refusals():
    a = torch.eye(4, dtype=torch.float64, device="cuda", requires_grad=True)
    for scale in (1.0, 1e-300, 1e160):
        with pytest.raises(ours.GaugeError):
            (ours.eigh(a)[1][0, 0] * scale).backward()
    with pytest.raises(ValueError, match="backend"):
        ours.eigh(a.detach(), backend="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_sparse_products_are_those_of_the_host(dtype):
    i = torch.arange(300.0, dtype=torch.float64)
    a = torch.exp(-abs(i[:, None] - i) / 10).to(dtype)
    wanted = {"rtol_factors": 1e-2} if dtype == torch.float32 else {"rtol_factors": 1e-6}
    for where in ("cpu", "cuda"):
        x = a.to(where).requires_grad_()
        product = ours.spamm(x, x[:, :200], **wanted)
        assert product.c.device == product.error_bound.device == x.device
        assert (product.c - x @ x[:, :200]).double().norm() <= product.error_bound
        (gradient,) = torch.autograd.grad((product.c**2).sum(), x)
        (dense,) = torch.autograd.grad(((x @ x[:, :200]) ** 2).sum(), x)
        assert (gradient - dense).norm() <= 100 * wanted["rtol_factors"] * dense.norm()


def test_complex_near_sparse_products():
    i = torch.arange(200.0, dtype=torch.float64, device="cuda")
    a = torch.exp(-abs(i[:, None] - i) / 5 + 0.3j * i[:, None]).requires_grad_()
    product = ours.spamm(a, a, tau=0.0)
    assert (product.c - a @ a).norm() <= product.error_bound
    (gradient,) = torch.autograd.grad((abs(product.c) ** 2).sum(), a)
    (dense,) = torch.autograd.grad((abs(a @ a) ** 2).sum(), a)
    assert (gradient - dense).norm() <= 1e-12 * dense.norm()
