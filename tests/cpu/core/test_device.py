"""The device module on a machine without a GPU: it answers, and says why in one sentence."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import spectile
from spectile.core import arrays, device, devices, memory


def test_importing_needs_no_cupy() -> None:
    code = "import sys, spectile.core.device; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


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
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 24))


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


def test_memory_errors_name_what_needs_it_and_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy(free=1000)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_describe", device._describe.__wrapped__)
    memory.require_free(1024, "the matrix")  # 1,000 free and 24 in the pool
    with pytest.raises(MemoryError, match=r"the matrix needs 1,025 bytes .* NVIDIA H200 has 1,024 free"):
        memory.require_free(1025, "the matrix")
    with pytest.raises(MemoryError, match="the product needs 2,048 bytes"), memory.allocating("the product", 2048):
        raise cupy.cuda.memory.OutOfMemoryError
    with (
        pytest.raises(MemoryError, match="the inner"),
        memory.allocating("the outer", 1),
        memory.allocating("the inner", 2),
    ):
        raise MemoryError("std::bad_alloc")
    with pytest.raises(KeyError), memory.allocating("the product", 2048):
        raise KeyError


def test_host_memory_keeps_to_the_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = memory.host_free_bytes()
    assert 0 < everything < 2**50
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    groups = {"": ("max", 900, 0), "job": ("1000", 700, 100), "job/step": ("500", 400, 0)}
    for name, (limit, usage, cache) in groups.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "memory.max").write_text(f"{limit}\n")
        (tmp_path / name / "memory.current").write_text(f"{usage}\n")
        (tmp_path / name / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    (tmp_path / "memory/old").mkdir(parents=True)
    (tmp_path / "memory/old/memory.limit_in_bytes").write_text("300\n")
    (tmp_path / "memory/old/memory.usage_in_bytes").write_text("10\n")
    (tmp_path / "memory/old/memory.stat").write_text("total_inactive_file 5\n")
    listing = tmp_path / "cgroup"
    listing.write_text("4:memory:/old\n1:cpu:/\n0::/job/step\n")
    assert sorted(memory._cgroup_bytes(listing)) == [100, 295, 400]
    listing.write_text("0::/job/gone\n")  # a name of another namespace: the groups above it count
    assert sorted(memory._cgroup_bytes(listing)) == [400]
    monkeypatch.setattr(memory, "_cgroup_bytes", lambda listing: iter([4096]))
    assert memory.host_free_bytes() == 4096
    with pytest.raises(MemoryError, match="the matrix needs 4,097 bytes of memory and 4,096 are free"):
        memory.require_host_free(4097, "the matrix")


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
