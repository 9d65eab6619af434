"""Plans of launches: kept by key, bounded, apart for each thread; addresses are read where a launch reads them."""

import ctypes
import threading

import numpy as np

from spectile.tsparse.cuda import plans


def test_a_plan_is_made_once_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(plans, "_kept", plans._Kept())
    monkeypatch.setattr(plans, "MOST_PLANS", 3)
    made = []

    def get(key):
        return plans.plan(key, lambda: made.append(key) or object())

    first = get(1)
    assert get(1) is first and made == [1]
    for key in (2, 3, 1, 4):
        get(key)
    assert made == [1, 2, 3, 4]
    assert get(1) is first, "used again after 2, which has gone"
    get(2)
    assert made == [1, 2, 3, 4, 2]


def test_threads_keep_plans_of_their_own(monkeypatch):
    monkeypatch.setattr(plans, "_kept", plans._Kept())
    seen = []

    def work():
        seen.append(plans.plan("same", object))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    work()
    assert len(set(map(id, seen))) == 3


def test_addresses_are_changed_in_place():
    addresses = plans.Addresses(3)
    # As core.launch packs a structured array: the memory itself, read at each launch.
    held = [np.ascontiguousarray(addresses[i]) for i in range(3)]
    read = [(ctypes.c_char * one.nbytes).from_buffer(one.data) for one in held]
    for values in ((1, 2, 3), (2**63 + 5, 0, 7)):
        addresses.set(*values)
        assert tuple(int(np.frombuffer(one, np.uint64)[0]) for one in read) == values
