"""A call that goes on and is broken off leaves the result as it was: what is asked for again is right."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from spectile.kpm import SpectralDensity, chebyshev, kpm_dos
from spectile.kpm.operators.lattices import chain

N = 40
H = sp.csr_array(chain(N))
VECTORS = np.random.default_rng(1).standard_normal((N, 3))


class Failing(LinearOperator):
    """H, whose product fails after so many calls, once."""

    def __init__(self):
        super().__init__(np.dtype(np.float64), H.shape)
        self.left = -1

    def _matmat(self, x):
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        self.left = max(self.left, -1)
        return H @ x

    def _matvec(self, x):
        return self._matmat(x)

    def fail_after(self, calls):
        self.left = calls


def state(density):
    numbers = density.num_moments, density.num_vectors, density.bounds
    return *numbers, *(np.copy(getattr(density, name)) for name in ("moments", "densities", "errors", "energies"))


def check_same(one, other, **tolerances):
    for a, b in zip(state(one), state(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerances)


MADE = {
    "density": lambda h: kpm_dos(h, 16, 2, rng=1, bounds=(-3, 3), backend="cpu"),
    "density, bounds of its own": lambda h: kpm_dos(h, 16, 2, rng=1, backend="cpu"),
    "expectation": lambda h: kpm_dos(h, 16, 2, rng=1, operator=H, bounds=(-3, 3), backend="cpu"),
    "given vectors": lambda h: kpm_dos(h, 16, vectors=VECTORS, bounds=(-3, 3), backend="cpu"),
}
MORE = {"moments": lambda one: one.add_moments(20), "vectors": lambda one: one.add_vectors(2)}


@pytest.mark.parametrize("calls", range(0, 12, 2))
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("name", MADE)
def test_a_product_that_fails_leaves_the_result_as_it_was(name, more, calls, tmp_path):
    if (name, more) == ("given vectors", "vectors"):
        return
    h = Failing()
    one, fresh, whole = MADE[name](h), MADE[name](Failing()), MADE[name](Failing())
    MORE[more](whole)
    h.fail_after(calls)
    try:
        MORE[more](one)
    except KeyboardInterrupt:
        check_same(one, fresh, rtol=0, atol=0)
        if isinstance(one, SpectralDensity) and calls % 4:
            one.save(tmp_path / "state.npz")
            loaded = SpectralDensity.load(tmp_path / "state.npz", h, backend="cpu")
            check_same(loaded, fresh, rtol=0, atol=0)
            MORE[more](loaded)
            check_same(loaded, whole, rtol=0, atol=0)
        MORE[more](one)
    check_same(one, whole, rtol=0, atol=0)


@pytest.mark.parametrize("more", MORE)
def test_a_kernel_that_is_broken_off_leaves_the_result_as_it_was(more):
    """Ctrl-C within a step of a stored matrix: some of its rows are written."""
    one, whole = MADE["density"](H), MADE["density"](H)
    MORE[more](whole)
    operator, calls = one._engine.operator, []
    rows = operator.rows

    def broken(*arguments):
        rows(*arguments)
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt

    object.__setattr__(operator, "rows", broken)
    with pytest.raises(KeyboardInterrupt):
        MORE[more](one)
    object.__setattr__(operator, "rows", rows)
    check_same(one, MADE["density"](H), rtol=0, atol=0)
    MORE[more](one)
    check_same(one, whole, rtol=0, atol=0)


def test_an_iterator_whose_step_was_broken_off_says_so(tmp_path):
    h = Failing()
    terms = chebyshev(h, VECTORS, 9, bounds=(-3, 3), backend="cpu")
    next(terms), next(terms)
    h.fail_after(0)
    with pytest.raises(KeyboardInterrupt):
        next(terms)
    for call in (lambda: next(terms), lambda: terms.vectors, lambda: terms.save(tmp_path / "terms.npz")):
        with pytest.raises(ValueError, match="broken off"):
            call()
