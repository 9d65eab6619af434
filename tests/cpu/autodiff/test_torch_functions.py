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
            second, _ = functions.second_differences(np, functions.named(np, name), w, first)
            for i, j in np.argwhere(w[:, None] != w):
                x, y = mp.mpf(w[i]), mp.mpf(w[j])
                quotient = (f(y) - f(x)) / (y - x)
                assert first[i, j] == pytest.approx(float(quotient), rel=1e-14)
                assert second[i, j] == pytest.approx(float((quotient - df(x)) / (y - x)), rel=1e-13)


@pytest.mark.parametrize("name", ["log", "sqrt", "sin"])
def test_second_derivatives_of_spectra_of_any_scale(name):
    """The function's own scale counts, not the largest eigenvalue: small values beside large ones, close large ones."""
    mp = pytest.importorskip("mpmath").mp
    values = [1e5, 1e5, 2e5, 3e5, 3e5] if name == "sin" else [1e-6, 1e-3, 1.0, 1.0, 10.0]
    spectra = [values, *[np.arange(1.0, 6.0)] * 3]
    a, x, y, c = (with_spectrum(spectrum, False, seed) for seed, spectrum in enumerate(spectra))
    f = torch.sin if name == "sin" else name
    gradient = torch.func.grad(lambda a: (ours.matrix_function(f, a) * torch.tensor(c)).sum())
    found = (torch.func.jvp(gradient, (torch.tensor(a),), (torch.tensor(y),))[1] * torch.tensor(x)).sum()
    with mp.workdps(60):
        a, x, y, c = (mp.matrix(matrix.tolist()) for matrix in (a, x, y, c))

        def at(s, t):
            w, v = mp.eigsy(a + s * x + t * y)
            function = v * mp.diag([getattr(mp, name)(value) for value in w]) * v.T
            return sum(c[i, j] * function[i, j] for i in range(5) for j in range(5))

        step = mp.mpf(10) ** -20
        wanted = (at(step, step) - at(step, -step) - at(-step, step) + at(-step, -step)) / (4 * step**2)
    # Rounding of the matrix moves the least eigenvalue by 1e-9 of it.
    assert float(found) == pytest.approx(float(wanted), rel=1e-7)


def test_complex_functions_of_eigenvalues():
    a = leaf("coinciding")

    def propagator(a):
        return ours.matrix_function(lambda w: torch.exp(-1j * w), a)

    assert np.allclose(propagator(a).detach(), scipy.linalg.expm(-1j * a.detach().numpy()))
    assert torch.autograd.gradcheck(propagator, a, atol=1e-6, rtol=1e-6, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(propagator, a, eps=1e-4, atol=1e-6, rtol=1e-6, fast_mode=True)


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
    with pytest.raises(ValueError, match="not finite at the eigenvalue"):
        ours.expm(1000 * leaf("random"))
    with pytest.raises(ValueError, match="derivative of f is not finite"):
        ours.matrix_function(lambda w: w.abs().sqrt(), torch.zeros(2, 2, requires_grad=True)).sum().backward()
    for f, error, sentence in (
        (lambda w: w.sum(), ValueError, "one value for each eigenvalue"),
        (lambda w: None, TypeError, "f gives None"),
        (3, TypeError, "f = 3 is no function"),
    ):
        with pytest.raises(error, match=sentence):
            ours.matrix_function(f, singular)
    a = leaf("random")
    second = torch.autograd.grad(
        torch.autograd.grad(ours.expm(a).sum(), a, create_graph=True)[0].sin().sum(), a, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="third"):
        second[0].sin().sum().backward()
