"""The counters of a product, with the host's memory in place of the device's."""

import ctypes
import sys
import threading

import numpy as np
import pytest

from spectile.core.launch import NOT_READY
from spectile.tsparse.cuda import bins, counters
from spectile.tsparse.cuda.counters import Counters, Invalid
from spectile.tsparse.cuda.shared import FLAGS, HEAD, HEAD_WORDS, UNSORTED

from ...heads import head_of


def test_whatever_the_check_found_in_a_factor_or_the_mask_is_raised():
    assert head_of(SYMBOLIC=3, NUMERIC=4, TICKET=5, KEPT=6).raise_invalid() is None
    for places, flags in (
        ({"FLAGS": 4}, [4, 0, 0]), ({"FLAGS+1": 1}, [0, 1, 0]), ({"DESCENTS": 7}, [UNSORTED, 0, 0]),
        ({"DESCENTS+1": -1, "FLAGS+1": 64}, [0, 64 | UNSORTED, 0]), ({"FLAGS+2": 64}, [0, 0, 64]),
        ({"DESCENTS+2": 1}, [0, 0, UNSORTED]),
    ):  # fmt: skip
        with pytest.raises(Invalid) as raised:
            head_of(**places).raise_invalid()
        assert list(raised.value.args) == flags


def test_the_head_has_wide_counters_bins_and_a_key():
    head = head_of(ENTRIES=-1, **{"ENTRIES+1": 1}, **{f"NUMERIC+{i}": i * i for i in range(len(bins.NUMERIC))})
    assert head.wide("ENTRIES") == 2**33 - 1 and head[HEAD["ENTRIES"]] == -1
    assert head.bins() == [i * i for i in range(len(bins.NUMERIC))]
    assert head.key != head_of().key == head_of(ENTRIES=5, SYMBOLIC=5).key
    assert head_of(FLAGS=8).key != head_of().key != head_of(**{"MAX_BYTES+3": 1}).key


@pytest.fixture
def runtime(monkeypatch):
    """CuPy's functions of the device, on the host: the streams that were given are listed."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    held, streams = [], []

    class Memory:
        def __init__(self, size):
            self.array = np.full(size, 0xAB, np.uint8)
            self.ptr = self.array.ctypes.data
            held.append(self)

    def fill(address, value, size, stream):
        streams.append(stream)
        ctypes.memset(address, value, size)

    def copy(to, source, size, kind, stream):
        streams.append(stream)
        assert kind == cupy.cuda.runtime.memcpyDeviceToHost
        ctypes.memmove(to, source, size)

    for name, function in {
        "getDevice": lambda: 3, "memsetAsync": fill, "memcpyAsync": copy, "streamSynchronize": streams.append,
        "deviceSynchronize": lambda: streams.append("all"),
    }.items():  # fmt: skip
        monkeypatch.setattr(cupy.cuda.runtime, name, function)
    monkeypatch.setattr(cupy.cuda, "alloc", Memory)
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", Memory)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 77}))
    monkeypatch.setattr(counters, "stream_query", lambda: lambda stream: 0)
    counters._pinned.cache_clear()
    yield held, streams
    counters._pinned.cache_clear()


@pytest.mark.parametrize(("rows", "states"), [(0, 0), (1, 1), (2048, 1), (2049, 2)])
def test_counters_are_cleared_and_read_on_the_stream_that_was_current(runtime, rows, states):
    held, streams = runtime
    cleared = Counters(rows)
    assert (cleared.device, cleared.stream) == (3, 77)
    assert len(held[0].array) == 4 * HEAD_WORDS + 8 * states and not held[0].array.any()
    assert cleared.states - cleared.head == 4 * HEAD_WORDS
    held[0].array.view(np.int32)[HEAD["PRODUCTS"]] = 12
    assert cleared.read().wide("PRODUCTS") == 12 and streams == [77] * 3
    held[0].array.view(np.int32)[HEAD["PRODUCTS"]] = 13
    kept = cleared.read()
    held[0].array[:] = 0
    assert cleared.read().wide("PRODUCTS") == 0 and kept.wide("PRODUCTS") == 13, "a head is not read again"


def test_what_a_kernel_tells_is_read_when_it_is_there_and_not_before(runtime, monkeypatch):
    """While the stream is at work, or after it; a call that was stopped may be told late, so the next waits for all."""
    held, streams = runtime
    cleared = Counters(5)
    streams.clear()

    def tell(asked, products):
        words = np.zeros(HEAD_WORDS, np.int32)
        words[HEAD["PRODUCTS"]] = products
        ctypes.memmove(asked[0], words.ctypes.data, words.nbytes)
        ctypes.c_int.from_address(asked[0] + words.nbytes).value = asked[1]

    first = cleared.ask()
    tell(first, 7)
    assert cleared.told().wide("PRODUCTS") == 7 and streams == []
    second = cleared.ask()
    assert second[1] != first[1], "what was told before is not told again"
    monkeypatch.setattr(
        sys.modules["cupy"].cuda.runtime, "streamSynchronize", lambda stream: streams.append(stream) or tell(second, 8)
    )
    assert cleared.told().wide("PRODUCTS") == 8 and streams == [77], "a stream that has ended, or failed"
    third, looks = cleared.ask(), []
    at_work = lambda stream: looks.append(stream) or (len(looks) == 3 and tell(third, 4)) or NOT_READY  # noqa: E731
    monkeypatch.setattr(counters, "stream_query", lambda: at_work)
    assert cleared.told().wide("PRODUCTS") == 4 and streams == [77] and looks == [77] * 3
    cleared.ask()
    cleared.ask()
    assert streams == [77, "all"] and len(held) == 2
    monkeypatch.setattr(counters, "_LARGEST_CALL", second[1])
    tell(last := cleared.ask(), 9)
    assert last[1] > 0 and cleared.told().wide("PRODUCTS") == 9


def test_threads_read_into_memory_of_their_own(runtime):
    held, _ = runtime
    cleared = Counters(5)
    cleared.read()
    cleared.read()
    assert len(held) == 2
    thread = threading.Thread(target=cleared.read)
    thread.start()
    thread.join()
    assert len(held) == 3


def test_counters_do_not_overlap_and_wide_ones_are_aligned():
    ends = [*list(HEAD.values())[1:], HEAD_WORDS]
    sizes = dict(zip(HEAD, np.subtract(ends, list(HEAD.values())), strict=True))
    assert sizes["SYMBOLIC"] >= len(bins.SYMBOLIC) and sizes["NUMERIC"] >= len(bins.NUMERIC)
    assert sizes["MAX_BYTES"] >= len(bins.BLOCKS) and min(sizes.values()) >= 1
    for name in ("PRODUCTS", "ENTRIES", "KEPT", "HUB_PRODUCTS"):
        assert HEAD[name] % 2 == 0 and sizes[name] >= 2
    assert sizes["FLAGS"] == 3 and sizes["DESCENTS"] >= 3 and sizes["MASK_PIECES"] == 2 <= sizes["MASK_TAKEN"]
    assert HEAD_WORDS % 2 == 0, "the states of the scan, which follow, are of 64 bits"
    assert not UNSORTED & sum(FLAGS.values()) and sum(FLAGS.values()) == int(np.bitwise_or.reduce([*FLAGS.values()]))


def test_what_counts_rows_of_a_family_and_fills_them_is_declared():
    families = {**counters.FAMILIES, **{name: bins.family_places(name) for name in ("hub", "few")}}
    assert sorted(place for places in families.values() for place in range(100)[places]) == list(
        range(len(bins.SYMBOLIC))
    ), "bins of a family lie side by side"
    for one in bins.SYMBOLIC:
        assert set(one.filled_by) <= {*bins.NUMERIC_PLACES, "FEW"} and one.filled_by
    sorts = [[one.holds for one in phase if one.family == "sort"] for phase in (bins.SYMBOLIC, bins.NUMERIC)]
    assert sorts[0] == sorts[1], "a sorted row goes to the numeric bin of the same place"
    assert len(set(bins.SYMBOLIC_PLACES)) == len(bins.SYMBOLIC) and len(set(bins.NUMERIC_PLACES)) == len(bins.NUMERIC)
