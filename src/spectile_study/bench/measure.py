"""Measure a case: build, check, time, write one record; a supervisor outlives crashes and hangs.

``spectile measure`` is the supervisor.  Its worker process reports every step; when the worker dies or a call
outlasts its limit, the method at work is marked failed and the case starts again without it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import math
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spectile.core.atomic_file import atomic_write
from spectile_study.bench import record as records
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.timing import Plan, interleave

#: The last resort against a hanging case, beside each method's own limit.
DEFAULT_CALL_LIMIT_S = 900.0


@dataclass(frozen=True)
class Job:
    """One case to measure, with everything that its worker needs; travels as JSON."""

    paper: str
    row: Mapping[str, Any]
    machine: str
    device: str
    out: str
    resources: str
    seed: int
    threads: int
    rounds: int
    warmup: int
    budget_s: float
    call_limit_s: float = DEFAULT_CALL_LIMIT_S


class Supervisor:
    """Measures cases in a worker process that it outlives; one worker serves many cases, so that a GPU starts once.

    Parameters
    ----------
    threads : int
        Threads of the worker's BLAS and Numba; set in its environment, where libraries read it at import.
    say : callable
        Receives progress lines.
    """

    def __init__(self, threads: int, say: Callable[[str], None] = print) -> None:
        self.threads = threads
        self.say = say
        self._worker: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def measure(self, job: Job) -> str:
        """Measure `job` and return the record's status; the record is written even when methods fail.

        Raises
        ------
        RuntimeError
            If the worker dies outside any method, or writing the record fails; nothing is left half-written.
        """
        failed: dict[str, str] = {}
        while True:
            step = self._run(job, failed)
            if "done" in step:
                return step["done"]
            at_work = step.get("method")
            if at_work is None or at_work in failed:
                raise RuntimeError(f"{job.paper}/{job.row['case']} was not measured: {step['error']}")
            failed[at_work] = step["error"]
            self.say(f"{job.paper}/{job.row['case']}: {at_work} {step['error']}; measuring the others again without it")

    def _run(self, job: Job, failed: Mapping[str, str]) -> dict[str, Any]:
        """Hand `job` to the worker; return its last step: done, or the error and the method at work."""
        worker = self._worker or self._start()
        assert worker.stdin is not None and worker.stdout is not None
        at_work: str | None = None
        limit = job.call_limit_s
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps({"job": asdict(job), "failed": dict(failed)}).encode() + b"\n")
        while True:
            line = self._next_line(worker.stdout.fileno(), limit)
            if line is None:
                self._stop()
                what = "ran longer than its limit of" if at_work else "the case took longer to build than"
                return {"method": at_work, "error": f"{what} {limit:g} s"}
            if not line:
                code = worker.wait()
                self._worker = None
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                return {"method": at_work, "error": f"ended its process with {how}"}
            step = json.loads(line)
            if "lost" in step:
                self._stop()
                return {"method": at_work, "error": step["lost"]}
            if "done" in step or "error" in step:
                return step
            at_work, limit = step["method"], step["limit_s"] or job.call_limit_s

    def _next_line(self, descriptor: int, limit_s: float) -> bytes | None:
        """Return the worker's next line, None after `limit_s` of silence, nothing at its end."""
        # Read without Python's buffer: select does not see what the buffer already took.
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], limit_s)
            if not ready:
                return None
            part = os.read(descriptor, 65536)
            if not part:
                return b""
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        self._unread = b""
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "spectile_study", "measure-worker", "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # A case stays on its machine: MPICH's mpiexec would wait for a second step of a Slurm job that has one.
            env={"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
            | os.environ
            | dict.fromkeys(variables, str(self.threads))
            | _kernel_cache(),
            start_new_session=True,
        )
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _kernel_cache() -> dict[str, str]:
    """Let CuPy keep compiled kernels on this machine's own disk: a home shared by nodes is slow and locks badly."""
    if "CUPY_CACHE_DIR" in os.environ:
        return {}
    folder = Path(tempfile.gettempdir()) / f"spectile-cupy-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return {}
    # Kernels are code: a folder that somebody else prepared in a shared place is not used.
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o022 == 0
    return {"CUPY_CACHE_DIR": str(folder)} if ours else {}


def end_with(process: int) -> None:
    """End this process, and with it its worker, when the process with the id `process` ends.

    A Snakemake that is killed leaves its jobs running; a measurement that goes on beside the next run's would spoil it.
    """

    def wait() -> None:
        with contextlib.suppress(PermissionError):  # somebody else's process is not ours to wait for
            while True:
                try:
                    os.kill(process, 0)
                except ProcessLookupError:
                    os._exit(1)
                time.sleep(1)

    threading.Thread(target=wait, daemon=True).start()


def worker(parent: int) -> int:
    """Entry of the worker process: jobs as JSON lines on standard input, steps as JSON lines on standard output."""
    _die_with(parent)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not into the protocol

    def report(**step: Any) -> None:
        channel.write(json.dumps(step) + "\n")
        channel.flush()

    for line in sys.stdin:
        order = json.loads(line)
        job = Job(**order["job"])
        try:
            record = measure_case(job, order["failed"], lambda name, limit: report(method=name, limit_s=limit))
            records.write(record, job.out)
        except _DeviceLost as error:
            report(lost=str(error))
        except Exception as error:
            traceback.print_exc()
            report(error=f"{type(error).__name__}: {error}")
        else:
            report(done=record["status"])
    return 0


class _DeviceLost(Exception):
    """The device answers nothing after a method's error: this process can measure no other method."""


def _raise_if_device_lost(device: str, error: Exception) -> None:
    # After an illegal access or a lost GPU every CUDA call of the process fails, in methods without fault, too.
    if device != "cuda":
        return
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        raise _DeviceLost(f"lost the device: {type(error).__name__}: {error}") from error


def _die_with(parent: int) -> None:
    """Ask Linux to end this process when the supervisor is killed, so that no orphan keeps a GPU."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def measure_case(
    job: Job, failed: Mapping[str, str], announce: Callable[[str | None, float | None], None]
) -> dict[str, Any]:
    """Build, check and time one case in this process; return its record.

    Parameters
    ----------
    job : Job
        The case.
    failed : mapping
        Methods that ended an earlier worker, with the reason: they are not run again.
    announce : callable
        ``announce(method, limit_s)`` before each step that may take long.
    """
    from spectile_study.bench.provenance import device_name, provenance
    from spectile_study.inputs.suitesparse import MissingMatrix

    case = {
        "paper": job.paper,
        "case": job.row["case"],
        "machine": job.machine,
        "device": device_name(job.device),
        "backend": job.device,
        "params": {key: value for key, value in job.row.items() if key != "case"},
    }
    announce(None, None)
    status, reason = "ok", None
    problem = Problem(methods=[])
    try:
        require_gpus(job.row, job.device)
        context = Context(job.device, Path(job.resources), job.seed, job.threads)  # type: ignore[arg-type]
        problem = importlib.import_module(f"spectile_study.cases.{job.paper}.build").build(job.row, context)
    except Exception as error:  # a case that cannot be built is a result, too: the next one goes on
        traceback.print_exc()
        _raise_if_device_lost(job.device, error)
        absent = isinstance(error, FileNotFoundError | MissingMatrix | TooFewGpus)
        status, reason = ("skipped", str(error)) if absent else ("failed", f"{type(error).__name__}: {error}")
    rows = _measure_methods(job, problem, failed, announce)
    return case | {
        "status": status,
        "reason": reason,
        "values": dict(problem.values),
        "inputs": dict(problem.inputs),
        "methods": rows,
        "provenance": provenance(job.paper, job.device, job.threads, job.seed),
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _measure_methods(
    job: Job, problem: Problem, failed: Mapping[str, str], announce: Callable[[str | None, float | None], None]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    ready: list[Method] = []
    checked: dict[str, float] = {}
    for method in problem.methods:
        if isinstance(method, Skipped):
            rows.append({"method": method.name, "status": "skipped", "reason": method.reason})
        elif method.name in failed:
            rows.append({"method": method.name, "status": "failed", "reason": failed[method.name]})
        else:
            announce(method.name, method.time_limit_s)
            row, checked[method.name] = _check_method(method, job.device)
            rows.append(row)
            if row["status"] == "ok" and method.clock != "none":
                ready.append(method)
    limits = {method.name: method.time_limit_s for method in ready}
    samples: dict[str, list[float]] = {}
    at_work = ""

    def begin(name: str) -> None:
        nonlocal at_work
        at_work = name
        announce(name, limits[name])

    while ready:
        try:
            plan = Plan(job.rounds, job.warmup, job.budget_s)
            samples = interleave(ready, plan, begin, checked)
            break
        except Exception as error:  # one method failed while timed: the others are timed again without it
            traceback.print_exc()
            _raise_if_device_lost(job.device, error)
            row = next(row for row in rows if row["method"] == at_work)
            row.update(status="failed", reason=f"failed while timed: {type(error).__name__}: {error}")
            ready = [method for method in ready if method.name != at_work]
            samples = {}
    for row in rows:
        if row["method"] in samples:
            row["samples_s"] = samples[row["method"]]
    return rows


def _check_method(method: Method, device: str) -> tuple[dict[str, Any], float]:
    """Run `method` once and compare with its reference: a failed check is a failed method; and the seconds it ran."""
    seconds = 0.0
    row: dict[str, Any] = {"method": method.name, "clock": method.clock, "samples_s": []}
    try:
        if method.prepare is not None:
            method.prepare()
        start = time.perf_counter()
        result = method.run()
        seconds = time.perf_counter() - start
        if method.clock == "external":
            result = result[0]
        errors = {name: float(value) for name, value in method.check(result).items()}
        values = dict(method.values(result)) if method.values is not None else {}
    except Exception as error:  # any failure of a method is a result: it is recorded and the others go on
        traceback.print_exc()
        _raise_if_device_lost(device, error)
        return {"method": method.name, "status": "failed", "reason": f"{type(error).__name__}: {error}"}, seconds
    row |= {
        "errors": errors,
        "limits": dict(method.limits),
        "flops": method.flops,
        "bytes": method.bytes,
        "memory_bytes": method.memory_bytes,
        "values": values,
    }
    unknown = [name for name in method.limits if name not in errors]
    broken = [
        f"{name} = {errors[name]:.3g} (allowed {limit:.3g})"
        for name, limit in method.limits.items()
        if name in errors and not errors[name] <= limit
    ]
    broken += [f"{name} is not a number" for name, value in errors.items() if math.isnan(value)]
    if broken or unknown or not errors:
        why = "; ".join(broken) or ("no error was computed" if not errors else f"no {unknown[0]} was computed")
        return row | {"status": "failed", "reason": f"wrong result: {why}"}, seconds
    return row | {"status": "ok", "reason": None}, seconds


def claim_machine(folder: Path, machine: str, device: str) -> None:
    """Note in `folder` which device the results of `machine` belong to, and refuse another one.

    Raises
    ------
    ValueError
        If results of another device are kept under this name.
    """
    from spectile_study.bench.provenance import device_name

    name = device_name(device)
    path = folder / "machine.json"
    known: dict[str, str] = {}
    if path.exists():
        with contextlib.suppress(json.JSONDecodeError):
            known = json.loads(path.read_text())
    if device in known and known[device] != name:
        raise ValueError(
            f"results of machine {machine!r} were measured on {known[device]!r}, and this device is {name!r}: "
            "choose another name with --config machine=NAME"
        )
    if device not in known:
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(known | {device: name}, indent=1) + "\n")


class TooFewGpus(RuntimeError):
    """A case needs more GPUs than are visible: it is skipped with this sentence, and never measured on fewer."""


def require_gpus(row: Mapping[str, Any], device: str) -> None:
    """Refuse a case that needs more GPUs than are visible, instead of measuring fewer in silence.

    Raises
    ------
    TooFewGpus
        If fewer devices are visible than the row's column ``gpus`` asks for.
    """
    needed = int(row.get("gpus") or 0)
    if device != "cuda" or needed <= 1:
        return
    import cupy

    visible = cupy.cuda.runtime.getDeviceCount()
    if visible < needed:
        raise TooFewGpus(
            f"the case {row['case']} needs {needed} GPUs and {visible} {'is' if visible == 1 else 'are'} visible: "
            "run it where they are, or ask the scheduler for them (resources: gpu)"
        )
