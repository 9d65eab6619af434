"""Many draws, each in a process that this one outlives, until there are enough or the time is over."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from spectile_study.bench.measure.processes import die_with, kernel_cache
from spectile_study.bench.timing import Plan
from spectile_study.everyday import frame
from spectile_study.everyday.problem import RATES, Place

#: Seconds that a method may take before the process is ended: a compiler's work and a reference's are in them.
LONGEST_S = 300.0
_ENVIRONMENT = threading.Lock()
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
    """A process that measures draws, on one GPU where it is named, and is started again after one that ended it."""

    def __init__(self, device: str, settings: Settings, gpu: str = "") -> None:
        self.device, self.settings, self.gpu = device, settings, gpu
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
            ended = f"ended its process with {signal.Signals(-code).name if code and code < 0 else f'code {code}'}"
            return at_work, ended
        self.stop()
        return at_work, f"ran longer than {LONGEST_S:g} s"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        own = dict.fromkeys(_THREADS, str(self.settings.threads)) | kernel_cache()
        if self.gpu:
            own["CUDA_VISIBLE_DEVICES"] = self.gpu
        with _ENVIRONMENT:
            before = dict(os.environ)
            os.environ.update(own)
            try:
                self._process = context.Process(
                    target=_serve, args=(theirs, os.getpid(), self.device, self.settings), daemon=True
                )
                self._process.start()
            finally:
                os.environ.clear()
                os.environ.update(before)
        theirs.close()

    def kill(self) -> None:
        """End the process at once, as another thread may that does not wait for its draw."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the process, and wait for it."""
        self.kill()
        if self._process is not None:
            self._process.join()
            self._process = None


def _serve(line: Any, parent: int, device: Any, settings: Settings) -> None:
    """Measure the draws that come over `line`, and answer with their rows."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it: no draw fails by an interrupt
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

    Each GPU that this process may see measures draws of its own, beside the others of its host.

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
    recording = _Recording(machine, seed, settings, out, say, rows)
    gpus = visible_gpus() if device == "cuda" else [""]
    workers = [Worker(device, settings, gpu) for gpu in gpus]
    with ThreadPoolExecutor(len(gpus)) as pool:
        working = [pool.submit(recording.work, worker) for worker in workers]
        try:
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            recording.ended = True
            for worker in workers:
                worker.kill()
        for each in working:
            each.result()
    if not rows:
        raise RuntimeError("no draw was begun: give more minutes")
    frame.write(frame.made(rows), out)


def visible_gpus() -> list[str]:
    """Return the GPUs of this process, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return named.split(",")
    import cupy

    return [str(each) for each in range(cupy.cuda.runtime.getDeviceCount())]


class _Recording:
    """The draws of a frame, which several workers measure."""

    def __init__(
        self, machine: str, seed: int, settings: Settings, out: Path, say: Callable[[str], None],
        rows: list[Mapping[str, Any]],
    ) -> None:  # fmt: skip
        self.machine, self.seed, self.settings = machine, seed, settings
        self.out, self.say, self.rows = out, say, rows
        self.ended = False
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._next = {name: 1 + max((int(row["index"]) for row in rows if row["system"] == name), default=-1)
                      for name in settings.systems}  # fmt: skip
        self._wanted = {name: settings.draws - sum(row["system"] == name and row["status"] == "ok" for row in rows)
                        for name in settings.systems}  # fmt: skip

    def _begin(self, system: str) -> int | None:
        """Return the number of the next draw of a system; None if it is done, or its time is over."""
        with self._lock:
            until = self._until.setdefault(system, time.monotonic() + 60 * self.settings.minutes)
            if self.ended or self._wanted[system] <= 0 or time.monotonic() >= until:
                return None
            self._wanted[system] -= 1
            self._next[system] += 1
            return self._next[system] - 1

    def work(self, worker: Worker) -> None:
        """Measure draws of all systems, one after the other, until there are none to begin."""
        try:
            for system in self.settings.systems:
                while (index := self._begin(system)) is not None:
                    self._end(system, index, worker.measure(system, index, self.seed) | {"machine": self.machine})
        finally:
            worker.stop()

    def _end(self, system: str, index: int, row: dict[str, Any]) -> None:
        with self._lock:
            if self.ended:
                return
            self.rows.append(row)
            self._wanted[system] += row["status"] != "ok"  # another one is measured in its place
            if row["status"] != "skipped":
                frame.write(frame.made(self.rows), self.out)
            ratio = f", {row['rival']} takes {row['ratio']:.3g} times as long" if row.get("rival") else ""
            self.say(f"{system} {index}: {row['draw']}: {row['status']}{ratio or ' ' + str(row.get('reason') or '')}")
