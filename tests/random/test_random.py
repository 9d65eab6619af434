"""Some random calls of every public function; ``python -m tests.random`` makes more."""

import pytest

from tests.random.calls import public
from tests.random.cases import CASES, DRAWS, LEFT_OUT
from tests.random.worker import Worker

#: Calls of a case that take long, where others are made ten times as often.
CALLS = {"large_product": 1, "large_density": 1, "misuse": 60, "matrix_functions": 38, "tile_functions": 23}
CALLS |= {"tile_matrix": 24, "told": 16, "spgemm_options": 24}
ALL_OTHERS = 8
#: Seeds of calls that were wrong once, of classes that a few calls seldom meet: out over an operand, duplicates summed
#: before they are converted, strides of values, scales beyond the range, damaged files.
ONCE_WRONG = {
    "spamm": [180],
    "spgemm": [1007],
    "symbolic": [26],
    "kpm_dos": [3005, 3009, 3028],
    "ldos": [3005, 3028],
    "spectral_function": [3005],
}


@pytest.fixture(scope="module")
def worker():
    with Worker("cpu", timeout_s=120) as worker:
        yield worker


@pytest.mark.parametrize("name", CASES)
def test_random_calls_hold(name, worker):
    failures, called = [], set()
    for seed in [*range(CALLS.get(name, ALL_OTHERS)), *ONCE_WRONG.get(name, [])]:
        outcome = worker.run(name, seed)
        called |= outcome.called.keys()
        if outcome.kind:
            failures.append(f"{outcome.kind}: {outcome.message}  (python -m tests.random --case {name}:{seed})")
    assert not failures, "\n".join(failures)
    assert called >= set(DRAWS.get(name, ()))


def test_every_public_function_is_called_by_a_case():
    drawn = {name for names in DRAWS.values() for name in names}
    assert drawn | LEFT_OUT.keys() == set(public().values()) and not drawn & LEFT_OUT.keys()


def test_a_case_that_crashes_or_hangs_is_one_failure(worker):
    assert not worker.run("norm_map", 1).kind
    hung = Worker("cpu", timeout_s=0.01)
    assert hung.run("kpm_dos", 1).kind == "hang"
    assert hung._process is None
