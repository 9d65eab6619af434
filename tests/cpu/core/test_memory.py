"""Free memory of the device and the host, as far as the system says something of it."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from spectile.core import device, memory

from .test_device import fake_cupy


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
    pool = cupy.get_default_memory_pool()
    for pool.get_limit, free in ((lambda: 600, 500), (lambda: 5000, 1024), (lambda: 50, 0)):  # 100 are in use
        assert memory.free_bytes() == free


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
    (tmp_path / "job/memory.high").write_text("800\n")  # beyond which it stands still
    assert sorted(memory._cgroup_bytes(listing)) == [200, 400]
    (tmp_path / "job/memory.stat").write_text("anon 1\n")  # which names no pages of files
    assert sorted(memory._cgroup_bytes(listing)) == [100, 300]
    (tmp_path / "job/memory.current").write_text("1001\n")  # what is above a limit that was lowered
    assert sorted(memory._cgroup_bytes(listing)) == [0, 0]
    read, read_text = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: read.append(path) or read_text(path))
    for name in ("job", "job/step"):
        (tmp_path / name / "memory.max").write_text("max\n")
    (tmp_path / "job/memory.high").write_text("max\n")
    assert sorted(memory._cgroup_bytes(listing)) == []
    assert len(read) == 1 + 2 * 3  # the listing, and two limits of each group that is there
    monkeypatch.setattr(memory, "_cgroup_bytes", lambda listing: iter([4096]))
    assert memory.host_free_bytes() == 4096
    memory.require_host_free(memory.UNASKED, "a matrix so small that nothing is asked")
    monkeypatch.setattr(memory, "UNASKED", 0)
    memory.require_host_free(4096, "the matrix")
    with pytest.raises(MemoryError, match="the matrix needs 4,097 bytes of memory and 4,096 are free"):
        memory.require_host_free(4097, "the matrix")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in place of ``/proc``, of a process without limits."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    for folder in ("self", "sys/vm"):
        (tmp_path / "proc" / folder).mkdir(parents=True)
    return tmp_path / "proc"


def test_the_system_says_what_it_has_and_what_it_promises(proc: Path) -> None:
    (proc / "meminfo").write_text("MemFree: 10 kB\nMemAvailable: 30 kB\nCommitLimit: 50 kB\nCommitted_AS: 45 kB\n")
    assert memory.host_free_bytes() == 30 * 1024
    for mode, free in (("0", 30), ("1", 30), ("2", 5)):
        (proc / "sys/vm/overcommit_memory").write_text(f"{mode}\n")
        assert memory.host_free_bytes() == free * 1024
    (proc / "meminfo").write_text("Unknown:\nMemAvailable: 30 kB\nCommitLimit: 50 kB\nOdd: word\n")
    assert memory.host_free_bytes() == 30 * 1024


def test_limits_of_the_process_count_less_what_it_has(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    (proc / "meminfo").write_text("MemAvailable: 9000000 kB\n")
    (proc / "self/statm").write_text("70 60 50 40 0 30 0\n")
    for limited, free in ((resource.RLIMIT_AS, 30), (resource.RLIMIT_DATA, 70)):
        monkeypatch.setattr(
            resource, "getrlimit", lambda kind, of=limited: (100 * page if kind == of else resource.RLIM_INFINITY, -1)
        )
        assert memory.host_free_bytes() == free * page
    (proc / "self/statm").write_text("101 60 50 40 0 101 0\n")
    assert memory.host_free_bytes() == 0
    (proc / "self/statm").unlink()
    assert memory.host_free_bytes() == 100 * page


def test_a_system_that_says_little_limits_little(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS, which has no /proc, and no number of available pages."""
    assert 0 < memory.host_free_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    names = {name: number for name, number in os.sysconf_names.items() if name != "SC_AVPHYS_PAGES"}
    monkeypatch.setattr(os, "sysconf_names", names)
    assert memory.host_free_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    del names["SC_PHYS_PAGES"]
    assert memory.host_free_bytes() == sys.maxsize
    memory.require_host_free(2**60, "the matrix")
