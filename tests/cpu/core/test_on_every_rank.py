"""What one rank raises all raise, of whatever type it is: in threads that stand for ranks."""

import pickle
import threading

import numpy as np
import pytest

from spectile.core.ranks import on_every_rank


class Ranks:
    """What two threads exchange: what pickles, as of a communicator."""

    def __init__(self):
        self.met, self.sent = threading.Barrier(2), [None, None]

    def gathered(self, rank, one):
        self.sent[rank] = pickle.dumps(one)
        self.met.wait(timeout=120)
        return [pickle.loads(each) for each in self.sent]


class Comm:
    size = 2

    def __init__(self, ranks, rank):
        self.ranks, self.rank = ranks, rank

    def allgather(self, one):
        return self.ranks.gathered(self.rank, one)


def on_two(works):
    """Return what two ranks give or raise."""
    ranks, given = Ranks(), [None, None]

    def act(rank):
        try:
            given[rank] = on_every_rank(Comm(ranks, rank), works[rank])
        except Exception as error:
            given[rank] = error

    threads = [threading.Thread(target=act, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


def raising(error):
    def work():
        raise error

    return work


class Wide(np.linalg.LinAlgError):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def of_a_function():
    class Own(OSError):
        pass

    return Own("mine alone")


def too_large():
    try:
        np.empty(2**57)
    except MemoryError as error:  # NumPy's own type, which no sentence makes
        return error


ERRORS = {
    "plain": (ValueError("wrong"), ValueError),
    "memory": (too_large(), MemoryError),
    "text": (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), UnicodeError),
    "two arguments": (Wide(1, 2), np.linalg.LinAlgError),
    "of a function": (of_a_function(), OSError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_one_rank_is_raised_on_both(name):
    error, kind = ERRORS[name]
    for rank in (0, 1):
        works = [lambda: 1, lambda: 1]
        works[rank] = raising(error)
        for found in on_two(works):
            assert type(found) is kind and str(found) == f"{error} (rank {rank} of 2)"


def test_results_are_those_of_each_rank():
    assert on_two([lambda: "a", lambda: "b"]) == ["a", "b"]
