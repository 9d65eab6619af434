"""The second set of sparse products: its generators make what their names say."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile_study.cases.tsparse import second_set


@pytest.mark.parametrize(("shape", "points"), [((7, 5), 5), ((7, 5), 9), ((4, 5, 6), 7), ((4, 5, 6), 27)])
def test_laplacian_has_its_points_and_annihilates_constants_inside(shape, points):
    A = second_set.laplacian(shape, points)
    lengths = np.diff(A.indptr).reshape(shape)
    inside = tuple(slice(1, -1) for _ in shape)
    assert (lengths[inside] == points).all() and lengths.max() == points
    assert (A.sum(axis=1).reshape(shape)[inside] == 0).all()
    assert abs(A - A.T).max() == 0


def test_galerkin_product_by_ours():
    A = second_set.laplacian((30, 20), 5)
    P = second_set.aggregation(A, 3)
    coarse = spgemm(sp.csr_array(P.T), spgemm(A, P, backend="cpu"), backend="cpu")
    assert coarse.shape == (200, 200)
    np.testing.assert_allclose(coarse.toarray(), (P.T @ A @ P).toarray(), atol=1e-12)


def test_random_ones_have_their_sizes():
    A = second_set.random(1000, 5000, 7, 1)
    assert A.shape == (1000, 5000) and 6900 < A.nnz <= 7000 and A.has_sorted_indices
    assert second_set.hypersparse(10**6, 1000, 2).nnz <= 1000
    assert len(second_set.pairs()) == 23
