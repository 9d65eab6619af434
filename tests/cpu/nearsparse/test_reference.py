"""SpAMM's references: the recursion and the flat form multiply the same tiles."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile_study.cases.spamm import reference


def decay(rng, m, n, rate=0.2):
    """Random matrix whose entries fall off exponentially from the diagonal."""
    distance = np.abs(np.arange(m)[:, None] - np.arange(n)[None, :])
    return rng.standard_normal((m, n)) * np.exp(-rate * distance)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 40),
    n=st.integers(1, 40),
    block=st.sampled_from([1, 2, 4, 5, 8]),
    quantile=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_recursion_and_flat_form_multiply_the_same_tiles(m, k, n, block, quantile, seed):
    rng = np.random.default_rng(seed)
    # Small integers: sums are exact in any order, so the products must be equal and not only close.
    a = np.rint(4 * decay(rng, m, k))
    b = np.rint(4 * decay(rng, k, n))
    norms_a, norms_b = reference.norm_map(a, block), reference.norm_map(b, block)
    # A threshold that is itself a product of norms: the border case of ">=".
    tau = float(np.quantile(norms_a[:, :, None] * norms_b[None], quantile, method="nearest"))
    flat = reference.spamm_flat(a, b, tau, block)
    recursive, multiplied = reference.spamm_recursive(a, b, tau, block)
    assert np.array_equal(multiplied, reference.valid_set(norms_a, norms_b, tau))
    assert np.array_equal(flat, recursive)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_recursion_on_power_of_two_tiles_with_irrational_norms(count):
    rng = np.random.default_rng(count)
    a, b = decay(rng, 8 * count, 8 * count), decay(rng, 8 * count, 8 * count)
    norms_a, norms_b = reference.norm_map(a, 8), reference.norm_map(b, 8)
    for tau in np.quantile(norms_a[:, :, None] * norms_b[None], [0, 0.3, 0.7, 1], method="nearest"):
        c, multiplied = reference.spamm_recursive(a, b, tau, 8)
        assert np.array_equal(multiplied, reference.valid_set(norms_a, norms_b, tau))
        np.testing.assert_allclose(c, reference.spamm_flat(a, b, tau, 8), rtol=1e-13, atol=1e-13)


def test_parents_have_at_least_their_childrens_norm():
    rng = np.random.default_rng(7)
    levels = reference.quad_tree(decay(rng, 64, 64), 4, 4)
    for parent, child in itertools.pairwise(levels):
        assert (np.repeat(np.repeat(parent, 2, 0), 2, 1) >= child).all()


def test_norms_of_half_precision_do_not_overflow():
    a = np.full((32, 32), 300, np.float16)
    assert reference.norm_map(a)[0, 0] == pytest.approx(300 * 32)


def test_tau_zero_is_the_dense_product_and_infinity_is_zero():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((37, 50)), rng.standard_normal((50, 21))
    np.testing.assert_allclose(reference.spamm_flat(a, b, 0, 16), a @ b)
    assert not reference.spamm_flat(a, b, np.inf, 16).any()


def test_stride_conserves_the_work_and_evens_it():
    distance = np.abs(np.arange(32)[:, None] - np.arange(32)[None, :])
    valid = 32 - distance
    one, two = reference.assigned_loads(valid, 1), reference.assigned_loads(valid, 2)
    assert one.sum() == two.sum() == valid.sum()
    assert two.max() / two.mean() < one.max() / one.mean()
