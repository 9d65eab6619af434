"""The second set of sparse products: its generators make what their names say."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile_study.bench import sheets
from spectile_study.bench.case import Context
from spectile_study.cases.tsparse import second_set

ROOT = Path(__file__).resolve().parents[3]


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


def test_a_case_is_checked_and_measured_on_the_cpu():
    problem = second_set.problem("tall_wide", Context("cpu", Path(), 1, 1))
    assert problem.values["columns"] == 20_000 and problem.values["products"] > 3e7
    problem = second_set.problem("random_2", Context("cpu", Path(), 1, 1))
    assert [method.name for method in problem.methods] == [
        "spectile_float64",
        "scipy_float64",
        "spectile_float32",
        "scipy_float32",
    ]
    for method in problem.methods:
        errors = method.check(method.run())
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
        wrong = method.run()
        wrong.data[3] *= 1.01
        assert method.check(wrong)["error_bound_ratio"] > 1


def test_every_product_of_the_set_is_a_case():
    rows = sheets.read_sheet(ROOT / "config/tsparse.tsv", ROOT / "workflow/schemas/tsparse.schema.yaml").values()
    assert [row["product"] for row in rows if row["part"] == "second"] == list(second_set.pairs())
