"""The device module on a machine without a GPU: it answers, and says why in one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import spectile
from spectile.core import arrays, device, memory


def test_importing_needs_no_cupy() -> None:
    code = "import sys, spectile.core.device; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_reason_and_error_agree() -> None:
    reason = device.unavailable_reason()
    assert device.available() == (reason is None)
    if reason is None:
        device.require_device()
    else:
        with pytest.raises(RuntimeError, match='backend="cpu"'):
            device.require_device()


def test_host_arrays_are_not_on_the_device() -> None:
    assert not arrays.on_device(np.zeros(3))
    assert not arrays.on_device([1.0])


@pytest.mark.parametrize(("kind", "there"), [(1, False), (2, True), (3, False), (13, True)])
def test_dlpack_tells_device_memory_from_pinned_memory(kind: int, there: bool) -> None:
    assert arrays.on_device(SimpleNamespace(__dlpack_device__=lambda: (kind, 0))) is there


class FakeError(Exception):
    pass


def fake_cupy(
    count: int = 1, error: str = "", driver: int = 13000, free: int = 1000, major: int = 9
) -> SimpleNamespace:
    """Return what `device` asks of CuPy, of a machine with `count` devices or a driver that fails."""

    def device_count() -> int:
        if error:
            raise FakeError(error)
        return count

    class OutOfMemoryError(Exception):
        pass

    properties = {"name": b"NVIDIA H200", "major": major, "minor": 0}
    properties |= {"multiProcessorCount": 132, "l2CacheSize": 60 << 20}
    runtime = SimpleNamespace(
        CUDARuntimeError=FakeError,
        getDeviceCount=device_count,
        driverGetVersion=lambda: driver,
        getDeviceProperties=lambda index: properties | {"totalGlobalMem": 2**37, "sharedMemPerBlockOptin": 232448},
        memGetInfo=lambda: (free, 2**37),
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda: SimpleNamespace(id=0),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 24))


@pytest.mark.parametrize(
    ("cupy", "reason"),
    [
        (fake_cupy(), None),
        (fake_cupy(count=0), "no CUDA device was found"),
        (fake_cupy(major=7), "compute capability 8.x, 9.x, 10.x, and NVIDIA H200 has 7.0"),
        (fake_cupy(error="cudaErrorInsufficientDriver: too old"), "driver is too old for this CuPy"),
        (fake_cupy(error="cudaErrorInsufficientDriver", driver=0), "no CUDA driver or device was found"),
        (None, "install the extra cuda12 or cuda13"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, cupy: object, reason: str | None) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    found = device.unavailable_reason.__wrapped__()
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("backend", "on_gpu", "found", "chosen"),
    [
        ("auto", False, True, "cuda"),
        ("auto", False, False, "cpu"),
        ("auto", True, True, "cuda"),
        ("cpu", False, True, "cpu"),
        ("cuda", False, True, "cuda"),
        ("cuda", False, False, RuntimeError('no CUDA device was found; use backend="cpu"')),
        ("cpu", True, True, ValueError("copy them to the host")),
        ("tpu", False, True, ValueError("backend = 'tpu' is unknown")),
    ],
)
def test_backend_is_chosen_or_refused(
    monkeypatch: pytest.MonkeyPatch, backend: str, on_gpu: bool, found: bool, chosen: str | Exception
) -> None:
    monkeypatch.setattr(device, "unavailable_reason", lambda: None if found else "no CUDA device was found")
    if isinstance(chosen, str):
        assert device.choose_backend(backend, on_gpu) == chosen
    else:
        with pytest.raises(type(chosen), match=str(chosen)):
            device.choose_backend(backend, on_gpu)


@pytest.mark.skipif(device.available(), reason="a CUDA device is here")
@pytest.mark.parametrize(
    "call",
    [
        lambda a: spectile.spamm(a, a, tau=0.0, backend="cuda"),
        lambda a: spectile.spgemm(csr_array(a), csr_array(a), backend="cuda"),
        lambda a: spectile.eigh(a, backend="cuda"),
        lambda a: spectile.kpm_dos(csr_array(a), 8, 1, backend="cuda"),
    ],
)
def test_cuda_without_a_device_is_one_sentence(call: Callable[[np.ndarray], object]) -> None:
    with pytest.raises(RuntimeError, match='use backend="cpu"'):
        call(np.eye(4))


def test_memory_errors_name_what_needs_it_and_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy(free=1000)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    memory.require_free(1024, "the matrix")  # 1,000 free and 24 in the pool
    with pytest.raises(MemoryError, match=r"the matrix needs 1,025 bytes .* NVIDIA H200 has 1,024 free"):
        memory.require_free(1025, "the matrix")
    with pytest.raises(MemoryError, match="the product needs 2,048 bytes"), memory.allocating("the product", 2048):
        raise cupy.cuda.memory.OutOfMemoryError
    with pytest.raises(KeyError), memory.allocating("the product", 2048):
        raise KeyError


def test_dlpack_results_go_back_to_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exporter:
        pass

    for module, imported in (("torch._tensor", "torch"), ("jaxlib.xla", "jax.numpy")):
        Exporter.__module__ = module
        library = SimpleNamespace(from_dlpack=object())
        monkeypatch.setitem(sys.modules, module.partition(".")[0], SimpleNamespace())
        monkeypatch.setitem(sys.modules, imported, library)
        assert arrays._dlpack_importer(Exporter()) is library.from_dlpack
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    Exporter.__module__ = "torch._tensor"
    with pytest.raises(TypeError, match="has no from_dlpack"):
        arrays._dlpack_importer(Exporter())
