"""Many draws, each in a process that this one outlives, until there are enough or the time is over."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spectile_study.bench.measure.processes import die_with, kernel_cache
from spectile_study.bench.timing import Plan
from spectile_study.everyday import frame
from spectile_study.everyday.problem import RATES, Place

#: Seconds that a method may take before the process is ended: a compiler's work and a reference's are in them.
LONGEST_S = 300.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What bounds a recording, the keys of config/everyday.yaml.

    Attributes
    ----------
    systems : tuple of str
    draws : int
        Measured draws of each system after which it is done.
    minutes : float
        Time of each system after which no further draw begins.
    call_s : float
        Draws of which a call takes longer, by a rough estimate, are skipped.
    memory_share : float
        Of the device's memory, that a draw may take.
    threads : int
        Threads of ours and of the rivals on a CPU; on a GPU, of the host's libraries.
    rounds, warmup, rounds_s
        Of :class:`spectile_study.bench.timing.Plan`.
    seed : int or None
        None: the date, as 20261231.
    """

    systems: tuple[str, ...]
    draws: int
    minutes: float
    call_s: float
    memory_share: float
    threads: int
    rounds: int
    warmup: int
    rounds_s: float
    seed: int | None

    @property
    def plan(self) -> Plan:
        """How often each method of a draw is called."""
        return Plan(self.rounds, self.warmup, self.rounds_s)

    def seeded(self) -> int:
        """Return the seed: the one given, or today's."""
        return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")) if self.seed is None else self.seed


class Worker:
    """A process that measures draws, and is started again after one that ended it."""

    def __init__(self, device: str, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self._process: Any = None
        self._line: Any = None

    def measure(self, system: str, index: int, seed: int) -> dict[str, Any]:
        """Return the row of a draw; a method that ends the process, or hangs, is left out, ours fails by it."""
        left_out: dict[str, str] = {}
        while True:
            at_work, answer = self._ask(system, index, seed, left_out)
            if isinstance(answer, dict):
                return answer
            if at_work in ("", "spectile") or at_work in left_out:
                from spectile_study.everyday.measure import described

                what = "ours" if at_work == "spectile" else at_work or "making the problem"
                return described(system, index, seed) | {"status": "failed", "reason": f"{what} {answer}"}
            left_out[at_work] = answer

    def _ask(self, *order: Any) -> tuple[str, dict[str, Any] | str]:
        """Hand over a draw; return the method at work, and the row, or how the process ended."""
        if self._process is None:
            self._start()
        at_work = ""
        try:
            self._line.send(order)
            while self._line.poll(LONGEST_S):
                step = self._line.recv()
                if not isinstance(step, str):
                    return at_work, step
                at_work = step
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code, self._process = self._process.exitcode, None
            return (
                at_work,
                f"ended its process with {signal.Signals(-code).name if code and code < 0 else f'code {code}'}",
            )
        self.stop()
        return at_work, f"ran longer than {LONGEST_S:g} s"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        before = dict(os.environ)
        os.environ.update(dict.fromkeys(_THREADS, str(self.settings.threads)) | kernel_cache())
        try:
            self._process = context.Process(
                target=_serve, args=(theirs, os.getpid(), self.device, self.settings), daemon=True
            )
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(line: Any, parent: int, device: Any, settings: Settings) -> None:
    """Measure the draws that come over `line`, and answer with their rows."""
    die_with(parent)
    from spectile_study.bench.measure.checks import DeviceLost
    from spectile_study.everyday.measure import Limits, described, measure, sources

    place = place_of(device, settings.memory_share, settings.threads)
    while True:
        try:
            system, index, seed, left_out = line.recv()
        except EOFError:
            return
        try:
            row = measure(
                system, index, seed, place, Limits(settings.call_s),
                announce=line.send, left_out=left_out, plan=settings.plan,
            )  # fmt: skip
        except DeviceLost:  # the parent goes on in another process, without the method at work
            traceback.print_exc()
            os._exit(1)
        except Exception as error:  # a draw that cannot be made is a result, too: the next one goes on
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
            row = described(system, index, seed) | {"status": "failed", "reason": reason}
        line.send(
            row if row["status"] == "skipped" else row | sources(system, device, settings.threads, seed, settings.plan)
        )
        if device == "cuda":
            import cupy

            gc.collect()  # solvers and their work space lie in circles of closures
            cupy.get_default_memory_pool().free_all_blocks()


def place_of(device: Any, memory_share: float, threads: int) -> Place:
    """Return where this process computes, and by which memory and rates draws are left out."""
    if device == "cuda":
        import cupy

        return Place("cuda", int(memory_share * cupy.cuda.Device().mem_info[1]), RATES["cuda"])
    import psutil

    return Place("cpu", int(memory_share * psutil.virtual_memory().total), RATES["cpu"].of(threads))


def record(machine: str, device: str, settings: Settings, out: Path, say: Callable[[str], None] = print) -> None:
    """Measure draws and write the frame after each; one that is there, of the same machine and seed, is gone on with.

    Parameters
    ----------
    machine : str
        Name under which results are kept.
    device : {"cpu", "cuda"}
    settings : Settings
    out : Path
        The frame.
    say : callable
        Receives progress lines.

    Raises
    ------
    ValueError
        If `out` holds draws of another machine or seed, and the settings name one.
    """
    rows: list[Mapping[str, Any]] = []
    seed = settings.seeded()
    if out.exists():
        earlier = frame.read(out)
        rows = [{str(name): value for name, value in row.items()} for row in earlier.to_dict("records")]
        if settings.seed is None and rows:
            seed = int(rows[0]["seed"])  # begun yesterday
        if rows and (rows[0]["machine"], rows[0]["seed"]) != (machine, seed):
            raise ValueError(
                f"{out} holds draws of machine {rows[0]['machine']!r} with seed {rows[0]['seed']}: "
                "name another file, or move it"
            )
    worker = Worker(device, settings)
    try:
        for system in settings.systems:
            until = time.monotonic() + 60 * settings.minutes
            index = 1 + max((int(row["index"]) for row in rows if row["system"] == system), default=-1)
            measured = sum(row["system"] == system and row["status"] == "ok" for row in rows)
            while measured < settings.draws and time.monotonic() < until:
                row = worker.measure(system, index, seed) | {"machine": machine}
                rows.append(row)
                if row["status"] != "skipped":
                    frame.write(frame.made(rows), out)
                ratio = f", {row['rival']} takes {row['ratio']:.3g} times as long" if row.get("rival") else ""
                say(f"{system} {index}: {row['draw']}: {row['status']}{ratio or ' ' + str(row.get('reason') or '')}")
                measured += row["status"] == "ok"
                index += 1
    finally:
        worker.stop()
    if not rows:
        raise RuntimeError("no draw was begun: give more minutes")
    frame.write(frame.made(rows), out)
