"""Lattices of KPM, beside the topological insulator's matrix: the dots' potential, disorder, sizes too small."""

import numpy as np
import pytest

from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile_study.inputs.quantum_dots import quantum_dots


def test_dots_are_discs_on_the_surface_in_a_square_lattice():
    potential = quantum_dots(40, 60, 3)
    assert not potential[..., 1:].any() and set(np.unique(potential)) == {0.0, 0.153}
    surface = potential[..., 0] > 0
    np.testing.assert_array_equal(surface, np.tile(surface[:20, :20], (2, 3)))
    x, y = np.meshgrid(np.arange(20) - 9.5, np.arange(20) - 9.5, indexing="ij")
    np.testing.assert_array_equal(surface[:20, :20], np.hypot(x, y) <= 6)
    with pytest.raises(ValueError, match="period=0"):
        quantum_dots(4, 4, 1, period=0)


def test_disorder_is_uniform_in_its_width():
    h = anderson(12, disorder=4.0, rng=1)
    energies = h.diagonal()
    assert energies.min() >= -2 and energies.max() <= 2
    assert abs(energies.mean()) < 0.1 and energies.std() == pytest.approx(4 / np.sqrt(12), rel=0.05)
    assert (h != h.T).nnz == 0 and set((h - np.diag(energies)).sum(axis=1).round(12)) == {-6.0}
    assert (anderson(12, disorder=4.0, rng=1) != h).nnz == 0


@pytest.mark.parametrize("make", [lambda: chain(2), lambda: graphene(3, 2), lambda: anderson(2, disorder=1.0)])
def test_lattices_that_are_too_small_are_refused(make):
    with pytest.raises(ValueError, match="at least 3"):
        make()
