"""Plans of launches: kept by key, bounded, apart for each thread; addresses are read where a launch reads them."""

import ctypes
import threading

import numpy as np
import pytest

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


class Array(np.ndarray):
    """Values on a device, as far as their address is asked for."""

    class data:
        ptr = 4096


class Other(Array):
    pass


class Stopped(plans.Addresses):
    def set(self, *addresses):
        super().set(*addresses)
        raise KeyboardInterrupt


def test_a_launch_is_repeated_for_the_very_same_arrays_alone():
    """What `numeric` does with the arrays of its last call, and with arrays that are gone."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from spectile.tsparse.cuda.rows import lists

    launched = []
    product = object.__new__(lists.ProductLists)
    product._bound, product._array = threading.local(), Array
    product._bind = lambda value: (plans.Addresses(3), lambda: launched.append(value))
    a, b, c = (np.zeros(3, "f4").view(Array) for _ in range(3))
    assert not product.again(a, b, c)
    product(a, b, c)
    assert product.again(a, b, c) and len(launched) == 2
    assert not product.again(a, a, c) and not product.again(c, b, c) and not product.again(a, b, a)
    double = [array.astype("f8").view(Array) for array in (a, b, c)]
    product(*double)
    assert launched == ["float32", "float32", "float64"]
    assert not product.again(a, b, c) and product.again(*double)
    launches = []
    thread = threading.Thread(target=lambda *arrays: launches.append(product.again(*arrays)), args=double)
    thread.start()
    thread.join()
    assert launches == [False] and len(launched) == 4
    # A call that is stopped with its addresses set leaves nothing to repeat.
    whole, product._bound.f = product._bound.f, (Stopped(3), None)
    with pytest.raises(KeyboardInterrupt):
        product(a, b, c)
    product._bound.f = whole
    assert not product.again(a, b, c) and not product.again(*double)
    # Nor do arrays of a type of the caller's, which may take other memory.
    other = [array.view(Other) for array in (a, b, c)]
    product(*other)
    assert not product.again(*other)
    product(*double)
    del double
    assert not product.again(None, None, None)
    assert launched[4:] == ["float32", "float64"]
