"""All pairs of an interval on the GPU."""

import numpy as np
import pytest

from spectile.kpm import count, filter_diagonalize
from spectile.kpm.operators.lattices import anderson
from tests.hamiltonians import haldane

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("H", "interval"),
    [(anderson(9, disorder=6, rng=1), (0.4, 0.7)), (haldane(16, mass=0.3)[0], (1.2, 1.4))],
    ids=["real", "complex"],
)
def test_all_pairs_of_an_interval(H, interval):
    import cupy

    energies = np.linalg.eigvalsh(H.toarray())
    exact = energies[(energies >= interval[0]) & (energies <= interval[1])]
    pairs = filter_diagonalize(H, interval, rng=2, backend="cuda")
    np.testing.assert_allclose(pairs.eigenvalues, exact, atol=1e-9)
    assert isinstance(pairs.eigenvectors, cupy.ndarray)
    vectors = pairs.eigenvectors.get()
    np.testing.assert_allclose(H @ vectors, vectors * pairs.eigenvalues, atol=1e-8)
    found = count(H, interval, rng=1, backend="cuda")
    assert abs(found.value - len(exact)) <= 4 * found.error
