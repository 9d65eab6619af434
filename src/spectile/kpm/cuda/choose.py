"""Which of the kernels takes a block of vectors, and whether it is padded or split for it: the cheapest by prediction.

Where a kernel's tables do not fit is known once its inspector has run: what it found is passed to :func:`ways` then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spectile.core.choice import Candidate, cheapest
from spectile.core.devices import Device
from spectile.kpm.cuda.boxed import when as boxed
from spectile.kpm.cuda.boxed.when import INSPECTOR
from spectile.kpm.cuda.csr import when as csr
from spectile.kpm.cuda.flat import when as flat
from spectile.kpm.cuda.problem import Problem, enqueued
from spectile.kpm.cuda.sliced import when as sliced
from spectile.kpm.cuda.staged import when as staged

#: What an inspector found of a kernel and a width: seconds of a step beyond its cost, None where its tables do not fit.
Found = Mapping[tuple[str, int], float | None]

_KERNELS = {"csr": csr, "flat": flat, "sliced": sliced, "staged": staged, "boxed": boxed}
#: Columns beyond the vectors that a part has at most.
MOST_PADDED = 31
# Widths after which a block may be split.
_SPLITS = (64, 32, 16, 8)


class Part(NamedTuple):
    """Vectors that go together: the kernel's name, how many they are, and how many columns their block has."""

    kernel: str
    vectors: int
    width: int


class Way(NamedTuple):
    """One way to take a block: what it is predicted to cost, and its parts."""

    candidate: Candidate
    parts: tuple[Part, ...]


def ways(problem: Problem, device: Device, found: Found) -> list[Way]:
    """Return every kernel at its best width for R vectors, and the best two parts where a step takes long enough."""
    return list(_ways(problem, device, tuple(sorted(found.items()))))


@functools.lru_cache(maxsize=1024)
def _ways(problem: Problem, device: Device, told: tuple[tuple[tuple[str, int], float | None], ...]) -> tuple[Way, ...]:
    found = dict(told)
    single = [_best(name, problem, device, found) for name in _KERNELS]
    if problem.vectors == 1 or min(_seconds(way.candidate) for way in single) <= enqueued(device):
        return tuple(single)
    return (*single, *_splits(problem, device, found))


def cheapest_way(problem: Problem, device: Device, found: Found) -> Way:
    """Return the cheapest way; the logger ``spectile.kpm`` is told."""
    listed = ways(problem, device, found)
    best = cheapest("kpm", [way.candidate for way in listed])
    return next(way for way in listed if way.candidate is best)


def choose(problem: Problem, device: Device, found: Found) -> tuple[Part, ...]:
    """Return the parts of the cheapest way."""
    return cheapest_way(problem, device, found).parts


@functools.lru_cache(maxsize=1024)
def repays(problem: Problem, device: Device) -> bool:
    """Return whether looking for groups can pay: where the call's steps have so much time beyond their launches."""
    one = min(_seconds(_best(name, problem, device, {}).candidate) for name in _KERNELS)
    return problem.steps * (one - enqueued(device)) > INSPECTOR


def _splits(problem: Problem, device: Device, found: Found) -> Iterator[Way]:
    for first in _SPLITS:
        if first >= problem.vectors:
            continue
        halves = [
            min(
                (_best(name, problem._replace(vectors=part), device, found) for name in _KERNELS),
                key=lambda way: _seconds(way.candidate),
            )
            for part in (first, problem.vectors - first)
        ]
        total = sum(_seconds(way.candidate) for way in halves)
        name = " + ".join(way.candidate.kernel for way in halves)
        why = f"{first} and {problem.vectors - first} vectors"
        yield Way(Candidate(name, total, why), tuple(part for way in halves for part in way.parts))


def _seconds(candidate: Candidate) -> float:
    return float("inf") if candidate.seconds is None else candidate.seconds


def _best(name: str, problem: Problem, device: Device, found: Found) -> Way:
    """Return a kernel at its best width; the why of the last that it refuses where it takes none."""
    kernel, vectors = _KERNELS[name], problem.vectors
    best, why = None, "one vector"
    for width in kernel.widths(problem):
        wide = problem._replace(vectors=width)
        beyond = found.get((name, width), 0.0)
        refused = "its tables do not fit" if beyond is None else kernel.applies(wide, device)
        if refused or beyond is None:
            why = refused
            continue
        seconds = kernel.cost(wide, device) + beyond
        if best is None or seconds < best[0]:
            best = seconds, width
    if best is None:
        return Way(Candidate(name, None, why), ())
    seconds, width = best
    told = f"{vectors} vectors" + (f" in {width} columns" if width > vectors else "")
    return Way(Candidate(name, seconds, told), (Part(name, vectors, width),))
