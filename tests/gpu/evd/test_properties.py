"""Whatever the kind of matrix, its layout and the part asked for: `eigh` on a GPU against NumPy in float64.

The inputs are new in every session; Hypothesis prints the one that fails.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ...eigenproblems import Problem, check_solution, problems

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@settings(max_examples=300, deadline=None)
@given(problems(orders=st.one_of(st.integers(0, 70), st.sampled_from([100, 129, 257]))))
def test_any_problem(problem: Problem):
    check_solution(problem, backend="cuda", xp=cupy)


@settings(max_examples=20, deadline=None)
@given(problems(orders=st.sampled_from([641, 900, 1025, 1101])))
def test_orders_of_the_stages(problem: Problem):
    check_solution(problem, backend="cuda", xp=cupy)


@settings(max_examples=60, deadline=None)
@given(problems(orders=st.one_of(st.integers(1, 40), st.sampled_from([513, 700])), generalized=True))
def test_any_generalized_problem(problem: Problem):
    check_solution(problem, backend="cuda", xp=cupy)
