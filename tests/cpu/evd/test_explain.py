"""What `explain` says is what a call takes, on the CPU by watching it, on CUDA for every device of the table."""

import math

import numpy as np
import pytest
import threadpoolctl

import spectile
from spectile.core.devices import TABLE
from spectile.evd.cpu import drivers, part
from spectile.evd.cpu import run as cpu_run
from spectile.evd.cuda import choose
from spectile.evd.types import SCALARS


def taken(listed):
    (one,) = [one.kernel for one in listed if one.seconds is not None]
    return one


@pytest.fixture
def watched(monkeypatch):
    """Names of what is called to solve."""
    names = []
    routine, loop, steps = drivers.routine, np.linalg.eigh, part.solve

    def called(name, function):
        return lambda *args, **kwargs: (names.append(name), function(*args, **kwargs))[1]

    monkeypatch.setattr(drivers, "routine", lambda name: called(f"LAPACK's {name[3:]}", routine(name)))
    monkeypatch.setattr(part, "solve", called("LAPACK's steps", steps))
    monkeypatch.setattr(np.linalg, "eigh", called("NumPy's loop", loop))
    return names


@pytest.mark.parametrize(
    ("shape", "keywords"),
    [
        ((8, 8), {}),
        ((12, 12), {"subset_by_index": (0, 0)}),
        ((12, 12), {"subset_by_value": (0.0, 1.0)}),
        ((40, 40), {}),
        ((40, 40), {"subset_by_index": (0, 4)}),
        ((40, 40), {"subset_by_index": (0, 20)}),
        ((40, 40), {"subset_by_value": (0.0, 1.0)}),
        ((99, 99), {"subset_by_index": (0, 4)}),
        ((40, 40), {"driver": "evx"}),
        ((40, 40), {"driver": "evx", "subset_by_value": (0.0, 1.0)}),
        ((5, 8, 8), {}),
        ((2, 40, 40), {}),
        ((2, 40, 40), {"dtype": np.float64}),
        ((2, 40, 40), {"dtype": np.complex128, "subset_by_index": (0, 4)}),
        ((2, 40, 40), {"dtype": np.complex128, "subset_by_index": (0, 20)}),
        ((2, 130, 130), {"dtype": np.complex128}),
    ],
)
def test_the_cpu_takes_what_is_told(shape, keywords, watched):
    keywords = dict(keywords)
    a = np.random.default_rng(3).standard_normal(shape).astype(keywords.pop("dtype", np.float32))
    a = a + np.swapaxes(a, -1, -2)
    if "subset_by_value" in keywords and len(shape) > 2:
        a[:] = a[0]
    told = taken(spectile.explain(spectile.eigh, a, backend="cpu", **keywords))
    assert not watched
    spectile.eigh(a, backend="cpu", **keywords)
    assert watched[0] == told


def test_stages_are_told_where_they_are_taken(monkeypatch):
    monkeypatch.setattr(cpu_run, "STAGES_BYTES", 0)
    monkeypatch.setattr(cpu_run, "solve_by_stages", lambda array, options: (np.full(len(array), 7.0), None))
    a = np.eye(300)
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert taken(spectile.explain(spectile.eigvalsh, a, backend="cpu")) == "two stages"
        assert spectile.eigvalsh(a, backend="cpu")[0] == 7.0


def test_generalized_problems_are_told():
    a, large = np.eye(5), np.eye(40)
    assert taken(spectile.explain(spectile.eigh, a, a, backend="cpu")) == "LAPACK's gv"
    assert taken(spectile.explain(spectile.eigh, large, large, backend="cpu")) == "LAPACK's gvd"
    assert taken(spectile.explain(spectile.eigh, a, a, driver="gvx", backend="cpu")) == "LAPACK's gvx"
    with pytest.raises(ValueError, match="wrong b dimensions"):
        spectile.explain(spectile.eigh, a, np.eye(4), backend="cpu")


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
@pytest.mark.parametrize("scalar", SCALARS.values(), ids=list(SCALARS))
@pytest.mark.parametrize("vectors", [False, True])
def test_one_solver_is_taken_on_every_device(device, scalar, vectors):
    names = {"rotations": 0, "batched": 1, "vendor": 2, "stages": 3}
    for n in (1, 2, 32, 33, 48, 49, 64, 65, 512, 513, 1024, 1025, 4000, 40_000, 80_000):
        for count in (1, 2, 8):
            for batched in (False, True):
                known = {"vectors": vectors, "device": device, "batched": lambda batched=batched: batched}
                listed = choose.candidates(n, count, scalar, **known)
                solver = choose.solver_of(n, count, scalar, **known)
                assert [one.seconds is not None for one in listed].index(True) == names[solver]
                assert sum(one.seconds is not None for one in listed) == 1
                assert all(one.why and (one.seconds is None or math.isnan(one.seconds)) for one in listed)
                assert solver != "batched" or (batched and count > 1)
                assert solver != "stages" or n <= choose.largest_order(device)
                assert (solver == "rotations") == (n <= choose.rotated_order(scalar.name, count))


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=list(SCALARS))
def test_once_a_batch_pays_more_matrices_do(scalar):
    for n in (*range(33, 513, 13), 512):
        paid = [choose.pays_in_batches(n, count, scalar) for count in range(1, 65)]
        assert not paid[0] and paid == sorted(paid) and paid[-1]
        # Kernels of whole matrices are few launches; with many for each column, some matrices are faster by themselves.
        assert paid[5] == (n * n * scalar.itemsize <= 144 * 1024) or not paid[5]
    assert not choose.pays_in_batches(513, 64, scalar)


def test_the_library_is_asked_for_its_batched_solver_only_where_it_pays():
    def refuse():
        raise AssertionError("asked")

    for n, count in ((32, 8), (100, 1), (2000, 2)):
        choose.solver_of(n, count, SCALARS["float64"], vectors=True, device=TABLE["H200"], batched=refuse)
