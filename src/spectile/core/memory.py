"""Free memory of the device and of the host, and errors that name the bytes if there is too little."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spectile.core.device import describe

_CGROUPS = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the device memory that an allocation can still get: the driver's free bytes and CuPy's idle pool."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free + cupy.get_default_memory_pool().free_bytes())


def require_free(memory_bytes: int, what: str) -> None:
    """Raise MemoryError, with the bytes, if the device has fewer than `memory_bytes` free for `what`."""
    if memory_bytes > free_bytes():
        raise _too_little(memory_bytes, what)


@contextmanager
def allocating(what: str, memory_bytes: int) -> Iterator[None]:
    """Turn an allocation that fails inside the block into a MemoryError that names `what` and its bytes.

    CuPy's own allocations raise a MemoryError with bytes of their own, and those of Thrust, below its sorts, one that
    says "std::bad_alloc".
    """
    try:
        yield
    except _NamedMemoryError:
        raise
    except MemoryError as error:
        raise _too_little(memory_bytes, what) from error


class _NamedMemoryError(MemoryError):
    """An error that already names what needs how many bytes."""


def _too_little(memory_bytes: int, what: str) -> MemoryError:
    return _NamedMemoryError(
        f"{what} needs {memory_bytes:,} bytes of device memory and {describe().name} has {free_bytes():,} free: "
        'free other arrays, take a smaller problem, or use backend="cpu"'
    )


def host_free_bytes() -> int:
    """Return the host memory that this process can still get, within the limit of its container or job.

    The least of the system's available memory, what is left of each control group that the process is in (versions 1
    and 2), and of its own address space (``ulimit -v``).
    """
    free = [_system_bytes(), *_cgroup_bytes(Path("/proc/self/cgroup")), _address_space_bytes()]
    return min(size for size in free if size is not None)


def require_host_free(memory_bytes: int, what: str) -> None:
    """Raise MemoryError, with the bytes, if the host has fewer than `memory_bytes` free for `what`."""
    free = host_free_bytes()
    if memory_bytes > free:
        raise MemoryError(
            f"{what} needs {memory_bytes:,} bytes of memory and {free:,} are free: free other arrays, or take a "
            "smaller problem"
        )


def _system_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_bytes(listing: Path) -> Iterator[int]:
    """Yield what is left under each memory limit of the control groups that `listing` (``/proc/self/cgroup``) names."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            yield from _left(_CGROUPS, name, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _left(_CGROUPS / "memory", name, *files)


def _left(root: Path, name: str, limit_file: str, usage_file: str, cache: str) -> Iterator[int]:
    """Yield what is left in a control group and in those above it; pages of files that can be dropped are free."""
    group = root / name.strip("/")
    for folder in (group, *group.parents):
        try:
            limit = (folder / limit_file).read_text().strip()
            usage = int((folder / usage_file).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            limit = "max"
        if limit != "max":
            yield max(0, int(limit) - usage + int(statistics.get(cache, 0)))
        if folder == root:
            return


def _address_space_bytes() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, soft - pages * os.sysconf("SC_PAGE_SIZE"))
