"""Launches of a phase on one stream and on others beside it, in the order in which a device would see them."""

import sys
from types import SimpleNamespace

import pytest

from spectile.tsparse.cuda import streams


@pytest.fixture
def seen(monkeypatch):
    """What the streams are given, in order; a stream is its number, and that of the caller is 0."""
    seen = []

    class Event:
        def record(self, stream):
            seen.append(("record", self, stream.ptr))

    class Stream:
        def __init__(self, ptr=None, non_blocking=True):
            self.ptr = len(made) if ptr is None else ptr
            made.append(self)

        def wait_event(self, event):
            seen.append(("wait", event, self.ptr))

    made = []
    main = Stream(0)
    runtime = SimpleNamespace(getDevice=lambda: 0)
    cuda = SimpleNamespace(
        Stream=Stream, Event=lambda **_: Event(), get_current_stream=lambda: main, runtime=runtime
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(streams, "_kept", streams._Kept())
    return seen


def launch(seen, name):
    return lambda stream: seen.append(("launch", name, stream))


@pytest.mark.parametrize(("first", "beside"), [(0, 0), (1, 0), (3, 0), (0, 1)])
def test_one_after_the_other_needs_no_other_stream(seen, first, beside):
    names = [f"first {i}" for i in range(first)], [f"beside {i}" for i in range(beside)]
    streams.side_by_side(*([launch(seen, name) for name in some] for some in names))
    assert seen == [("launch", name, None) for name in names[0] + names[1]]


@pytest.mark.parametrize(("first", "beside"), [(1, 1), (2, 3), (0, 3)])
def test_others_begin_after_what_was_before_and_the_current_stream_waits_for_them(seen, first, beside):
    for _ in range(2):
        seen.clear()
        streams.side_by_side(
            [launch(seen, f"first {i}") for i in range(first)], [launch(seen, f"beside {i}") for i in range(beside)]
        )
        where = {name: stream for kind, name, stream in seen if kind == "launch"}
        assert len(where) == first + beside
        others = [stream for stream in where.values() if stream]
        assert len(set(others)) == len(others) == first + beside - max(first, 1), "each has a stream of its own"
        assert seen[0][0] == "record" and seen[0][2] == 0
        begin, ended = seen[0][1], {}
        for stream in others:
            own = [(kind, event) for kind, event, at in seen if at == stream]
            assert [kind for kind, _ in own] == ["wait", "launch", "record"] and own[0][1] is begin
            ended[stream] = own[2][1]
        waits = [event for kind, event, at in seen if kind == "wait" and at == 0]
        assert set(waits) == set(ended.values())
        last = max(i for i, (kind, _, at) in enumerate(seen) if kind == "launch" and at == 0)
        assert all(kind == "wait" for kind, *_ in seen[last + 1 :]), "what comes next waits for all"
