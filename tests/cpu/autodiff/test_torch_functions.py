"""Functions of Hermitian tensors: values against SciPy's, derivatives by PyTorch's checks."""

import numpy as np
import pytest
import scipy.linalg

from spectile.autodiff import functions
from tests.spectra import SPECTRA, with_spectrum

torch = pytest.importorskip("torch")

import spectile.torch as ours  # noqa: E402

FUNCTIONS = {"exp": 0.0, "log": 0.7, "sqrt": 0.7, "sign": 0.7, "abs": -1.3, "callable": 0.0}
KINDS = pytest.mark.parametrize("complex_valued", [False, True])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def leaf(spectrum, shift=0.0, complex_valued=False):
    return torch.tensor(with_spectrum(np.add(SPECTRA[spectrum], shift), complex_valued), requires_grad=True)


@KINDS
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_order(name, spectrum, complex_valued):
    a = leaf(spectrum, FUNCTIONS[name], complex_valued)
    f = (lambda w: w.sin() + w**3) if name == "callable" else name
    tolerances = {"atol": 1e-6, "rtol": 1e-6, "fast_mode": True}
    assert torch.autograd.gradcheck(lambda a: ours.matrix_function(f, a), a, check_forward_ad=True, **tolerances)
    assert torch.autograd.gradgradcheck(
        lambda a: ours.matrix_function(f, a), a, eps=1e-5, check_fwd_over_rev=True, **tolerances
    )


@KINDS
def test_values_are_scipys(complex_valued):
    a = leaf("cluster", 0.7, complex_valued).detach()
    for ours_, theirs in (
        (ours.expm, scipy.linalg.expm),
        (ours.logm, scipy.linalg.logm),
        (ours.sqrtm, scipy.linalg.sqrtm),
    ):
        assert np.allclose(ours_(a), theirs(a.numpy()), rtol=1e-12, atol=1e-12)
    b = leaf("coinciding", -1.3, complex_valued).detach()
    u, p = ours.polar(b)
    for found, wanted in zip((u, p), scipy.linalg.polar(b.numpy()), strict=True):
        assert np.allclose(found, wanted, atol=1e-12)
    assert torch.allclose(ours.sign(b), u)


def test_trace_has_the_hessian_that_eigenvalues_lack():
    a, x = (leaf(name).detach() for name in ("coinciding", "random"))
    first = torch.func.grad(lambda a: ours.expm(a).trace())
    found = torch.func.jvp(first, (a,), (x,))[1]
    # The derivative of tr exp(A) is exp(A); what lies below the diagonal counts for both triangles.
    wanted = torch.tensor(scipy.linalg.expm_frechet(a.numpy(), x.numpy(), compute_expm=False))
    assert torch.allclose(found, wanted.tril() + wanted.tril(-1), atol=1e-10)


def test_divided_differences_are_accurate_at_any_gap():
    mp = pytest.importorskip("mpmath").mp
    w = np.array([0.5, 0.5, 0.5 + 1e-9, 0.5 + 1e-5, 0.5 + 1e-3, 0.7, 1.0, 3.0])
    with mp.workdps(60):
        exact = {"exp": (mp.exp, mp.exp), "log": (mp.log, lambda x: 1 / x)}
        for name, (f, df) in exact.items():
            first = functions.first_differences(np, functions.named(np, name), w)
            second = functions.second_differences(np, functions.named(np, name), w, first)
            for i, j in np.argwhere(w[:, None] != w):
                x, y = mp.mpf(w[i]), mp.mpf(w[j])
                quotient = (f(y) - f(x)) / (y - x)
                assert first[i, j] == pytest.approx(float(quotient), rel=1e-14)
                assert second[i, j] == pytest.approx(float((quotient - df(x)) / (y - x)), rel=1e-13)


def test_transformations_and_compiled():
    a, b = leaf("coinciding").detach(), leaf("random").detach()
    gradient = torch.func.grad(lambda a: (ours.expm(a) ** 2).sum())
    assert torch.allclose(torch.func.vmap(gradient)(torch.stack([a, b])), torch.stack([gradient(a), gradient(b)]))
    a.requires_grad_()
    found = torch.compile(lambda a: (ours.expm(a) ** 2).sum(), backend="aot_eager", fullgraph=True)(a)
    assert torch.allclose(torch.autograd.grad(found, a)[0], gradient(a.detach()))


def test_what_is_not_defined_is_refused():
    singular = leaf("rank deficient")
    assert torch.isfinite(ours.sqrtm(singular)).all()
    with pytest.raises(ValueError, match="derivative of sqrt needs eigenvalues that are positive"):
        ours.sqrtm(singular).sum().backward()
    with pytest.raises(ValueError, match="log needs"):
        ours.logm(singular)
    with pytest.raises(ValueError, match="sign needs"):
        ours.sign(singular)
    with pytest.raises(ValueError, match="no function is called 'cube'"):
        ours.matrix_function("cube", singular)
    a = leaf("random")
    second = torch.autograd.grad(
        torch.autograd.grad(ours.expm(a).sum(), a, create_graph=True)[0].sin().sum(), a, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="third"):
        second[0].sin().sum().backward()
