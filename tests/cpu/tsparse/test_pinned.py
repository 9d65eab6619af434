"""Results in pinned memory, with the host's memory in place of it."""

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

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
    assert pinned == [400, 400], "the third is beyond 1,000 bytes of those that are alive"
    for number, one in enumerate(kept):
        assert (one.data == number).all()
    view = kept[1].data[3:]
    del kept[:], one
    gc.collect()
    memory.fetch(on_device(np.zeros(60)))
    assert pinned == [400, 400, 480] and (view == 1).all(), "a view holds the memory of the second"
    assert not memory.fetch(on_device(np.empty(0, np.int32))).size


def test_memory_that_cannot_be_pinned_counts_for_nothing(pinned):
    memory = Pinned(2**22)
    with pytest.raises(MemoryError, match="no more"):
        memory.fetch(on_device(np.zeros(2**18)))
    for _ in range(40):
        memory.fetch(on_device(np.zeros(2**16)))
    assert len(pinned) == 40
