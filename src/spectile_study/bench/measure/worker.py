"""The process that measures: it may crash, hang or lose its device."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from typing import Any

from spectile_study.bench import record as records
from spectile_study.bench.measure.case import measure_case
from spectile_study.bench.measure.checks import DeviceLost
from spectile_study.bench.measure.job import Job
from spectile_study.bench.measure.processes import die_with


def worker(parent: int) -> int:
    """Entry of the worker process: jobs as JSON lines on standard input, steps as JSON lines on standard output."""
    die_with(parent)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not into the protocol

    def report(**step: Any) -> None:
        channel.write(json.dumps(step) + "\n")
        channel.flush()

    for cases_before, line in enumerate(sys.stdin):
        order = json.loads(line)
        job = Job(**order["job"])
        try:
            if order["log"] is not None:
                _print_to(order["log"])
            record = measure_case(job, order["failed"], lambda name, limit: report(method=name, limit_s=limit))
            record["provenance"]["cases_before"] = cases_before
            records.write(record, job.out)
        except DeviceLost as error:
            report(lost=str(error))
        except Exception as error:
            traceback.print_exc()
            report(error=f"{type(error).__name__}: {error}")
        else:
            report(done=record["status"])
        _free_memory()
    return 0


def _print_to(log: str) -> None:
    """Let this process print to the end of the file `log`."""
    with open(log, "a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _free_memory() -> None:
    """Give back what the case held, so that the next one begins with the memory of a new process."""
    gc.collect()
    with contextlib.suppress(Exception):  # a device that was lost frees nothing, and its worker is ended
        if "cupy" in sys.modules:
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
