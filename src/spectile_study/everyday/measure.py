"""One draw measured: checked, timed in rounds beside its rivals, checked again; and how long the device was at work.

A sample is the wall clock of one public call, from before it until its result is there.  On a GPU the second-level
cache is overwritten before each call, and the clocks are warm; on a CPU short calls are repeated within a sample.
Before a check, memory that the result may be given is filled with NaN.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile import explain
from spectile_study.bench import provenance, reached, record, stats
from spectile_study.bench.case import Method, Skipped
from spectile_study.bench.measure.checks import check_method, raise_if_device_lost
from spectile_study.bench.timing import FLUSH_BYTES, Plan, interleave
from spectile_study.everyday import evd, kpm, spamm, tsparse
from spectile_study.everyday.problem import Drawn, Place, TooMuch, version
from spectile_study.everyday.strata import Strata

#: A system's module: ``draw``, ``told``, ``cost`` and ``build``.
SYSTEMS: Mapping[str, Any] = {"spamm": spamm, "tsparse": tsparse, "evd": evd, "kpm": kpm}
#: The device is kept at work so long before the rounds of a draw.
WARM_S = 0.1
#: Bytes that are copied for the rate of the memory: larger than any cache, smaller than any device.
COPIED = {"cpu": 2**27, "cuda": 2**30}
#: Libraries that draws are measured with, whose versions a row holds beside those of its record.
LIBRARIES = ("sparse-dot-mkl", "mkl", "python-graphblas", "suitesparse-graphblas")

Announce = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What bounds a draw: seconds of a call, by a rough estimate, and the place's memory."""

    call_s: float


def measure(
    system: str,
    index: int,
    seed: int,
    place: Place,
    limits: Limits,
    *,
    announce: Announce = lambda name: None,
    left_out: Mapping[str, str] | None = None,
    plan: Plan,
) -> dict[str, Any]:
    """Return the row of one draw.

    Parameters
    ----------
    system : {"spamm", "tsparse", "evd", "kpm"}
    index, seed : int
        Number of the draw, and seed of the recording.
    place : Place
        Where it is computed.
    limits : Limits
    announce : callable
        Told the name of a method before each step that may take long, and "" while the problem is made.
    left_out : mapping
        Methods that ended an earlier process, with the reason: they are not called again.
    plan : Plan
        How often each method is called.

    Returns
    -------
    dict
        Columns of :mod:`spectile_study.everyday.frame`, those of provenance excepted.  Its ``status`` is ``ok``;
        ``skipped`` where the draw is beyond the limits; ``failed`` where ours fails, or is wrong.
    """
    module, row = SYSTEMS[system], described(system, index, seed)
    params = module.draw(Strata(seed, system, index))
    cost = module.cost(params)
    try:
        if cost.memory_bytes > place.memory_bytes:
            raise TooMuch(f"it takes about {cost.memory_bytes:.2g} bytes, more than the limit")
        if cost.seconds(place) > limits.call_s:
            raise TooMuch(f"a call takes about {cost.seconds(place):.2g} s, more than the limit")
        announce("")
        drawn: Drawn = module.build(params, Strata(seed, system, index).numbers(), place)
    except TooMuch as error:
        return row | {"status": "skipped", "reason": str(error)}
    except MemoryError as error:
        return row | {"status": "skipped", "reason": f"its memory is not to be had: {error}"}
    return row | _measured(drawn, system, place, announce, left_out or {}, plan)


def described(system: str, index: int, seed: int) -> dict[str, Any]:
    """Return the columns that say which draw a row is of."""
    params = SYSTEMS[system].draw(Strata(seed, system, index))
    row = {"system": system, "index": index, "seed": seed, "draw": SYSTEMS[system].told(params)}
    return row | {f"p_{name}": value for name, value in params.items()}


def _measured(
    drawn: Drawn, system: str, place: Place, announce: Announce, left_out: Mapping[str, str], plan: Plan
) -> dict[str, Any]:
    poison = functools.partial(poisoned, drawn.result_bytes, place)
    row: dict[str, Any] = {
        "call": drawn.call, "check": drawn.check, "error_asked": drawn.asked, "error_limit": drawn.ours.limits["error"],
    }  # fmt: skip
    ready: list[Method] = []
    told: list[str] = []
    announce(drawn.ours.name)
    with Listening(system) as heard:
        result: list[Any] = []
        first, _ = check_method(_keeping(drawn.ours, result, poison), place.device)
    row["error_found"] = first.get("errors", {}).get("error")
    if first["status"] != "ok":
        return row | {"status": "failed", "reason": first["reason"]}
    row["method"] = drawn.taken(result[0]) if result else ""
    result.clear()
    row["method"] = " ".join(filter(None, (row["method"], heard.chosen() or _explained(drawn))))
    ready.append(drawn.ours)
    rivals = [each.name for each in drawn.rivals]
    for rival in [*drawn.others, *drawn.rivals]:
        if isinstance(rival, Skipped) or rival.name in left_out:
            told.append(f"{rival.name}: {rival.reason if isinstance(rival, Skipped) else left_out[rival.name]}")
            continue
        announce(rival.name)
        found, _ = check_method(dataclasses.replace(rival, prepare=poison), place.device)
        if found["status"] == "ok":
            ready.append(rival)
        else:
            told.append(f"{rival.name}: {found['reason']}")
    if place.device == "cuda":
        _warm(place)
        ready = [dataclasses.replace(each, prepare=_flush) for each in ready]
    samples: dict[str, list[float]] = {}
    at_work = drawn.ours.name

    def begin(name: str) -> None:
        nonlocal at_work
        at_work = name
        announce(name)

    while not samples:
        try:
            samples = interleave(ready, plan, begin)
        except Exception as error:  # the others are timed again without it
            raise_if_device_lost(place.device, error)
            why = f"failed while timed: {type(error).__name__}: {error}"
            if at_work == drawn.ours.name:
                return row | {"status": "failed", "reason": why}
            told.append(f"{at_work}: {why}")
            ready = [each for each in ready if each.name != at_work]
    announce(drawn.ours.name)
    again, _ = check_method(dataclasses.replace(drawn.ours, prepare=poison), place.device)
    if again["status"] != "ok":
        return row | {"status": "failed", "reason": f"after the timed calls: {again['reason']}"}
    announce("")
    return row | _timed(drawn, samples, [name for name in rivals if name in samples], told, place)


def _timed(
    drawn: Drawn, samples: Mapping[str, list[float]], rivals: list[str], told: list[str], place: Place
) -> dict[str, Any]:
    """Return the columns that follow from the samples."""
    ours = samples[drawn.ours.name]
    seconds = {name: float(np.median(each)) for name, each in samples.items()}
    row: dict[str, Any] = {"status": "ok", "seconds": seconds[drawn.ours.name], "samples_s": list(ours)}
    row["missing"] = "; ".join(told) or None
    row |= {f"s_{name}": value for name, value in seconds.items() if name != drawn.ours.name}
    row |= {f"w_{name}": float(value) for name, value in drawn.work().items()}
    if rivals:
        best = min(rivals, key=lambda name: seconds[name])
        ratio = stats.paired_ratio(samples[best], ours)
        row |= {
            "rival": best, "rival_s": seconds[best], "rival_samples_s": list(samples[best]),
            "ratio": ratio.median, "ratio_lo": ratio.lo, "ratio_hi": ratio.hi,
        }  # fmt: skip
    allowed = drawn.allowed and drawn.allowed(seconds | {"copy": copy_rate(place)})
    row["allowed_share"] = None if not allowed else allowed / seconds[drawn.ours.name]
    row["device_share"] = device_share(drawn.ours, seconds[drawn.ours.name], place)
    if place.device == "cuda":
        row["s_launch"] = launch_seconds(place)
    return row


def _keeping(method: Method, result: list[Any], poison: Callable[[], None]) -> Method:
    """Return a method that notes its last result."""

    def run() -> Any:
        result[:] = [method.run()]
        return result[0]

    return dataclasses.replace(method, run=run, prepare=poison)


def poisoned(size: int, place: Place) -> None:
    """Fill free memory, which a result of so many bytes may be given, with bytes that are NaN in every type."""
    for _ in range(2):
        block = place.xp.empty(max(1, size), np.uint8)
        block.fill(0xFF)
        del block


def _flush() -> None:
    import cupy

    _scratch().fill(1)
    cupy.cuda.Device().synchronize()


@functools.cache
def _scratch() -> Any:
    import cupy

    return cupy.empty(FLUSH_BYTES // 4, cupy.float32)


def _warm(place: Place) -> None:
    """Keep the device at work until its clocks are up."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        _flush()


@functools.cache
def copy_rate(place: Place) -> float:
    """Return the bytes a second, read and written, of a copy that no cache holds."""
    source = place.xp.ones(COPIED[place.device] // 8)
    target = place.xp.empty_like(source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        place.xp.copyto(target, source)
        place.wait(target)
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(times)


@functools.cache
def launch_seconds(place: Place) -> float:
    """Return the median wall clock of a call that launches one kernel of one entry, timed as the calls of draws are."""
    word = place.xp.empty(1)

    def run() -> Any:
        word.fill(1)
        return place.wait(word)

    samples = interleave([Method("launch", run, lambda _: {}, {}, prepare=_flush)], Plan(15, 2, 1.0))
    return float(np.median(samples["launch"]))


def device_share(method: Method, seconds: float, place: Place) -> float | None:
    """Return the time that the device works in a call over the call's wall clock, by PyTorch's profiler.

    None on a CPU, and where PyTorch with CUDA, which reads the device's own clock, is not installed.
    """
    if place.device != "cuda" or version("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    profiler: Any = importlib.import_module("torch.profiler")
    torch.zeros(1, device="cuda")
    _flush()
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        method.run()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return min(1.0, busy(spans) * 1e-6 / seconds) if spans else None


def busy(spans: list[tuple[float, float]]) -> float:
    """Return how long at least one of the spans lasts.

    Examples
    --------
    >>> busy([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, end = 0.0, -np.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return float(total)


class Listening(logging.Handler):
    """What the library says of its choices while a call runs."""

    def __init__(self, system: str) -> None:
        super().__init__(logging.DEBUG)
        package = {"spamm": "nearsparse"}.get(system, system)
        self.logger, self.lines = logging.getLogger(f"spectile.{package}"), list[str]()

    def emit(self, entry: logging.LogRecord) -> None:
        """Note a line."""
        self.lines.append(entry.getMessage())

    def __enter__(self) -> Listening:
        self.before = self.logger.level
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.setLevel(self.before)
        self.logger.removeHandler(self)

    def chosen(self) -> str:
        """Return the kernels that were said to be taken, in order, each once."""
        words = [line.partition(" of ")[0] for line in self.lines if " of " in line]
        return " + ".join(dict.fromkeys(words))


def _explained(drawn: Drawn) -> str:
    """Return the cheapest candidate of the call by ``spectile.explain``; "" where it has none to tell."""
    arguments, options = drawn.arguments
    try:
        listed = explain(drawn.function, *arguments, **options)
    except (TypeError, ValueError, MemoryError):
        return ""
    possible = [one.kernel for one in listed if one.seconds is not None]
    return possible[0] if possible else ""


def sources(system: str, device: str, threads: int, seed: int, plan: Plan) -> dict[str, Any]:
    """Return what made a row: the columns of provenance."""
    digest = reached.digest_of_all((f"spectile_study.everyday.{system}",), "", device)
    facts = provenance.provenance({"digest": digest}, device, threads, seed, plan._asdict())
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = record.made_by({"provenance": facts, "measured_at": now})
    versions = facts["libraries"] | {name: v for name in LIBRARIES if (v := version(name))}
    return {
        "device": provenance.device_name(device),
        **{name: facts[name] for name in ("commit", "dirty", "digest")},
        **{f"run_{name}": value for name, value in made.items()},
        "run_libraries": " ".join(f"{name}={v}" for name, v in sorted(versions.items())),
    }
