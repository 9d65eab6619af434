"""Complex, masked and streamed products: right ones pass the checks of their cases, and wrong ones fail."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile_study.bench.case import Context, Method, Skipped
from spectile_study.cases.tsparse import capabilities
from spectile_study.inputs import families


def passes(method, result):
    errors = method.check(result)
    return all(errors[name] <= limit for name, limit in method.limits.items())


def spoiled(result):
    if isinstance(result, int):
        return result + 1
    wrong = result.copy()
    wrong.data[-1] = wrong.data[-1] * 1.01 if wrong.dtype.kind in "fc" else wrong.data[-1] + 1
    return wrong


@pytest.mark.parametrize(
    ("part", "product"), [("complex", "small_500"), ("masked", None), ("streamed", "random_2000_10")]
)
def test_a_case_is_measured_on_the_cpu_and_a_wrong_result_fails(part, product, tmp_path):
    row = {"part": part, "product": product}
    problem = capabilities.problem(row, Context("cpu", tmp_path, 1, 1), lambda: sp.csr_array(families.rmat(6, 4)))
    methods = [method for method in problem.methods if isinstance(method, Method)]
    assert len(methods) >= 3 and all(one.reason for one in problem.methods if isinstance(one, Skipped))
    for method in methods:
        result = method.run()
        assert passes(method, result), method.name
        assert not passes(method, spoiled(result)), method.name


def test_triangles_are_those_of_the_trace():
    A = sp.csr_array(families.rmat(6, 4))
    graph = ((A + A.T).toarray() != 0).astype(int)
    np.fill_diagonal(graph, 0)
    problem = capabilities.problem({"part": "masked"}, Context("cpu", None, 1, 1), lambda: A)
    assert problem.values["triangles"] == np.trace(graph @ graph @ graph) // 6 > 0
