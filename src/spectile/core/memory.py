"""Free memory of the device and of the host, and errors that name the bytes if there is too little."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spectile.core import replay
from spectile.core.device import describe

_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


def free_bytes() -> int:
    """Return the device memory that an allocation can still get: the driver's free bytes and CuPy's idle pool.

    A limit that the pool has been given (``CUPY_GPU_MEMORY_LIMIT``) counts, too.
    """
    import cupy

    pool, (free, _) = cupy.get_default_memory_pool(), cupy.cuda.runtime.memGetInfo()
    limit = pool.get_limit() or math.inf
    return int(max(0, min(free + pool.free_bytes(), limit - pool.used_bytes())))


def require_free(memory_bytes: int, what: str) -> None:
    """Raise MemoryError, with the bytes, if the device has fewer than `memory_bytes` free for `what`.

    What repeated calls keep for the next one is freed before that.
    """
    if memory_bytes > free_bytes():
        replay.drop()
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


#: Bytes of the host up to which it is not asked whether they are free.
UNASKED = 64 << 20


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
    and 2), and of its own limits (``ulimit -v`` and ``-d``).  What a system does not say, as macOS has no ``/proc``,
    limits nothing; where it says nothing at all, the result is ``sys.maxsize``.
    """
    known = [*_system_bytes(_PROC), *_cgroup_bytes(_PROC / "self/cgroup"), *_own_bytes(_PROC / "self/statm")]
    return min(known, default=sys.maxsize)


def require_host_free(memory_bytes: int, what: str) -> None:
    """Raise MemoryError, with the bytes, if the host has fewer than `memory_bytes` free for `what`.

    Up to `UNASKED` bytes the system is not asked, which takes as long as a small product.
    """
    if memory_bytes > UNASKED and memory_bytes > (free := host_free_bytes()):
        raise MemoryError(
            f"{what} needs {_amount(memory_bytes)} bytes of memory and {free:,} are free: free other arrays, or take "
            "a smaller problem"
        )


def _amount(memory_bytes: int) -> str:
    return f"{memory_bytes:,}" if memory_bytes < 10**18 else "more than 10**18"


def _text(path: Path) -> str:
    """Return what a file of the system says, and nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _system_bytes(proc: Path) -> Iterator[int]:
    """Yield the system's available memory, and what may still be promised where it promises no more than it has."""
    lines = (line.split() for line in _text(proc / "meminfo").splitlines())
    kib = {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
    pages = [name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in os.sysconf_names]
    if "MemAvailable:" in kib:
        yield 1024 * kib["MemAvailable:"]
    elif pages:
        yield os.sysconf(pages[0]) * os.sysconf("SC_PAGE_SIZE")
    if _text(proc / "sys/vm/overcommit_memory").strip() == "2" and {"CommitLimit:", "Committed_AS:"} <= kib.keys():
        yield max(0, 1024 * (kib["CommitLimit:"] - kib["Committed_AS:"]))


def _cgroup_bytes(listing: Path) -> Iterator[int]:
    """Yield what is left under each memory limit of the control groups that `listing` (``/proc/self/cgroup``) names."""
    for line in _text(listing).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            for limit in ("memory.max", "memory.high"):  # beyond the second it is slowed until it stands still
                yield from _left(_CGROUPS, name, limit, "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _left(_CGROUPS / "memory", name, *files)


def _left(root: Path, name: str, limit_file: str, usage_file: str, cache: str) -> Iterator[int]:
    """Yield what is left in a control group and in those above it; pages of files that can be dropped are free."""
    group = root / name.strip("/")
    for folder in (group, *group.parents):
        limit = _text(folder / limit_file).strip()
        if limit not in ("", "max"):  # most groups have none, and so no more files are read
            try:
                usage = int((folder / usage_file).read_text())
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield max(0, int(limit) - usage + int(statistics.get(cache, 0)))
            except (OSError, ValueError):
                pass
        if folder == root:
            return


def _own_bytes(statm: Path) -> Iterator[int]:
    """Yield what is left under this process' own limits: of its address space, and of its data."""
    import resource

    for kind, field in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            pages = [0, *map(int, _text(statm).split()[field : field + 1])][-1]
            yield max(0, soft - pages * os.sysconf("SC_PAGE_SIZE"))
