"""Threads that meet after every step: the same sums, no thread left behind by an error, teams one after the other."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.kpm.cpu import operator as operator_module
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
from spectile.kpm.cpu.threads import side_by_side
from spectile.kpm.operators.topological_insulator import TopologicalInsulator


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_every_thread_does_every_step_before_any_does_the_next(threads):
    done, after = np.zeros((7, threads), dtype=bool), []

    def work(n, m):
        if m > 0:
            assert done[m - 1].all()
        if n == m % threads:
            time.sleep(0.01)
        done[m, n] = True

    def see(m):
        assert done[m].all() and not done[m + 2 :].any()
        after.append((m, threading.current_thread()))

    side_by_side(threads, 7, work, see)
    assert done.all() and after == [(m, threading.current_thread()) for m in range(7)]


@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_one_thread_ends_all_and_is_raised(thread, error):
    steps = []

    def work(n, m):
        steps.append((n, m))
        if (n, m) == (thread, 2):
            raise error("in one")

    with pytest.raises(error, match="in one"):
        side_by_side(3, 1000, work, lambda m: None)
    assert max(m for _, m in steps) <= 3
    side_by_side(3, 2, lambda n, m: steps.append((n, -m)), lambda m: None)
    assert sorted(steps[-6:]) == [(n, m) for n in range(3) for m in (-1, 0)]


def test_errors_in_all_threads_at_once_end_all():
    def work(n, m):
        if m == 3:
            raise ValueError("everywhere")

    with pytest.raises(ValueError, match="everywhere"):
        side_by_side(4, 1000, work, lambda m: None)


def test_an_error_after_a_step_ends_all():
    def after(m):
        raise RuntimeError("sums")

    with pytest.raises(RuntimeError, match="sums"):
        side_by_side(2, 1000, lambda n, m: None, after)


def test_the_blocks_of_rows_are_shared_by_the_threads():
    shares = []
    operator = SimpleNamespace(
        num_rows=7,
        blocks=lambda width: [(n, n + 1) for n in range(7)],
        rows=lambda v, w, scalars, edges, sums: shares.append(edges[:, 0].tolist()),
    )
    CpuRecursion(operator, 0.15, 0.0, np.zeros((7, 1, 3)), 3).advance(1)
    assert sorted(row for share in shares for row in share) == list(range(7))
    assert sorted(map(len, shares)) == [2, 2, 3]


def test_recursions_of_several_callers_share_the_threads():
    operator = CpuOperator.from_csr(TopologicalInsulator(12, 8, 6).matrix())

    def moments(threads):
        return CpuRecursion(operator, 0.15, 0.0, operator.random_block(1, 0, 3), threads).advance(20)

    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(moments, [3, 3, 2, 3, 2, 1]))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize(
    ("sides", "num_vectors", "threads"), [((4, 4, 10), 1, 1), ((8, 8, 20), 64, 6), ((20, 20, 40), 64, 16)]
)
def test_small_samples_take_fewer_threads_unless_told(sides, num_vectors, threads, monkeypatch):
    monkeypatch.setattr(operator_module, "num_threads", lambda: 16)
    operator = CpuOperator.from_topological_insulator(TopologicalInsulator(*sides))
    block = operator.random_block(1, 0, num_vectors)
    assert CpuRecursion(operator, 0.15, 0.0, block).threads == threads
    assert CpuRecursion(operator, 0.15, 0.0, block, 3).threads == 3


@pytest.mark.parametrize(("threads", "used"), [(1, 1), (3, 3)])
def test_a_product_for_the_bounds_takes_the_threads_that_a_step_takes(threads, used, monkeypatch):
    monkeypatch.setattr(operator_module, "num_threads", lambda: threads)
    sample = TopologicalInsulator(40, 26, 10)
    asked, engine = [], CpuEngine(sample, np.dtype(np.complex128))
    update = CpuOperator.update
    monkeypatch.setattr(CpuOperator, "update", lambda *each: (asked.append(each[6]), update(*each))[1])
    x = engine.vector(3)
    np.testing.assert_allclose(engine.apply(x), sample.matrix() @ x, atol=1e-13)
    assert asked == [used]


def test_steps_may_be_cut_anywhere():
    operator = CpuOperator.from_csr(TopologicalInsulator(8, 8, 6).matrix())
    for threads in (1, 2):
        whole = CpuRecursion(operator, 0.15, 0.1, operator.random_block(1, 0, 3), threads)
        parts = CpuRecursion(operator, 0.15, 0.1, operator.random_block(1, 0, 3), threads)
        etas = whole.advance(9)
        np.testing.assert_array_equal(np.concatenate([parts.advance(n) for n in (1, 0, 2, 1, 5)]), etas)
        np.testing.assert_array_equal(parts.v, whole.v)
        np.testing.assert_array_equal(parts.w, whole.w)
        assert parts.steps == whole.steps == 9


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads to processors")
def test_threads_stay_free_to_move():
    processors = os.sched_getaffinity(0)
    seen = []
    side_by_side(len(processors), 2, lambda n, m: seen.append(os.sched_getaffinity(0)), lambda m: None)
    assert all(each == processors for each in [*seen, os.sched_getaffinity(0)])
