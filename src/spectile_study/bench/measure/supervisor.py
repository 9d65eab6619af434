"""The process that outlives crashes and hangs of what it measures."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from spectile_study.bench.measure.job import Job
from spectile_study.bench.measure.processes import kernel_cache


class Supervisor:
    """Measures cases in a worker process that it outlives; one worker serves many cases, so that a GPU starts once.

    Parameters
    ----------
    threads : int
        Threads of the worker's BLAS and Numba; set in its environment, where libraries read it at import.
    say : callable
        Receives progress lines.

    Attributes
    ----------
    log : str or None
        File to which the worker adds what a case prints; None: where this process prints.
    """

    def __init__(self, threads: int, say: Callable[[str], None] = print) -> None:
        self.threads = threads
        self.say = say
        self.log: str | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
            order = {"job": asdict(job), "failed": dict(failed), "log": self.log}
            worker.stdin.write(json.dumps(order).encode() + b"\n")
        while True:
            line = self._next_line(worker.stdout.fileno(), limit)
            if line is None:
                self.stop()
                what = "ran longer than its limit of" if at_work else "the case took longer to build than"
                return {"method": at_work, "error": f"{what} {limit:g} s"}
            if not line:
                code = worker.wait()
                self._worker = None
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                return {"method": at_work, "error": f"ended its process with {how}"}
            step = json.loads(line)
            if "lost" in step:
                self.stop()
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
            | kernel_cache(),
            start_new_session=True,
        )
        return self._worker

    def stop(self) -> None:
        """End the worker; the next case starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
