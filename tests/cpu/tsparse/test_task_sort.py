"""How the task list is sorted: what shared memory holds, on every described device."""

import pytest

from spectile.core.devices import TABLE
from spectile.core.launch import Shape
from spectile.tsparse.cuda.tiles import choose
from spectile.tsparse.cuda.tiles.product import sorting


@pytest.mark.parametrize("device", TABLE.values() if isinstance(TABLE, dict) else TABLE, ids=str)
def test_rows_that_fit_are_sorted_on_every_device(device):
    fitted = 0
    for words in (0, 1, 40, 600, 5000):
        for tasks in (1, 50, 3000, 100_000):
            for rows in (1, 1000, 100_000):
                how = sorting(words, tasks, 100, rows, tasks * rows // 2)
                if how is None:
                    continue
                for threads in (how.threads, 1024) if how.any_long else (how.threads,):
                    fitted += 1
                    shape = Shape((rows,), max(threads, 256), how.shared_bytes(threads))
                    assert shape.refusal(device) is None
                    most = tasks if threads == 1024 else min(tasks, how.most)
                    room = how.room(threads)
                    assert room >= min(most, 32 * words, 64), "tiles of C that a row takes at a time"
    assert fitted > 10


def test_rows_have_threads_after_their_tasks():
    few, many = sorting(10, 1000, 100, 1000, 50_000), sorting(10, 1000, 100, 1000, 500_000)
    assert (few.threads, many.threads) == (32, 256) and not few.any_long and not many.any_long
    hub, long = sorting(10, 30_000, 100, 1000, 50_000), sorting(10, 30_000, 100, 1000, 500_000)
    assert (hub.threads, long.threads) == (32, 256) and hub.any_long and long.any_long
    assert hub.room(32) <= 1024 and long.room(1024) == 320, "room for what a row may have"


def test_what_rows_do_not_hold_is_sorted_by_keys():
    assert sorting(10, 10_000, 5000, 1000, 100_000) is not None
    assert sorting(10, 100_000, 2**16, 1000, 100_000) is None, "tasks of a tile of C are counted in 16 bits"
    assert sorting(50_000, 10_000, 100, 1000, 100_000) is None, "shared memory does not hold the window"
    assert sorting(10, 2**20, 30_000, 1000, 2**21) is None, "one block would sort half of all tasks"
    assert sorting(10, 2**20, 30_000, 1000, 2**23) is not None


def test_auto_asks_for_full_tiles_of_much_work():
    assert choose.may_pay(2**20, 10_000, "float64")
    assert not choose.may_pay(2**20 - 1, 10_000, "float64"), "too little work"
    assert not choose.may_pay(2**22, 2**20, "float64"), "short rows"
    assert not choose.may_pay(2**21, 2**21 // 79, "float32") and choose.may_pay(2**21, 2**21 // 79, "float64")
    assert not choose.may_pay(2**22, 10_000, "float16"), "float16 is scaled by tiles otherwise than by rows"
    for precision, least in choose.LEAST_FILLED.items():
        assert choose.pay(1000 * int(least), 1000, precision)
        assert not choose.pay(1000 * int(least) - 1, 1000, precision)
