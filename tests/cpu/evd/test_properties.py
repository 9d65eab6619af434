"""Whatever the kind of matrix, its layout and the part asked for: `eigh` on the CPU against NumPy in float64."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ...eigenproblems import Problem, check_solution, problems


@settings(max_examples=150, deadline=None)
@given(problems(orders=st.integers(0, 70)))
def test_any_problem(problem: Problem):
    check_solution(problem, backend="cpu")


@settings(max_examples=40, deadline=None)
@given(problems(orders=st.integers(1, 24), generalized=True))
def test_any_generalized_problem(problem: Problem):
    check_solution(problem, backend="cpu")
