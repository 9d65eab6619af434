"""Memory: what is free on the device and on the host, and one sentence with the bytes where it is too little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spectile.core.device import describe


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
    """Turn CuPy's out-of-memory error inside the block into a MemoryError that names `what` and its bytes."""
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise _too_little(memory_bytes, what) from error


def _too_little(memory_bytes: int, what: str) -> MemoryError:
    return MemoryError(
        f"{what} needs {memory_bytes:,} bytes of device memory and {describe().name} has {free_bytes():,} free: "
        'free other arrays, take a smaller problem, or use backend="cpu"'
    )
