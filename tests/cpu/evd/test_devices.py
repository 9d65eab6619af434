"""Several GPUs: which are asked for, where operands lie, and what is refused; no GPU is needed."""

import numpy as np
import pytest

import spectile
from spectile.core.places import device_ids, home_of


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [(1, [0]), (3, [0, 1, 2]), ([2], [2]), ([3, 0], [3, 0]), ((1, 2), [1, 2]), (np.array([1, 3]), [1, 3]),
     (np.int64(2), [0, 1]), (range(4), [0, 1, 2, 3])],
)  # fmt: skip
def test_devices_by_number_or_by_name(devices, wanted):
    assert device_ids(devices, 4) == wanted


@pytest.mark.parametrize(
    ("devices", "error", "said"),
    [
        (0, ValueError, "4 are visible"),
        (5, ValueError, "4 are visible.*0 to 3"),
        (10**400, ValueError, "4 are visible"),
        (-1, ValueError, "4 are visible"),
        ([], ValueError, "4 are visible"),
        ([0, 4], ValueError, "4 are visible"),
        ([-1], ValueError, "4 are visible"),
        ([1, 0, 1], ValueError, "device 1 twice"),
        ("01", TypeError, "'01' are no GPUs"),
        (1.5, TypeError, "no GPUs"),
        ([0.0, 1.0], TypeError, "no GPUs"),
        (True, TypeError, "no GPUs"),
        ({0: 1}, TypeError, "no GPUs"),
        (object(), TypeError, "no GPUs"),
    ],
)
def test_devices_that_are_none_are_refused_in_one_sentence(devices, error, said):
    with pytest.raises(error, match=said) as caught:
        device_ids(devices, 4)
    assert str(caught.value).count("\n") == 0 and len(str(caught.value)) < 200


def test_results_lie_where_the_operands_do():
    assert home_of({"a": None}, [2, 1]) == 2
    assert home_of({"a": 1}, [2, 1]) == 1
    assert home_of({"a": None, "b": 1}, [2, 1]) == 1
    assert home_of({"a": 2, "b": 2}, [2, 1]) == 2
    with pytest.raises(ValueError, match=r"a is on device 3, and devices are \[2, 1\]"):
        home_of({"a": 3}, [2, 1])
    with pytest.raises(ValueError, match="a is on device 2 and b on device 1"):
        home_of({"a": 2, "b": 1}, [2, 1])


@pytest.mark.parametrize("call", [spectile.eigh, spectile.eigvalsh])
def test_what_does_not_go_with_devices(call):
    a = np.eye(4)
    with pytest.raises(ValueError, match="devices are GPUs"):
        call(a, devices=2, backend="cpu")
    with pytest.raises(ValueError, match="leave out x0 and driver"):
        call(a, devices=2, driver="evd")
    with pytest.raises(ValueError, match="square"):
        call(a[:3], devices=2)
