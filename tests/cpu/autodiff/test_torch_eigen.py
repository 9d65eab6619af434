"""Eigendecompositions of tensors: derivatives judged by PyTorch's checks and by differences."""

import warnings

import numpy as np
import pytest

import spectile
from tests.spectra import CLOSED, SPECTRA, cost, random_spectrum, random_terms, with_spectrum

torch = pytest.importorskip("torch")

import spectile.torch as ours  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::spectile.autodiff.spectra.GaugeWarning")
KINDS = pytest.mark.parametrize("complex_valued", [False, True])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def leaf(values, complex_valued=False, seed=0):
    return torch.tensor(with_spectrum(values, complex_valued, seed), requires_grad=True)


def closed(a):
    """Return functions of the projector and the values of a closed cluster."""
    w, v = ours.eigh(a)
    part = v[..., :, :CLOSED]
    b = torch.arange(25.0, dtype=torch.float64).reshape(5, 5).sin()
    inside = (part * ((b + b.mT).to(v.dtype) @ part).conj()).sum((-2, -1)).real
    return inside.sin() + w[..., :CLOSED].sum(-1) ** 2


def gradient(values):
    a = torch.tensor(values, requires_grad=True)
    return torch.autograd.grad(closed(a), a)[0].numpy()


@KINDS
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_first_and_second_order(spectrum, complex_valued):
    a = leaf(SPECTRA[spectrum], complex_valued)
    assert torch.autograd.gradcheck(closed, a, atol=1e-6, rtol=1e-6, check_forward_ad=True)
    # A step that opens a cluster divides the rounding of first derivatives by its square: PyTorch's differences of
    # second order are good to some 1e-6 at their best step.
    assert torch.autograd.gradgradcheck(closed, a, eps=1e-4, atol=1e-5, rtol=1e-5, check_fwd_over_rev=True)


@KINDS
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_second_order_against_differences_of_fourth_order(spectrum, complex_valued):
    a, step = leaf(SPECTRA[spectrum], complex_valued), 1e-3
    for seed in range(3):
        direction = torch.tensor(with_spectrum(SPECTRA["random"], complex_valued, seed + 1))
        first = torch.autograd.grad(closed(a), a, create_graph=True)[0]
        found = torch.autograd.grad((first.conj() * direction).sum().real, a)[0].numpy()
        at = {k: gradient((a + k * step * direction).detach().numpy()) for k in (-2, -1, 1, 2)}
        wanted = (8 * (at[1] - at[-1]) - at[2] + at[-2]) / (12 * step)
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(25))
@KINDS
def test_random_invariant_costs_against_differences(seed, complex_valued):
    rng, n = np.random.default_rng(seed), 6
    values, clusters = random_spectrum(rng, n)
    terms = random_terms(rng, n, clusters)
    a, direction = leaf(values, complex_valued, seed), torch.tensor(with_spectrum(values, complex_valued, seed + 1))

    def at(step):
        w, v = np.linalg.eigh((a + step * direction).detach().numpy())
        return float(cost(np, w, v, clusters, terms))

    tensors = [(*numbers, torch.tensor(matrix, dtype=a.dtype)) for *numbers, matrix in terms]
    gradient = torch.autograd.grad(cost(torch, *ours.eigh(a), clusters, tensors), a)[0]
    step = 1e-3
    wanted = (8 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12 * step)
    found = float((gradient.conj() * direction).sum().real)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@KINDS
@pytest.mark.parametrize("spectrum", [name for name in SPECTRA if name != "random"])
@pytest.mark.parametrize(
    "refused",
    [
        lambda w, v: v[0, 0].abs(),
        lambda w, v: w[0],
        lambda w, v: (v[:, :2] @ v[:, :2].mH)[0, 1].abs(),
        lambda w, v: ((v * w) @ v.mH)[0, 1].abs(),
    ],
    ids=["a component", "a value", "a part of a cluster", "the matrix"],
)
def test_what_depends_on_the_basis_of_a_cluster_is_refused(spectrum, complex_valued, refused):
    a = leaf(SPECTRA[spectrum], complex_valued)
    with pytest.raises(ours.GaugeError, match="gap of"):
        torch.autograd.grad(refused(*ours.eigh(a)), a)


@pytest.mark.parametrize(("dtype", "resolution"), [(torch.float64, 2.0**-26), (torch.float32, 2.0**-15)])
def test_neighbours_are_told_apart_by_a_share_of_the_largest_eigenvalue(dtype, resolution):
    """Of either sign: a little above it a quotient by their gap is right to the half of the digits."""
    q = torch.linalg.qr(torch.tensor(with_spectrum(SPECTRA["random"], False))).Q
    for largest, sign in ((1.0, 1), (8.0, -1)):
        for share in (0.75, 1.3):
            w = largest * sign * torch.tensor([1.0, 1.0 - share * resolution, 0.5, 0.2, -0.3], dtype=torch.float64)
            a = ((q * w) @ q.mT).to(dtype).requires_grad_()
            value = (ours.eigh(a)[1][0] * torch.arange(5)).norm()  # which depends on single vectors
            if share < 1:
                with pytest.raises(ours.GaugeError, match="gap of"):
                    torch.autograd.grad(value, a)
            else:
                assert torch.isfinite(torch.autograd.grad(value, a)[0]).all()


def test_structure_of_the_matrix_hides_no_dependence():
    """LAPACK's eigenvectors of these are unit vectors, on which the costs seem not to depend."""
    for a in (torch.eye(3, dtype=torch.float64), torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))):
        a.requires_grad_()
        w, v = ours.eigh(a)
        for value in (v[0, 0], ((v * w) @ v.mT)[0, 1], w[1]):
            with pytest.raises(ours.GaugeError):
                torch.autograd.grad(value, a, retain_graph=True)
        assert torch.allclose(torch.autograd.grad(w[:2].sum() + w[2], a)[0], torch.eye(3, dtype=torch.float64))


def test_phase_of_complex_vectors_is_refused():
    a = leaf(SPECTRA["random"], True)
    with pytest.raises(ours.GaugeError, match="phase"):
        torch.autograd.grad(ours.eigh(a)[1][0, 0].real, a)


def test_second_derivative_of_single_values_is_refused_where_they_coincide():
    a = leaf(SPECTRA["coinciding"])
    first = torch.autograd.grad(ours.eigvalsh(a).exp().sum(), a, create_graph=True)[0]
    x = torch.tensor(with_spectrum([1.0, 2.0, 4.0, 5.0, 7.0], False, 3))
    with pytest.raises(ours.GaugeError):
        torch.autograd.grad((first * x).sum(), a)


def test_second_derivative_that_rounding_ruins_is_refused():
    """In a cluster of 1e-7, quotients of rounding errors are divided by the gap once more."""
    a = leaf([1.0, 1.0 + 1e-7, 1.0 + 2e-7, 2.0, 3.0])
    x, gradient = a.detach().sin(), torch.func.grad(closed)
    for derivative in (
        lambda: torch.func.grad(lambda a: (gradient(a) * x).sum())(a.detach()),
        lambda: torch.func.jvp(gradient, (a.detach(),), (x,)),
        lambda: torch.func.grad(lambda a: torch.func.jvp(closed, (a,), (x,))[1])(a.detach()),
    ):
        with pytest.raises(ours.GaugeError):
            derivative()
    # What depends on the vectors of such a cluster one by one has a second derivative, and a large one.
    single = torch.func.grad(lambda a: ours.eigh(a)[1][0, 0].abs())
    assert torch.func.jvp(single, (a.detach(),), (x,))[1].norm() > 1e10


SCALES = [(torch.float64, 1e-300), (torch.float64, 1e160), (torch.float32, 1e-30), (torch.float32, 1e25)]


@pytest.mark.parametrize("dtype, scale", SCALES)
@pytest.mark.parametrize("n", [5, 150])
def test_costs_whose_squares_are_out_of_range_are_judged(dtype, scale, n):
    a = torch.tensor(with_spectrum([1.0] * CLOSED + list(range(2, n - CLOSED + 2)), False), dtype=dtype)
    a = a.requires_grad_()
    w, v = ours.eigh(a)
    for value in (v[0, 0], w[0]):
        with pytest.raises(ours.GaugeError):
            torch.autograd.grad(value * scale, a, retain_graph=True)
    sums = (v[:, :CLOSED] @ v[:, :CLOSED].mT)[0, 1] + w[:CLOSED].sum()
    (wanted,) = torch.autograd.grad(sums, a, retain_graph=True)
    (found,) = torch.autograd.grad(sums * scale, a)
    assert torch.allclose(found / scale, wanted, rtol=1e-4, atol=1e-5)


@KINDS
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("clusters", [[(0, 1)], [(3, 5), (100, 163)], [(0, 150)]], ids=["none", "short", "long"])
def test_few_passes_give_what_arrays_give(clusters, lower, complex_valued):
    """Orders above one block of the last product; clusters shorter and longer than are looked at pair by pair."""
    n, rng = 200, np.random.default_rng(4)
    values = np.arange(n) / 20
    for low, high in clusters:
        values[low:high] = values[low]
    a = leaf(values, complex_valued)
    w, v = ours.eigh(a, lower=lower)
    number = np.searchsorted(np.unique(values), values)
    weights = torch.tensor(rng.standard_normal((n, n)), dtype=a.dtype)
    # Those of costs that do not depend on the basis of a cluster: vectors of one get one weight.
    w_bar = torch.tensor(np.sin(number))
    v_bar = (weights @ weights.mH) @ v.detach() * w_bar
    for cotangents in ((w_bar, v_bar), (None, v_bar), (w_bar, None)):
        pairs = [(x, bar) for x, bar in zip((w, v), cotangents, strict=True) if bar is not None]
        outputs, given = zip(*pairs, strict=True)
        (found,) = torch.autograd.grad(outputs, a, given, retain_graph=True)
        (wanted,) = torch.autograd.grad(outputs, a, given, retain_graph=True, create_graph=True)
        assert (found - wanted).norm() <= 1e-12 * wanted.norm()
    told = w_bar.clone()
    if clusters != [(0, 1)]:
        told[clusters[-1][1] - 1] += 1
        with pytest.raises(ours.GaugeError):
            torch.autograd.grad(w, a, told)


@KINDS
@pytest.mark.parametrize("part", [(True, False), (False, True), (True, True)], ids=["values", "vectors", "both"])
def test_a_backward_pass_is_a_few_operations(part, complex_valued):
    """Of small matrices each costs more than the products; one that is judged by arrays takes more than a hundred."""
    from torch.profiler import ProfilerActivity, profile

    a = leaf(SPECTRA["random"], complex_valued)
    outputs = [x for x, wanted in zip(ours.eigh(a), part, strict=True) if wanted]
    bars = [torch.abs(x.detach()).to(x.dtype) * x.detach() for x in outputs]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        torch.autograd.grad(outputs, a, bars)
    names = [(one.name, one.cpu_parent) for one in profiled.events() if one.name.startswith("aten::")]
    assert 5 < sum(parent is None or not parent.name.startswith("aten::") for _, parent in names) < 70


@KINDS
@pytest.mark.parametrize("spectrum", ["random", "coinciding"])
@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_cotangents_that_are_not_finite_give_no_warning_and_no_number(wrong, spectrum, complex_valued):
    a = leaf(SPECTRA[spectrum], complex_valued)
    w, v = ours.eigh(a)
    bars = [torch.ones_like(x) for x in (w, v)]
    for bar in bars:
        bar[..., 0] = wrong
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for outputs, given in ((w, bars[0]), (v, bars[1]), ((w, v), bars)):
            try:
                (gradient,) = torch.autograd.grad(outputs, a, given, retain_graph=True)
            except ours.GaugeError:
                continue
            assert not gradient.isfinite().all()


def test_forward_mode_warns_where_a_cluster_is_split():
    a, direction = (leaf(SPECTRA["coinciding"], seed=s).detach() for s in (0, 1))
    with pytest.warns(ours.GaugeWarning):
        torch.func.jvp(ours.eigvalsh, (a,), (direction,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.func.jvp(ours.eigvalsh, (a,), (a @ a,))


def test_forward_mode_in_forward_mode_is_refused():
    a = leaf(SPECTRA["random"]).detach()
    with pytest.raises(NotImplementedError, match="hessian"):
        torch.func.jacfwd(torch.func.jacfwd(closed))(a)


def test_transformations():
    a, b = (leaf(SPECTRA["random"], seed=s).detach() for s in (0, 1))
    gradient = torch.func.grad(closed)
    each = torch.stack([gradient(a), gradient(b)])
    assert torch.allclose(torch.func.vmap(gradient)(torch.stack([a, b])), each, rtol=1e-12, atol=1e-13)
    assert torch.allclose(torch.func.vmap(gradient, in_dims=2)(torch.stack([a, b], 2)), each, rtol=1e-12, atol=1e-13)
    hessian = torch.func.hessian(closed)(a)
    both = torch.func.vmap(torch.func.hessian(closed), chunk_size=2)(torch.stack([b, b, a]))
    assert torch.allclose(both[2], hessian, rtol=1e-10, atol=1e-11)
    for other in (torch.func.jacrev(torch.func.jacrev(closed)), torch.func.jacrev(torch.func.jacfwd(closed))):
        assert torch.allclose(other(a), hessian, rtol=1e-10, atol=1e-11)
    assert torch.allclose(torch.autograd.functional.jacobian(closed, a, vectorize=True), gradient(a), atol=1e-12)


def test_batches():
    a = torch.stack([leaf(SPECTRA[name]).detach() for name in SPECTRA]).reshape(2, 2, 5, 5).requires_grad_()
    found = torch.autograd.grad(closed(a).sum(), a)[0]
    for index in np.ndindex(2, 2):
        assert torch.allclose(found[index], torch.func.grad(closed)(a[index].detach()), atol=1e-12)


def test_compiled():
    a = leaf(SPECTRA["coinciding"])
    wanted = torch.autograd.grad(closed(a), a)[0]
    for function in (closed, lambda a: torch.func.vmap(closed)(a[None])[0]):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert torch.allclose(torch.autograd.grad(compiled(a), a)[0], wanted, atol=1e-13)
    with pytest.raises(ours.GaugeError):
        torch.compile(lambda a: ours.eigvalsh(a)[0], backend="aot_eager", fullgraph=True)(a).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (0, 0)])
def test_operations_are_what_a_compiler_is_told(shape, dtype):
    """Shapes, types and strides, on which PyTorch's default compiler relies."""
    a = torch.ones(shape, dtype=dtype) + torch.arange(shape[-1])
    w, v = ours.eigh(a)
    utilities = ("test_schema", "test_faketensor")
    for operation, operands in (
        ("decompose", (a, True, "auto")),
        ("divide", (v.contiguous(), w)),
        ("require_gauge", (w, None, torch.zeros_like(v), None)),
        ("require_resolved", (w, torch.zeros_like(v), torch.zeros_like(v))),
        ("require_definite", (torch.zeros(shape[:-2], dtype=torch.int32),)),
        ("require_finite", (w, w)),
        ("in_domain", (w, "exp", True)),
        ("near_sparse", (a, a.mT, "tau", 0.0, 0.0, 32, "auto", True)),
    ):
        if 0 not in shape or operation != "near_sparse":
            torch.library.opcheck(getattr(torch.ops.spectile, operation), operands, test_utils=utilities)


@KINDS
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_generalized(kind, complex_valued):
    a = leaf(SPECTRA["random"], complex_valued)
    b = leaf([1.0, 1.5, 2.0, 2.5, 4.0], complex_valued, 1)
    w, v = ours.eigh(a, b, type=kind)
    w0, v0 = spectile.eigh(a.detach().numpy(), b.detach().numpy(), type=kind, backend="cpu")
    assert np.allclose(w.detach(), w0) and np.allclose(abs(v.detach()), abs(v0))

    def values(a, b):
        w, v = ours.eigh(a, b, type=kind)
        return w, v.abs()

    assert torch.autograd.gradcheck(values, (a, b), atol=1e-6, rtol=1e-6, fast_mode=True)
    assert torch.autograd.gradgradcheck(values, (a, b), eps=1e-5, atol=1e-5, rtol=1e-5, fast_mode=True)


def test_generalized_of_two_types_and_not_definite():
    a, b = leaf(SPECTRA["random"]), leaf([1.0, 1.5, 2.0, 2.5, 4.0], True, 1)
    for pair in ((a, b), (b, a + 5 * torch.eye(5)), (a.float(), b)):
        assert torch.autograd.grad(ours.eigvalsh(*pair).sum(), a)[0].isfinite().all()
    for grad in (True, False):
        with pytest.raises(np.linalg.LinAlgError, match="leading minor of order 1 of B"):
            ours.eigh(a.detach().requires_grad_(grad), -b.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_solved_in_single(dtype):
    a = torch.eye(3, dtype=dtype, requires_grad=True)
    assert ours.eigh(a.detach())[1].dtype == ours.eigh(a)[1].dtype == ours.expm(a).dtype == torch.float32
    (gradient,) = torch.autograd.grad(ours.eigvalsh(a).sum(), a)
    assert gradient.dtype == dtype and torch.allclose(gradient, torch.eye(3, dtype=dtype), atol=1e-2)


def test_parts_of_a_batch_are_those_without_derivatives():
    a = torch.stack([leaf([0.0, 1.0, 2.0, 4.0, 5.0]), leaf([1.0, 3.0, 3.5, 6.0, 7.0], seed=1)]).detach()
    for part in ({"subset_by_value": (0.5, 3.2)}, {"subset_by_value": (2.0, 3.0)}, {"subset_by_index": (1.0, 2.0)}):
        plain = outcome(lambda part=part: ours.eigh(a, **part))
        assert outcome(lambda part=part: ours.eigh(a.clone().requires_grad_(), **part)) == plain
    with pytest.raises(ValueError, match="use subset_by_index"):
        torch.func.vmap(lambda a: ours.eigvalsh(a, subset_by_value=(0.5, 3.2)))(a)


def outcome(solve):
    """Return what a call gives, rounded, or raises."""
    try:
        w, v = solve()
    except ValueError as error:
        return str(error)
    return w.detach().numpy().round(9).tolist(), v.detach().abs().numpy().round(9).tolist()


def test_parts():
    a = leaf(SPECTRA["random"])
    for part in ({"subset_by_index": (1, 2)}, {"subset_by_value": (0.5, 2.5)}):
        w, v = ours.eigh(a, **part)
        assert torch.allclose(w, ours.eigvalsh(a)[1:3]) and torch.allclose(a @ v, v * w)
        assert torch.allclose(ours.eigh(a.detach(), **part)[0], w.detach())
        assert torch.autograd.gradcheck(lambda a, part=part: ours.eigh(a, **part)[1].abs(), a, atol=1e-6, rtol=1e-6)
    with pytest.raises(ours.GaugeError):
        cut = leaf(SPECTRA["coinciding"])
        torch.autograd.grad(ours.eigvalsh(cut, subset_by_index=(0, 1)).sum(), cut)


def test_the_gradient_is_of_what_is_read():
    a = torch.tensor([[1.0, 7.0], [0.5, 3.0]], dtype=torch.float64, requires_grad=True)
    for lower, place in ((True, (0, 1)), (False, (1, 0))):
        assert torch.autograd.gradcheck(lambda a, lower=lower: ours.eigvalsh(a, lower=lower), a)
        assert torch.autograd.grad(ours.eigvalsh(a, lower=lower)[0], a)[0][place] == 0


def test_single_precision_and_a_spectrum_without_clusters():
    a = torch.tensor(with_spectrum(np.linspace(-1, 1, 200), False), dtype=torch.float32, requires_grad=True)
    exact = a.detach().double().requires_grad_()
    found, wanted = (torch.autograd.grad(ours.eigh(x)[1][:, 0].abs().sum(), x)[0] for x in (a, exact))
    assert found.dtype == torch.float32 and (found - wanted).norm() < 1e-3 * wanted.norm()


def test_wrong_input_gets_one_sentence():
    with pytest.raises(TypeError, match="a is no dense tensor"):
        ours.eigh(np.eye(2))
    with pytest.raises(ValueError, match="square"):
        ours.eigh(torch.ones(2, 3, requires_grad=True))
    with pytest.raises(ValueError, match="indices"):
        ours.eigh(torch.eye(2, requires_grad=True), subset_by_index=(0, 2))
