"""Which calls are captured: none anew each time, however many kinds take turns and whatever each of them holds."""

import itertools
from types import SimpleNamespace

import pytest

from spectile.core import replay


@pytest.fixture
def kept(monkeypatch):
    """What is kept, of calls that hold what `held` says once they were captured."""
    monkeypatch.setattr(replay, "Captured", lambda: SimpleNamespace(nbytes=None))
    return replay._Kept()


def run(kept, key, held, limit):
    """Make a call; return whether it ran as it is written, was captured or was replayed."""
    call = kept.take(key)
    if call is None:
        return "direct"
    kind = "captured" if call.nbytes is None else "replayed"
    call.nbytes = held
    kept.give_back(key, call, limit)
    return kind


def test_the_first_call_runs_as_it_is_and_the_second_is_captured(kept):
    assert [run(kept, "a", 10, 100) for _ in range(4)] == ["direct", "captured", "replayed", "replayed"]


@pytest.mark.parametrize("held", [101, 1000])
def test_what_has_no_room_by_itself_is_captured_once(kept, held):
    """A prediction of what a call holds may be a little below what it does hold."""
    assert [run(kept, "a", 10, 100) for _ in range(3)][-1] == "replayed"
    kinds = [run(kept, "b", held, 100) for _ in range(100)]
    assert kinds[1] == "captured" and kinds.count("direct") == 99
    assert run(kept, "a", 10, 100) == "replayed" and kept.nbytes() == 10


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("held", [30, 60, 100])
def test_kinds_that_take_turns_are_not_captured_each_time(kept, number, held):
    calls = 200
    kinds = [run(kept, key, held, 100) for key in itertools.islice(itertools.cycle(range(number)), calls * number)]
    room = 100 // held
    if room >= number:
        assert kinds.count("captured") == number
    else:
        assert kinds.count("captured") <= number * 8  # about log2 of the calls of a kind
    assert kept.nbytes() <= 100


def test_a_kind_that_comes_alone_again_is_replayed(kept):
    for key in "abababab":
        run(kept, key, 60, 100)
    assert [run(kept, "a", 60, 100) for _ in range(40)][-1] == "replayed"
