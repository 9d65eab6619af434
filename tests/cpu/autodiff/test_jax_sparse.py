"""Sparse products of JAX's arrays: values, derivatives on the patterns, transformations."""

import numpy as np
import pytest
import scipy.sparse as sp

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.experimental.sparse import BCSR  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import spectile.jax as ours  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")


def bcsr(m, n, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=0.4, rng=rng, format="csr")
    if dtype.startswith("complex"):
        A = A * np.exp(1j) + 1j * A.power(2)
    A = sp.csr_array(A)
    A.sort_indices()
    return BCSR((jnp.asarray(A.data, dtype), jnp.asarray(A.indices), jnp.asarray(A.indptr)), shape=A.shape)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_product_and_gradients_are_those_of_dense_matrices_on_the_patterns(dtype):
    A, B = bcsr(7, 5, 0, dtype), bcsr(5, 9, 1, dtype)
    product = ours.symbolic(A, B)
    C = ours.spgemm(A, B)
    assert C.shape == (7, 9) and C.data.dtype == dtype
    np.testing.assert_allclose(C.todense(), A.todense() @ B.todense(), rtol=1e-13)
    weights = np.random.default_rng(2).standard_normal((7, 9))

    def of_entries(a, b):
        dense = BCSR((product.numeric(a, b), product.indices, product.indptr), shape=(7, 9)).todense()
        return (abs(dense) ** 2 * weights).sum()

    found = jax.grad(of_entries, (0, 1))(A.data, B.data)
    wanted = jax.grad(lambda a, b: (abs(a @ b) ** 2 * weights).sum(), (0, 1))(A.todense(), B.todense())
    for entries, dense, factor in zip(found, wanted, (A, B), strict=True):
        rows = np.repeat(np.arange(factor.shape[0]), np.diff(factor.indptr))
        np.testing.assert_allclose(entries, dense[rows, factor.indices], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_orders_and_modes(dtype):
    A, B = bcsr(6, 5, 3, dtype), bcsr(5, 7, 4, dtype)
    check_grads(ours.symbolic(A, B).numeric, (A.data, B.data), order=2, modes=("fwd", "rev"))


def test_transformations():
    A, B = bcsr(4, 4, 5), bcsr(4, 4, 6)
    product, a, b = ours.symbolic(A, B), A.data, B.data
    value = product.numeric(a, b)
    np.testing.assert_array_equal(jax.jit(product.numeric)(a, b), value)
    both = jax.vmap(product.numeric, (0, None))(jnp.stack([a, 2 * a]), b)
    np.testing.assert_allclose(both, jnp.stack([value, 2 * value]), rtol=1e-14)
    inner = jax.vmap(product.numeric, (None, 0))
    grid = jax.vmap(inner, (0, None))(jnp.stack([a, 2 * a]), jnp.stack([b, b, 3 * b]))
    np.testing.assert_allclose(grid[1, 2], 6 * value, rtol=1e-14)
    jacobian = jax.jacrev(product.numeric)(a, b)
    np.testing.assert_allclose(jax.jacfwd(product.numeric)(a, b), jacobian, rtol=1e-14)
    hessian = jax.jit(jax.hessian(lambda a: (product.numeric(a, b) ** 2).sum()))(a)
    np.testing.assert_allclose(hessian, 2 * jacobian.T @ jacobian, rtol=1e-12, atol=1e-13)


def test_wrong_input_gets_one_sentence():
    a, square = bcsr(3, 4, 7), bcsr(4, 4, 8)
    with pytest.raises(TypeError, match="from_bcoo"):
        ours.spgemm(a.todense(), square)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        ours.spgemm(a, a)
    with pytest.raises(TypeError, match="of one type"):
        ours.spgemm(a, bcsr(4, 4, 8, "float32"))
    with pytest.raises(ValueError, match="entries"):
        ours.symbolic(a, square).numeric(a.data[:1], square.data)
    unsorted = BCSR((jnp.ones(2), jnp.array([1, 0]), jnp.array([0, 2])), shape=(1, 4))
    with pytest.raises(ValueError, match="not sorted"):
        ours.spgemm(unsorted, square)
    with pytest.raises(ValueError, match="traced"):
        jax.jit(lambda x: ours.spgemm(x, square).data)(a)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_entries_of_half_precision_are_multiplied_in_single(dtype):
    A = bcsr(6, 6, 12, dtype)
    product, single = ours.symbolic(A, A), A.data.astype("float32")
    assert ours.spgemm(A, A).data.dtype == "float32"
    found, wanted = (jax.value_and_grad(lambda x: product.numeric(x, x).sum())(x) for x in (A.data, single))
    assert found[0] == wanted[0] and found[1].dtype == dtype
    np.testing.assert_allclose(found[1].astype("float32"), wanted[1], rtol=2 * float(jnp.finfo(dtype).eps))
