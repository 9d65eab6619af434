"""The process that measures: it may crash, hang or lose its device."""

from __future__ import annotations

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

    for line in sys.stdin:
        order = json.loads(line)
        job = Job(**order["job"])
        try:
            record = measure_case(job, order["failed"], lambda name, limit: report(method=name, limit_s=limit))
            records.write(record, job.out)
        except DeviceLost as error:
            report(lost=str(error))
        except Exception as error:
            traceback.print_exc()
            report(error=f"{type(error).__name__}: {error}")
        else:
            report(done=record["status"])
    return 0
