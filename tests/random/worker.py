"""Cases run in a process of their own, so that one that crashes or hangs is one more failure in a table."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import selectors
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Bytes of address space beyond which a case on a CPU finds no memory: what asks for too much is to say so.
MEMORY_BYTES = 6 << 30
#: Threads that the libraries are given: more than most machines have cores.
THREADS = 4
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What became of a case.

    Attributes
    ----------
    kind : str
        "" where all held, else the kind of failure.
    message : str
        What was found.
    made, words : dict
        Number and text of the option of each choice.
    called : dict
        By the names of public functions that were called, the arguments that they got.
    """

    kind: str = ""
    message: str = ""
    made: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    called: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def run_case(function: str, seed: int, fixed: Mapping[str, int], backend: str) -> Outcome:
    """Run a case in this process."""
    from tests.random.calls import Fault, Undecided
    from tests.random.cases import CASES
    from tests.random.draw import Draw
    from tests.random.memory import Place

    draw, outcome, begun = Draw(seed, fixed), Outcome(), time.monotonic()
    try:
        CASES[function](draw, Place(backend))
    except Undecided:
        return Outcome()
    except Fault as fault:
        outcome.kind, outcome.message = "fault", str(fault)
    except Exception as error:
        if backend == "cuda" and str(error).startswith("Unsupported dtype"):
            return Outcome()  # CuPy has no such arrays
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.kind = "driver"
        outcome.message = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:150]}"
    outcome.made, outcome.words = draw.made, draw.words
    outcome.called = {name: sorted(given) for name, given in draw.called.items()}
    outcome.seconds = time.monotonic() - begun
    return outcome


def serve() -> None:
    """Run the cases whose names come line by line."""
    faulthandler.enable()
    if sys.argv[1] == "cpu":  # CUDA maps more than there is
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        outcome = run_case(**json.loads(line))
        answers.write(json.dumps(outcome.__dict__) + "\n")
        answers.flush()


class Worker:
    """A process that runs cases, begun anew after a crash or a time-out."""

    def __init__(self, backend: str, timeout_s: float) -> None:
        self.backend, self.timeout_s = backend, timeout_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def run(self, function: str, seed: int, fixed: Mapping[str, int] | None = None) -> Outcome:
        """Return what becomes of a case."""
        process = self._running()
        case = {"function": function, "seed": seed, "fixed": dict(fixed or {}), "backend": self.backend}
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(self.timeout_s)
        if not ready:
            self._end()
            return Outcome("hang", f"no end after {self.timeout_s:.0f} s")
        answer = process.stdout.readline()
        if not answer:
            code = process.wait()
            self._process = None
            return Outcome("crash", f"the process ended with {code}")
        return Outcome(**json.loads(answer))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            threads = {name: str(THREADS) for name in ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from tests.random.worker import serve; serve()", self.backend],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
                env=os.environ | threads,
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def simplify(
    worker: Worker, function: str, seed: int, outcome: Outcome, tries: int = 80
) -> tuple[dict[str, int], Outcome]:
    """Return choices that are as simple as can be and fail alike, and how.

    Each choice in turn takes the first option, or one nearer to it, as long as the kind of failure stays.
    """
    fixed: dict[str, int] = {}
    best = outcome
    for _ in range(2):
        for name, number in list(best.made.items()):
            for smaller in dict.fromkeys((0, number // 2, number - 1)):
                if not 0 <= smaller < best.made.get(name, 0) or tries <= 0:
                    continue
                tries -= 1
                found = worker.run(function, seed, fixed | {name: smaller})
                if found.kind == best.kind and found.message[:12] == best.message[:12]:
                    fixed, best = fixed | {name: smaller}, found
                    break
    return fixed, best
