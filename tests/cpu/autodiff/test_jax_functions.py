"""Functions of Hermitian arrays of JAX: values against SciPy's, derivatives by JAX's checks."""

import numpy as np
import pytest
import scipy.linalg

from tests.spectra import SPECTRA, with_spectrum

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import spectile.jax as ours  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")

SHIFTS = {"exp": 0.0, "log": 0.7, "sqrt": 0.7, "sign": 0.7, "abs": -1.3, "callable": 0.0}
KINDS = pytest.mark.parametrize("complex_valued", [False, True])


def matrix(spectrum, shift=0.0, complex_valued=False):
    return jnp.asarray(with_spectrum(np.add(SPECTRA[spectrum], shift), complex_valued))


def cubic(w):
    return jnp.sin(w) + w**3


def weighted(f):
    """Return a real cost of all entries of a function of the matrix."""

    def cost(a):
        found = ours.matrix_function(f, a)
        weights = jnp.sin(jnp.arange(found.size)).reshape(found.shape)
        return (found.real * weights).sum() + (found.imag * weights.T).sum() ** 2

    return cost


@pytest.mark.parametrize(
    ("name", "spectrum", "complex_valued"),
    [
        ("exp", "coinciding", True),
        ("log", "cluster", False),
        ("sqrt", "random", True),
        ("sign", "coinciding", False),
        ("abs", "cluster", True),
        ("callable", "rank deficient", False),
    ],
)
def test_first_and_second_order(name, spectrum, complex_valued):
    cost = jax.jit(weighted(cubic if name == "callable" else name))
    check_grads(
        cost, (matrix(spectrum, SHIFTS[name], complex_valued),), 2, modes=("fwd", "rev"), eps=1e-5, atol=1e-5, rtol=1e-5
    )


@KINDS
def test_values_are_scipys(complex_valued):
    a = matrix("cluster", 0.7, complex_valued)
    for found, wanted in (
        (ours.expm, scipy.linalg.expm),
        (ours.logm, scipy.linalg.logm),
        (ours.sqrtm, scipy.linalg.sqrtm),
    ):
        assert np.allclose(found(a), wanted(np.asarray(a)), rtol=1e-12, atol=1e-12)
    b = matrix("coinciding", -1.3, complex_valued)
    u, p = ours.polar(b)
    for found, wanted in zip((u, p), scipy.linalg.polar(np.asarray(b)), strict=True):
        assert np.allclose(found, wanted, atol=1e-12)
    assert np.allclose(ours.sign(b), u)


def test_trace_has_the_hessian_that_eigenvalues_lack():
    a, x = matrix("coinciding"), matrix("random")
    found = jax.jvp(jax.grad(lambda a: ours.expm(a).trace()), (a,), (x,))[1]
    wanted = scipy.linalg.expm_frechet(np.asarray(a), np.asarray(x), compute_expm=False)
    assert np.allclose(found, np.tril(wanted) + np.tril(wanted, -1), atol=1e-10)


def test_every_order_of_modes_gives_the_same_hessian():
    a, x, y = matrix("coinciding", 0.3), matrix("random"), matrix("cluster")
    cost = weighted("exp")
    forward_reverse = jax.jvp(jax.grad(cost), (a,), (x,))[1]
    reverse_reverse = jax.grad(lambda a: (jax.grad(cost)(a) * x).sum())(a)
    reverse_forward = jax.grad(lambda a: jax.jvp(cost, (a,), (x,))[1])(a)
    both_forward = jax.jvp(lambda a: jax.jvp(cost, (a,), (x,))[1], (a,), (y,))[1]
    assert np.allclose(forward_reverse, reverse_forward, atol=1e-9)
    assert np.allclose(forward_reverse, reverse_reverse, atol=1e-9)
    assert np.isclose((forward_reverse * y).sum(), both_forward, atol=1e-9)


def test_complex_functions_of_eigenvalues():
    a = matrix("coinciding")

    def propagator(a):
        return ours.matrix_function(lambda w: jnp.exp(-1j * w), a)

    assert np.allclose(propagator(a), scipy.linalg.expm(-1j * np.asarray(a)))
    check_grads(jax.jit(propagator), (a,), 1, modes=("fwd", "rev"), eps=1e-4, atol=1e-6, rtol=1e-6)


def test_transformations():
    a, b = matrix("coinciding"), matrix("random")
    gradient = jax.grad(weighted("exp"))
    wanted = jnp.stack([gradient(a), gradient(b)])
    assert np.allclose(jax.jit(jax.vmap(gradient))(jnp.stack([a, b])), wanted, atol=1e-12)


def test_what_is_not_defined_is_refused_or_not_a_number():
    singular = matrix("rank deficient")
    assert np.isfinite(ours.sqrtm(singular)).all()
    with pytest.raises(ValueError, match="derivative of sqrt needs eigenvalues that are positive"):
        jax.grad(lambda a: ours.sqrtm(a).sum())(singular)
    with pytest.raises(ValueError, match="log needs"):
        ours.logm(singular)
    assert np.isnan(jax.jit(ours.logm)(singular)).any()
    assert np.isnan(jax.jit(jax.grad(lambda a: ours.sqrtm(a).sum()))(singular)).any()
    with pytest.raises(ValueError, match="no function is called 'cube'"):
        ours.matrix_function("cube", singular)
    with pytest.raises(ValueError, match="not finite at the eigenvalue"):
        ours.expm(1000 * matrix("random"))
    with pytest.raises(ValueError, match="one value for each eigenvalue"):
        ours.matrix_function(jnp.sum, singular)
    third = jax.grad(lambda a: jax.grad(lambda a: jax.grad(weighted("exp"))(a).sum())(a).sum())
    with pytest.raises(NotImplementedError, match="third"):
        third(matrix("random"))
