"""What ranks of a communicator do together: none waits for one that has raised an error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def require_communicator(comm: Any, *methods: str) -> None:
    """Raise TypeError for what is no communicator, or lacks some of its methods."""
    if not all(hasattr(comm, method) for method in ("allgather", *methods)):
        raise TypeError("comm is no communicator: pass one of mpi4py, such as MPI.COMM_WORLD")


def on_every_rank(comm: Any, work: Callable[[], T]) -> T:
    """Return what ``work()`` returns here, which calls no other rank; where it raises on one rank, all of them raise.

    Otherwise the others would wait for that one in the next call that all of them make.  What is raised is the first
    rank's, with its number, in the nearest type that is made of a sentence.
    """
    if comm.size == 1:
        return work()
    result, error = None, None
    try:
        result = work()
    except Exception as raised:  # the others must hear of it, whatever it is
        error = raised
    for rank, told in enumerate(comm.allgather(error and (_kind(error), str(error)))):
        if told is not None:
            raise told[0](f"{told[1]} (rank {rank} of {comm.size})") from error
    return result  # type: ignore[return-value]


def _kind(error: Exception) -> type[Exception]:
    """Return the nearest type of an error that other processes find by its name and that a sentence alone makes."""
    for kind in type(error).__mro__:
        if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
            with contextlib.suppress(Exception):
                kind("")
                return kind
    return RuntimeError
