"""Arrays of other libraries on the device, what passes to kernels, and launches that the driver takes or refuses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core import arrays, compile, pointers
from spectile.core.compile import PORTABLE, Unit
from spectile.core.launch import Shape, kernel

pytestmark = pytest.mark.gpu

SOURCE = """
struct Step { float by; int count; };
extern "C" __global__ void add(float* x, Step step) {
  const int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < step.count) x[i] += step.by;
}
"""


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def unit(monkeypatch, tmp_path, request):
    """Return a unit of this test alone, with a cache of its own."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Unit, "source", lambda self: SOURCE)
    return Unit("spectile.core", (), archs=PORTABLE, defines={"OF": request.node.name})


def step(by, count):
    return np.array([(by, count)], [("by", "f4"), ("count", "i4")])


class Bare:
    """An exporter that has ``__dlpack__`` alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__(stream=stream)


def test_bare_exporters_are_found_on_their_device_and_share_memory(cupy, monkeypatch):
    x = cupy.arange(12.0).reshape(3, 4)
    library = SimpleNamespace(from_dlpack=lambda result: ("given back", result))
    monkeypatch.setitem(sys.modules, "bare", library)
    tensor = type("Tensor", (Bare,), {"__module__": "bare"})(x)
    assert arrays.on_device(tensor)
    found, in_kind = arrays.to_device(tensor)
    assert isinstance(found, cupy.ndarray) and pointers.address(found) == pointers.address(x)
    assert in_kind(found) == ("given back", found)
    with pytest.raises(TypeError, match=r"^a is on a GPU"):
        arrays.host_array("a", tensor)


def test_the_stream_of_the_interface_is_waited_for(cupy):
    """The third version of the interface names the stream that still writes the array."""
    producer = cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(1 << 24, np.float32)
    cupy.cuda.Device().synchronize()
    with producer:
        for _ in range(200):
            x += 1
    interface = dict(x.__cuda_array_interface__) | {"stream": producer.ptr, "version": 3}
    found, _ = arrays.to_device(SimpleNamespace(__cuda_array_interface__=interface, owner=x))
    with cupy.cuda.Stream(non_blocking=True):
        assert float(found.min()) == float(found.max()) == 200


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_door_takes_copies_and_refuses(cupy, dtype):
    x = cupy.arange(64).reshape(8, 8).astype(dtype)
    assert pointers.operand("x", x) is x
    for view in (x.T, x[::-1], x[:, 1:], cupy.broadcast_to(x[0], (3, 8))):
        passed = pointers.operand("x", view)
        assert passed.flags.c_contiguous and passed is not view and bool((passed == view).all())
    assert pointers.overlap(x, x.T) and pointers.overlap(x[:5], x[4:]) and not pointers.overlap(x[:4], x[4:])
    (copied,) = pointers.apart(x, x[1:])
    assert not pointers.overlap(copied, x) and bool((copied == x[1:]).all())
    assert pointers.output("out", x, dtype, (8, 8)) is x
    with pytest.raises(ValueError, match="not C-contiguous"):
        pointers.output("out", x.T, dtype, (8, 8))
    empty = cupy.empty((0, 3), dtype)
    assert pointers.operand("x", empty) is empty


def test_what_the_driver_refuses_is_one_sentence_and_the_next_launch_runs(cupy, unit):
    x = cupy.zeros(100, np.float32)
    add = kernel(unit, "add")
    for number, launched in enumerate((add, lambda *arguments: add.bind(*arguments)()), 1):
        with pytest.raises(RuntimeError, match=r"^the kernel add asks for a grid of 1 x 65,536 x 1 blocks, which"):
            launched(Shape((1, 65536), 32), x, step(1, 100))
        with pytest.raises(RuntimeError, match=r"^the kernel add asks for 2000 threads a block"):
            launched(Shape((1,), 2000), x, step(1, 100))
        launched(Shape((4,), 32), x, step(1, 100))
        assert bool((x == number).all())


def test_a_kernel_has_all_shared_memory_of_a_block(cupy, unit):
    from spectile.core.device import describe

    x = cupy.zeros(32, np.float32)
    kernel(unit, "add", 2)(Shape((1,), 32, describe().shared_bytes), x, step(2, 32))
    assert bool((x == 2).all())


def test_a_damaged_image_is_compiled_anew(cupy, unit, tmp_path, monkeypatch):
    x = cupy.zeros(32, np.float32)
    kernel(unit, "add")(Shape((1,), 32), x, step(1, 32))
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    inner = compile._load.__wrapped__  # as in another process
    monkeypatch.setattr(compile, "_load", inner)
    assert unit.module().get_function("add").ptr
    assert len(path.read_bytes()) == len(whole)
