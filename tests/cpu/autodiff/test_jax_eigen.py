"""Eigendecompositions of JAX's arrays: derivatives judged by JAX's checks and by differences."""

import numpy as np
import pytest

import spectile
from tests.spectra import CLOSED, SPECTRA, cost, random_terms, with_spectrum

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import spectile.jax as ours  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore::spectile.autodiff.spectra.GaugeWarning"),
]
KINDS = pytest.mark.parametrize("complex_valued", [False, True])


def matrix(name, complex_valued=False, seed=0):
    return jnp.asarray(with_spectrum(SPECTRA[name], complex_valued, seed))


def closed(a):
    """Return a function of the projector and the values of a closed cluster."""
    w, v = ours.eigh(a)
    part = v[:, :CLOSED]
    b = jnp.sin(jnp.arange(25.0).reshape(5, 5))
    return jnp.sin((part * ((b + b.T) @ part).conj()).sum().real) + w[:CLOSED].sum() ** 2


@pytest.mark.parametrize(
    "spectrum, complex_valued", [("random", False), ("coinciding", True), ("cluster", False), ("rank deficient", False)]
)
def test_first_and_second_order(spectrum, complex_valued):
    check_grads(
        jax.jit(closed), (matrix(spectrum, complex_valued),), 2, modes=("fwd", "rev"), eps=1e-4, atol=1e-6, rtol=1e-5
    )


@KINDS
def test_random_invariant_costs_against_differences(complex_valued):
    """The cost is compiled once, for random matrices and numbers in it."""
    clusters, n = ((0, 2), (2, 3), (3, 6)), 6
    gradient = jax.jit(jax.grad(lambda a, terms: cost(jnp, *ours.eigh(a), clusters, terms)))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = np.repeat(np.cumsum(rng.uniform(0.5, 1.5, 3)) - 2, (2, 1, 3))
        terms = random_terms(rng, n, clusters)
        a, direction = (with_spectrum(values, complex_valued, s) for s in (seed, seed + 1))

        def at(step, a=a, direction=direction, terms=terms):
            return float(cost(np, *np.linalg.eigh(a + step * direction), clusters, terms))

        step = 1e-3
        wanted = (8 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12 * step)
        found = float((gradient(jnp.asarray(a), terms) * direction).sum().real)
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


COSTS = {
    "a component": lambda a: abs(ours.eigh(a)[1][0, 0]),
    "a value": lambda a: ours.eigvalsh(a)[0],
    "a part of a cluster": lambda a: ours.eigvalsh(a, subset_by_index=(0, 1)).sum(),
}


@pytest.mark.parametrize("name", COSTS)
def test_what_depends_on_the_basis_of_a_cluster_is_refused_or_nan(name):
    a, apart = matrix("coinciding"), matrix("random")
    with pytest.raises(ours.GaugeError, match="gap of"):
        jax.grad(COSTS[name])(a)
    both = jax.jit(jax.vmap(jax.grad(COSTS[name])))(jnp.stack([a, apart]))
    assert jnp.isnan(both[0]).any() and jnp.allclose(both[1], jax.grad(COSTS[name])(apart))


def test_phase_of_complex_vectors_is_refused():
    with pytest.raises(ours.GaugeError, match="phase"):
        jax.grad(lambda a: ours.eigh(a)[1][0, 0].real)(matrix("random", True))


def test_second_derivative_of_single_values_is_nan_where_they_coincide():
    first = jax.grad(lambda a: jnp.exp(ours.eigvalsh(a)).sum())
    second = jax.jit(jax.grad(lambda a: jnp.sin(first(a)).sum()))
    assert jnp.isnan(second(matrix("coinciding"))).any() and jnp.isfinite(second(matrix("random"))).all()


def test_costs_whose_squares_are_out_of_range_are_judged():
    a = matrix("coinciding")
    for scale in (1e-300, 1e160):
        with pytest.raises(ours.GaugeError):
            jax.grad(lambda a, scale=scale: ours.eigh(a)[1][0, 0] * scale)(a)


def test_second_derivative_that_rounding_ruins_is_refused_or_nan():
    a, x = jnp.asarray(with_spectrum([1.0, 1.0 + 1e-7, 1.0 + 2e-7, 2.0, 3.0], False)), matrix("random", seed=1)
    gradient = jax.grad(closed)
    with pytest.raises(ours.GaugeError):
        jax.grad(lambda a: jax.jvp(closed, (a,), (x,))[1])(a)
    assert jnp.isnan(jax.jit(lambda a: jax.jvp(gradient, (a,), (x,))[1])(a)).any()


def test_forward_mode_warns_where_a_cluster_is_split():
    with pytest.warns(ours.GaugeWarning):
        jax.jvp(ours.eigvalsh, (matrix("coinciding"),), (matrix("random", seed=1),))


def test_transformations():
    a, b = matrix("random"), matrix("random", seed=1)
    gradient = jax.grad(closed)
    compiled = jax.jit(gradient)
    assert jnp.allclose(jax.jit(jax.vmap(gradient))(jnp.stack([a, b])), jnp.stack([compiled(a), compiled(b)]))
    hessian = jax.jit(jax.hessian(closed))(a)
    assert jnp.allclose(jax.jit(jax.jacrev(jax.jacrev(closed)))(a), hessian, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind, complex_valued", [(1, True), (2, False), (3, True)])
def test_generalized(kind, complex_valued):
    a, b = matrix("random", complex_valued), jnp.asarray(with_spectrum([1.0, 1.5, 2.0, 2.5, 4.0], complex_valued, 1))
    w, v = ours.eigh(a, b, type=kind)
    w0, v0 = spectile.eigh(np.asarray(a), np.asarray(b), type=kind, backend="cpu")
    assert np.allclose(w, w0) and np.allclose(abs(v), abs(v0))
    check_grads(
        jax.jit(lambda a, b: abs(ours.eigh(a, b, type=kind)[1]).sum()),
        (a, b),
        1,
        modes=("fwd", "rev"),
        atol=1e-5,
        rtol=1e-5,
    )


def test_parts():
    a = matrix("random")
    for part in ({"subset_by_index": (1, 2)}, {"subset_by_value": (0.5, 2.5)}):
        w, v = ours.eigh(a, **part)
        assert jnp.allclose(w, ours.eigvalsh(a)[1:3]) and jnp.allclose(a @ v, v * w)
    both = jnp.stack([a, a + jnp.eye(5)])
    w, v = ours.eigh(both, subset_by_value=(1.0, 2.5))
    assert np.allclose(w, [[1.1, 2.0], [1.3, 2.1]]) and np.allclose(both @ v, v * w[:, None])
    with pytest.raises(ValueError, match="its own number of eigenvalues"):
        ours.eigvalsh(both, subset_by_value=(1.0, 2.05))
    with pytest.raises(ValueError, match="subset_by_index"):
        jax.jit(lambda a: ours.eigvalsh(a, subset_by_value=(0, 1)))(a)


def test_single_precision_and_integers():
    assert ours.eigvalsh(matrix("random").astype(jnp.float32)).dtype == jnp.float32
    assert ours.eigvalsh(jnp.array([[2, 0], [0, 1]])).tolist() == [1.0, 2.0]


def test_wrong_values_are_named_as_without_derivatives():
    a, b = matrix("random"), jnp.asarray(with_spectrum([1.0, 1.5, 2.0, 2.5, 4.0], True, 1))
    with pytest.raises(ValueError, match="NaN or infinity"):
        ours.eigh(a.at[1, 0].set(jnp.nan))
    with pytest.raises(np.linalg.LinAlgError, match="leading minor of order 1 of B"):
        ours.eigh(a, -b)
    assert jax.grad(lambda a: ours.eigvalsh(a, b).sum())(a).dtype == a.dtype
