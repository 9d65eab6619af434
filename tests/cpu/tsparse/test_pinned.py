"""Results in pinned memory, with the host's memory in place of it."""

import contextlib
import ctypes
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse.cuda import pinned as copies
from spectile.tsparse.cuda.pinned import Pinned


class Memory:
    pass


class Pointer(bytearray):
    def __init__(self, size):
        super().__init__(size)
        self.mem = Memory()


class OnDevice(SimpleNamespace):
    """An array of the device, which is copied to one of the host."""

    def get(self, out=None):
        out = np.empty(self.size, self.dtype) if out is None else out
        out[:] = self.values
        return out


def on_device(values):
    values = np.asarray(values)
    return OnDevice(values=values, size=values.size, dtype=values.dtype)


@pytest.fixture
def pinned(monkeypatch):
    """Return the sizes that were pinned."""
    sizes = []

    def allocate(size):
        if size > 2**20:
            raise MemoryError("no more can be pinned")
        sizes.append(size)
        return Pointer(size)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(alloc_pinned_memory=allocate)))
    return sizes


def test_a_caller_that_keeps_all_results_has_few_of_them_in_pinned_memory(pinned):
    memory, kept = Pinned(1000), []
    for number in range(5):
        found = memory.fetch(on_device(np.full(50, number, np.float64)))
        kept.append(sp.csr_array((found, np.arange(50), np.array([0, 50])), shape=(1, 50)))
        del found
        gc.collect()
    assert pinned == [448, 448], "the third is beyond 1,000 bytes of those that are alive"
    for number, one in enumerate(kept):
        assert (one.data == number).all()
    view = kept[1].data[3:]
    del kept[:], one
    gc.collect()
    memory.fetch(on_device(np.zeros(60)))
    assert pinned == [448, 448, 512] and (view == 1).all(), "a view holds the memory of the second"
    assert not memory.fetch(on_device(np.empty(0, np.int32))).size


def test_results_of_like_sizes_take_the_memory_of_each_other(pinned):
    """CuPy keeps what is given back for the same size alone, and for ever."""
    memory = Pinned(2**20)
    for size in range(1, 3000):
        found = memory.fetch(on_device(np.full(size, size, np.float64)))
        assert found.shape == (size,) and (found == size).all()
        assert 8 * size <= pinned[-1] <= 10 * size
    assert len(set(pinned)) <= 4 * np.log2(8 * 3000)


def test_memory_that_cannot_be_pinned_counts_for_nothing(pinned):
    memory = Pinned(2**22)
    with pytest.raises(MemoryError, match="no more"):
        memory.fetch(on_device(np.zeros(2**18)))
    for _ in range(40):
        memory.fetch(on_device(np.zeros(2**16)))
    assert len(pinned) == 40


class Stream(contextlib.nullcontext):
    """A stream that copies when it is waited for, and not before."""

    made: ClassVar[list] = []

    def __init__(self, non_blocking):
        self.waiting, self.ptr, self.ready = [], len(self.made), False
        self.made.append(self)

    def wait_event(self, event):
        self.ready = event == "made"

    def synchronize(self):
        assert self.ready
        for one in self.waiting:
            ctypes.memmove(*one)
        self.waiting.clear()


@pytest.mark.parametrize("size", [1, 600, 5003])
def test_large_arrays_go_in_pieces_of_pinned_memory(size, monkeypatch):
    moved = []

    def copy(target, source, count, kind, stream):
        Stream.made[stream].waiting.append((target, source, count))
        moved.append((count, kind))

    runtime = SimpleNamespace(
        memcpyAsync=copy, streamSynchronize=lambda stream: Stream.made[stream].synchronize(), getDevice=lambda: 0
    )
    cuda = SimpleNamespace(
        Device=lambda *_: contextlib.nullcontext(SimpleNamespace(id=0)) if _ else SimpleNamespace(id=0),
        Stream=Stream,
        Event=lambda disable_timing: None,
        get_current_stream=lambda: SimpleNamespace(record=lambda: "made"),
        alloc_pinned_memory=bytearray,
        runtime=runtime,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(empty=np.empty, cuda=cuda))
    monkeypatch.setattr(copies, "pool", lambda name, workers: ThreadPoolExecutor(workers))
    monkeypatch.setattr(copies, "_LARGE", 0)
    monkeypatch.setattr(copies, "_PIECE", 1000)
    array = np.random.default_rng(1).standard_normal(size)
    found = copies.to_device(array)
    assert found is not array and (found == array).all()
    out = np.empty(size + 2)
    assert (copies.to_host(found) == array).all() and (copies.to_host(found, out[1:-1]) == array).all()
    pieces = -(-8 * size // 1000)
    assert [sum(kind == one for _, kind in moved) for one in (1, 2)] == [pieces, 2 * pieces]
    assert sum(count for count, _ in moved) == 3 * 8 * size
