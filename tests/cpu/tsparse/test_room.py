"""The arithmetic of a limit on the CPU: what it leaves, what is named where it leaves too little."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import room as room_module
from spectile.tsparse.cpu import memory, phases
from spectile.tsparse.room import Room


def test_room_is_what_the_limit_leaves():
    room, other = Room(100_000), np.zeros(1000)
    first = room.left
    assert 1000 <= 100_000 - first <= 2**13, "Python's own objects"
    room.hold(np.zeros(1000), None, other[3:], other, beside=[other, None, [3.0]])
    assert room.left == first - 8000
    part = room.nested()
    part.hold(np.zeros(10))
    assert (part.left, room.left) == (first - 8080, first - 8000)
    room.require(room.left)
    for more in (1, 0.5):
        with pytest.raises(MemoryError, match=r"memory_limit is 100000 bytes, and sums take \d+; raise it") as refused:
            room.require(room.left + more, "sums")
        taken, enough = map(int, re.search(r"take (\d+); raise it to at least (\d+)", str(refused.value)).groups())
        assert 100_001 <= enough == taken <= 100_002
    with pytest.raises(MemoryError, match="copies of A and B"):
        room.workers(room.left + 1)


def test_no_limit_asks_for_nothing(monkeypatch):
    monkeypatch.setattr(room_module, "num_threads", lambda: 4)
    room = Room()
    held = room.held
    room.hold(np.zeros(10**6))
    room.require(10**18)
    assert room.nested().limit is None and room.workers(10**18) == 4 and room.held == held


def test_threads_are_as_many_as_have_room(monkeypatch):
    monkeypatch.setattr(room_module, "num_threads", lambda: 4)
    room = Room(10**6)
    each = room.left // 3
    assert [room.workers(n) for n in (1, each, each + 2, room.left)] == [4, 3, 2, 1]
    assert room.workers(0) == 4
    assert Room(1000 + 10**6 - room.left).workers(500) == 2 and Room(3 + 10**6 - room.left).workers(1) == 3


@pytest.mark.parametrize("columns", [1, 64, 1000, 12345])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_work_space_is_what_it_is_said_to_be(columns, dtype):
    space = phases.Workspaces(10, columns, np.dtype(dtype))
    assert memory.workspace(columns, np.dtype(dtype).itemsize) == sum(x.nbytes for x in vars(space).values())
    again = phases.Workspaces(10, columns, np.dtype(dtype), marks=False)
    assert again.sums.nbytes == columns * np.dtype(dtype).itemsize and not hasattr(again, "mark")
    assert phases.Workspaces(10, columns, None).mark.nbytes == 4 * columns
    marks = phases.Workspaces(10, columns, None)
    assert marks.mark.nbytes == 4 * columns and set(vars(marks)) == {"mark"}


def test_columns_of_64_bits_take_twice_as_much_in_the_list_of_those_met():
    n = 2**32
    assert memory.workspace(n, 8) - memory.workspace(n - 1, 8) == 12 + 24 + 8 * (n + 17) - 4 * (n + 16)


@pytest.mark.parametrize("entries", [1, 5, 1000, 5000])
def test_columns_are_renumbered_where_there_are_far_more_than_entries(entries):
    assert not memory.renumbers(4 * entries, entries, True) and memory.renumbers(4 * entries + 1, entries, True)
    most = max(2**16, 64 * entries)
    assert not memory.renumbers(most, entries, False) and memory.renumbers(most + 1, entries, False)
    for limited in (True, False):  # whatever fits, 32 bits do not number so many
        assert memory.renumbers(2**31, 2**40, limited) and not memory.renumbers(2**31 - 1, 2**40, limited)


@pytest.mark.parametrize("form", ["coo", "csc", "csr"])
def test_rows_are_renumbered_where_no_pointer_has_their_length(form):
    for inner, many in ((2**16, False), (2**16 + 1, True), (2**31, True)):
        if form == "csr" and inner == 2**31:
            continue  # the pointer alone takes 17 GB
        B = sp.coo_array((np.ones(2), ([0, 5], [0, 1])), shape=(inner, 2)).asformat(form)
        A = sp.coo_array((np.ones(3), ([0, 1, 1], [0, 2, 3])), shape=(4, inner))
        assert memory.narrows(A, B) is (many and form != "csr")
    full = sp.coo_array((np.ones(600), (np.arange(600), np.zeros(600, int))), shape=(64 * 1200, 1))
    left = sp.coo_array((np.ones(600), (np.zeros(600, int), np.arange(600))), shape=(1, 64 * 1200))
    assert not memory.narrows(left, full)
    assert memory.narrows(left, sp.coo_array((full.data, full.coords), shape=(64 * 1200 + 1, 1)))
