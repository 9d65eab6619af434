"""How the task list is sorted: what shared memory holds, on every described device."""

import pytest

from spectile.core.devices import TABLE
from spectile.core.launch import Shape
from spectile.tsparse.cuda.tiles import choose
from spectile.tsparse.cuda.tiles.product import Windows, windows_fit


@pytest.mark.parametrize("device", TABLE.values() if isinstance(TABLE, dict) else TABLE, ids=str)
def test_rows_that_fit_are_sorted_on_every_device(device):
    fitted = 0
    for words in (1, 40, 600, 5000):
        for tasks in (1, 50, 3000, 100_000):
            for rows in (1, 1000, 100_000):
                fit = windows_fit(words, tasks, 100, rows, tasks * rows // 2)
                if fit is None:
                    continue
                fitted += 1
                windows = Windows(None, None, None, None, None, words, *fit)
                _, _, shared = windows.shape
                assert Shape((rows,), 256, shared).refusal(device) is None
                assert fit[0] >= min(tasks, 32 * words), "a row has room for all its tiles of C"
    assert fitted > 10


def test_long_rows_are_sorted_by_keys():
    assert windows_fit(10, 10_000, 100, 1000, 100_000) is not None
    assert windows_fit(10, 10_000, 5000, 1000, 100_000) is None, "each task is compared with others of its tile of C"
    assert windows_fit(50_000, 10_000, 100, 1000, 100_000) is None, "shared memory does not hold the window"


def test_auto_asks_for_full_tiles_of_much_work():
    assert choose.may_pay(2**20, 10_000, "float64")
    assert not choose.may_pay(2**20 - 1, 10_000, "float64"), "too little work"
    assert not choose.may_pay(2**22, 2**20, "float64"), "short rows"
    assert not choose.may_pay(2**21, 2**21 // 79, "float32") and choose.may_pay(2**21, 2**21 // 79, "float64")
    assert not choose.may_pay(2**22, 10_000, "float16"), "float16 is scaled by tiles otherwise than by rows"
    for precision, least in choose.LEAST_FILLED.items():
        assert choose.pay(1000 * int(least), 1000, precision)
        assert not choose.pay(1000 * int(least) - 1, 1000, precision)
