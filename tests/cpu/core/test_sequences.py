"""Random sequences of public calls on NumPy and SciPy arrays."""

from hypothesis import HealthCheck, settings

from ...sequences import Calls

TestCalls = Calls.TestCase
TestCalls.settings = settings(
    max_examples=12, stateful_step_count=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
