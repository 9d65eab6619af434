"""Array kinds, memory errors and the description of the device."""

from __future__ import annotations

import numpy as np
import pytest

from spectile.core import arrays, device, memory

pytestmark = pytest.mark.gpu


def test_description_is_filled() -> None:
    found = device.describe()
    assert found.name and found.multiprocessors > 0 and found.l2_bytes > 0 and found.memory_bytes > 2**30


def test_numpy_goes_and_comes_back() -> None:
    array = np.random.default_rng().standard_normal((5, 3))
    there, give_back = arrays.to_device(array)
    back = give_back(there * 2)
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, array * 2)


def test_cupy_is_not_copied() -> None:
    import cupy

    array = cupy.random.default_rng().standard_normal((5, 3))
    there, give_back = arrays.to_device(array)
    assert there is array and give_back(there) is array and arrays.on_device(array)


def test_torch_shares_memory_both_ways() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.rand(5, 3, device="cuda")
    there, give_back = arrays.to_device(tensor)
    assert there.data.ptr == tensor.data_ptr()
    assert give_back(there).data_ptr() == tensor.data_ptr()
    there, give_back = arrays.to_device(tensor.cpu())
    assert give_back(there).device.type == "cpu"


def test_memory_error_names_the_bytes() -> None:
    with pytest.raises(MemoryError, match="1,000,000,000,000,000 bytes"):
        memory.require_free(10**15, "a matrix")
    with pytest.raises(MemoryError, match=r"a matrix needs .* bytes"), memory.allocating("a matrix", 10**15):
        import cupy

        cupy.empty(10**15, cupy.uint8)
