"""Threads that stay: every item once, an error or an interrupt ends all, a forked process has threads of its own."""

import os
import threading
import time

import pytest
import threadpoolctl

from spectile.core import threads


@pytest.mark.parametrize("count", [1, 2, 5])
def test_results_are_in_the_order_of_their_items(count):
    assert threads.results(range(7), count, lambda i: time.sleep(0.002 * (7 - i)) or i * i) == [
        0, 1, 4, 9, 16, 25, 36
    ]  # fmt: skip
    assert threads.results([], count, len) == []


def test_threads_are_at_work_at_the_same_time():
    both = threading.Barrier(2)
    assert sorted(threads.results(range(2), 2, lambda i: both.wait(60))) == [0, 1]


def test_work_within_work_comes_to_an_end():
    """All threads are taken by the outer work: the inner one is then its caller's alone."""
    found = threads.results(range(8), 8, lambda i: sum(threads.results(range(5), 8, lambda j: i * j)))
    assert found == [10 * i for i in range(8)]


def test_several_callers_share_the_threads():
    found = {}

    def call(name):
        found[name] = threads.results(range(50), 4, lambda i: i + name)

    callers = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == {name: [i + name for i in range(50)] for name in range(4)}


def test_an_error_ends_all_before_it_is_raised():
    begun, at_work = [], set()

    def work(i):
        begun.append(i)
        at_work.add(i)
        time.sleep(0.01)
        at_work.discard(i)
        if i == 3:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        threads.each(range(1000), 2, work)
    # On a busy machine the other thread goes on until the one that failed has said so.
    assert len(begun) < 500 and not at_work
    assert threads.results(range(3), 2, str) == ["0", "1", "2"]


def test_blas_says_how_many():
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert threads.blas_threads() == 1
    assert 1 <= threads.blas_threads() <= threads.cores()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    threads.results(range(4), 2, str)
    child = os.fork()
    if child == 0:
        os._exit(0 if threads.results(range(4), 2, str) == ["0", "1", "2", "3"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
