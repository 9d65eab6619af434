"""Measure a case: build, check, time, write one record; a supervisor outlives crashes and hangs.

``spectile-study measure`` is the supervisor.  Its worker process reports every step; when the worker dies or a call
outlasts its limit, the method at work is marked failed and the case starts again without it.
"""

from spectile_study.bench.measure.case import measure_case
from spectile_study.bench.measure.job import Job
from spectile_study.bench.measure.machine import TooFewGpus, claim_machine, require_gpus
from spectile_study.bench.measure.supervisor import Supervisor
from spectile_study.bench.measure.worker import worker

__all__ = ["Job", "Supervisor", "TooFewGpus", "claim_machine", "measure_case", "require_gpus", "worker"]
