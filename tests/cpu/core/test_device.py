"""The device module on a machine without a GPU: it answers, and says why in one sentence."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import spectile
from spectile.core import arrays, device, devices


def test_importing_needs_no_cupy() -> None:
    code = "import sys, spectile.core.device; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_reason_and_error_agree() -> None:
    reason = device.refusal()
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

    class OutOfMemoryError(MemoryError):
        pass

    properties = {"name": b"NVIDIA H200", "major": major, "minor": 0}
    properties |= {"multiProcessorCount": 132, "l2CacheSize": 60 << 20}
    attributes = {"MaxThreadsPerMultiProcessor": 2048, "MaxSharedMemoryPerMultiprocessor": 233472}
    attributes |= {"MemoryClockRate": 3201000, "GlobalMemoryBusWidth": 6144, "SingleToDoublePrecisionPerfRatio": 2}
    runtime = SimpleNamespace(
        **{f"cudaDevAttr{name}": value for name, value in attributes.items()},
        deviceGetAttribute=lambda attribute, index: attribute,
        getDevice=lambda: 0,
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
    pool = SimpleNamespace(free_bytes=lambda: 24, used_bytes=lambda: 100, get_limit=lambda: 0)
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)


@pytest.mark.parametrize(
    ("cupy", "reason"),
    [
        (fake_cupy(), None),
        (fake_cupy(count=0), "no CUDA device was found"),
        (fake_cupy(major=7), "need compute capability 8.0 or later, and NVIDIA H200 has 7.0"),
        (fake_cupy(error="cudaErrorInsufficientDriver: too old"), "driver is too old for this CuPy"),
        (fake_cupy(error="cudaErrorInsufficientDriver", driver=0), "no CUDA driver or device was found"),
        (None, "pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]'"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, cupy: object, reason: str | None) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    monkeypatch.setattr(device, "unavailable_reason", device.unavailable_reason.__wrapped__)
    monkeypatch.setattr(device, "_used_cuda", False)
    found = device.refusal()
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
    monkeypatch.setattr(device, "refusal", lambda: None if found else "no CUDA device was found")
    if isinstance(chosen, str):
        assert device.choose_backend(backend, on_gpu) == chosen
    else:
        with pytest.raises(type(chosen), match=str(chosen)):
            device.choose_backend(backend, on_gpu)


def test_each_device_of_a_host_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two models: what is known of one is not taken for the other."""
    cupy, current = fake_cupy(count=2), [0]
    first = cupy.cuda.runtime.getDeviceProperties(0)
    models = [first, first | {"name": b"NVIDIA A100", "major": 8, "sharedMemPerBlockOptin": 166912}]
    cupy.cuda.runtime.getDevice = lambda: current[0]
    cupy.cuda.runtime.getDeviceProperties = lambda index: models[index]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for name in ("_describe", "_actual_arch"):
        monkeypatch.setattr(device, name, functools.cache(getattr(device, name).__wrapped__))
    seen = []
    for current[0] in (0, 1, 0):
        seen.append((device.describe().name, device.describe().arch, device.actual_arch()))
    hopper, ampere = ("NVIDIA H200", "sm_90", "sm_90"), ("NVIDIA A100", "sm_80", "sm_80")
    assert seen == [hopper, ampere, hopper]


def test_a_device_that_is_refused_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(major=7))
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    monkeypatch.setattr(device, "unavailable_reason", lambda: None)
    device._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="computing on the CPU: the kernels need compute capability 8.0 or later"):
        assert device.choose_backend("auto") == "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.choose_backend("auto") == "cpu"
    with pytest.raises(RuntimeError, match="copies them there"):
        device.choose_backend("auto", on_gpu=True)
    found = spectile.show_config(mode="dicts")
    assert found is not None and found["backend"] == "cpu" and "cuda" not in found["rates"]
    assert "compute capability 8.0" in found["cuda"]["unavailable"] and found["cuda"]["device"]["name"]


def test_a_forked_child_does_not_take_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_used_cuda", True)
    child = os.fork()
    if child == 0:
        reason = device.refusal() or ""
        os._exit(0 if "forked" in reason and device.choose_backend("auto") == "cpu" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert "forked" not in (device.refusal() or "")


def test_a_device_can_be_described_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    monkeypatch.setenv("SPECTILE_DEVICE", "RTX 4090")
    described = device.describe()
    assert (described.arch, described.shared_bytes, described.fast_fp64) == ("sm_89", 99 * 1024, False)
    assert described.memory_bytes == 2**37 and device.actual_arch() == "sm_90"
    monkeypatch.setenv("SPECTILE_DEVICE", "RTX 9999")
    with pytest.raises(ValueError, match="choose one of A100, A10"):
        device.describe()


@pytest.mark.parametrize("name", devices.TABLE)
def test_table_of_devices_is_plausible(name: str) -> None:
    one = devices.TABLE[name]
    assert one.compute_capability >= device.OLDEST and 40 <= one.multiprocessors <= 200
    assert one.shared_bytes < one.multiprocessor_shared_bytes <= 228 * 1024 and one.threads in (1536, 2048)
    assert one.fast_fp64 is (one.compute_capability in ((8, 0), (9, 0), (10, 0)))


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


def test_dlpack_results_go_back_to_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exporter:
        pass

    for module, imported in (("torch._tensor", "torch"), ("jaxlib.xla", "jax.numpy")):
        Exporter.__module__ = module
        library = SimpleNamespace(from_dlpack=object())
        monkeypatch.setitem(sys.modules, module.partition(".")[0], SimpleNamespace())
        monkeypatch.setitem(sys.modules, imported, library)
        assert arrays._dlpack_importer("a", Exporter()) is library.from_dlpack
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    Exporter.__module__ = "torch._tensor"
    with pytest.raises(TypeError, match="has no from_dlpack"):
        arrays._dlpack_importer("a", Exporter())
