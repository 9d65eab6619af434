"""What a system hands to the measuring loop: a problem, its methods, and the check of each.

A *case* is one row of a run sheet (``config/<paper>.tsv``).  ``cases.<paper>.build.build(row, context)`` turns
it into a :class:`Problem`; ``spectile-study measure`` checks every method against the float64 reference, times all of
them interleaved in one process, and writes one record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Value = bool | int | float | str | Sequence[float] | Sequence[int] | Sequence[str] | None
Clock = Literal["wall", "calls", "events", "graph", "external", "none"]


@dataclass(frozen=True)
class Context:
    """Where and how a case is measured.

    Attributes
    ----------
    device : {"cpu", "cuda"}
        The backend that this run measures; on ``"cuda"`` the CPU methods are left out unless the row asks for them.
    resources : Path
        Folder with the fetched and generated inputs.
    seed : int
        Seed of every random input of the case.
    threads : int
        Threads given to ours and to the vendor's CPU code alike.
    study : Path
        Folder of the study, whose ``config`` holds the sheets; a workflow may work in another one.
    """

    device: Literal["cpu", "cuda"]
    resources: Path
    seed: int
    threads: int
    study: Path = Path()


@dataclass
class Method:
    """One method of a case: ours, a variant of ours, or the vendor's.

    Attributes
    ----------
    name : str
        snake_case, the same across cases, the value of the column ``method``.
    run : callable
        One timed call.  Inputs and work space are captured; the return value goes to `check`.
    check : callable
        ``check(result) -> {"error_fro_rel": ..., ...}``: errors against the float64 reference.  Called on the result of
        an untimed call whose output was poisoned beforehand.
    limits : mapping
        Largest allowed value of each error; an error above its limit, or NaN, marks the method ``failed``.
    flops, bytes : float or None
        Work in floating-point operations and the fewest bytes moved through memory, for one call.
    memory_bytes : int or None
        Peak device memory that the method needs beyond its inputs.
    clock : {"wall", "calls", "events", "graph", "external", "none"}
        ``wall`` for CPU code and for GPU solvers (synchronised), ``calls`` for calls of a GPU function one after
        another with one synchronisation at their end (throughput, the host's work included), ``events`` for CUDA
        kernels, ``graph`` for CUDA-graph replay, ``external`` when `run` returns ``(result, seconds)`` itself, ``none``
        when only values are wanted.
    values : callable or None
        ``values(result) -> {name: value}``: what the method found besides time (valid ratio, counts, short curves);
        becomes the columns ``v_<name>``.
    prepare : callable or None
        Called untimed before every call of `run` (restore an overwritten input, poison an output).
    once : bool
        Whether the call for the check is the only one, and its wall time the sample: of calls of many seconds, which
        leave nothing to warm up.
    time_limit_s : float or None
        A method over its limit is recorded as failed and the others go on.
    """

    name: str
    run: Callable[[], Any]
    check: Callable[[Any], Mapping[str, float]]
    limits: Mapping[str, float]
    flops: float | None = None
    bytes: float | None = None
    memory_bytes: int | None = None
    clock: Clock = "wall"
    values: Callable[[Any], Mapping[str, Value]] | None = None
    prepare: Callable[[], None] | None = None
    once: bool = False
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Skipped:
    """A method that this case or machine cannot measure, and why (one sentence, shown in the empty slot)."""

    name: str
    reason: str


class InputAbsent(FileNotFoundError):
    """A case whose input is absent: it is skipped with this sentence, but for the methods that need none of it.

    Attributes
    ----------
    methods : list of Method
        What can be said without the input.
    """

    def __init__(self, message: str, methods: Sequence[Method] = ()) -> None:
        super().__init__(message)
        self.methods = list(methods)


@dataclass
class Problem:
    """One case, ready to be measured.

    Attributes
    ----------
    methods : list of Method or Skipped
        All methods of the case, ours and the vendor's: they are interleaved in rounds.
    inputs : mapping
        sha256 of each input by name (``spectile_study.bench.provenance.digest_array``).
    values : mapping
        What belongs to the case and not to a method; becomes ``v_<name>`` in every row of the case.
    """

    methods: list[Method | Skipped]
    inputs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
