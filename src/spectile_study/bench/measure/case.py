"""One case: built, checked and timed in this process."""

from __future__ import annotations

import datetime
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spectile_study.bench.case import Context, InputAbsent, Method, Problem, Skipped
from spectile_study.bench.measure.checks import check_method, raise_if_device_lost
from spectile_study.bench.measure.job import Job
from spectile_study.bench.measure.machine import TooFewGpus, require_gpus
from spectile_study.bench.timing import Plan, interleave


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
    if _launch():
        _launch().forget_launches()
    status, reason = "ok", None
    problem = Problem(methods=[])
    try:
        require_gpus(job.row, job.device)
        device: Any = job.device
        context = Context(device, Path(job.resources), job.seed, job.threads, Path(job.study))
        problem = importlib.import_module(f"spectile_study.cases.{job.paper}.build").build(job.row, context)
    except Exception as error:  # a case that cannot be built is a result, too: the next one goes on
        traceback.print_exc()
        raise_if_device_lost(job.device, error)
        absent = isinstance(error, FileNotFoundError | MissingMatrix | TooFewGpus)
        status, reason = ("skipped", str(error)) if absent else ("failed", f"{type(error).__name__}: {error}")
        if isinstance(error, InputAbsent):
            problem = Problem([*error.methods])
    rows = measure_methods(job, problem, failed, announce)
    return case | {
        "status": status,
        "reason": reason,
        "values": dict(problem.values),
        "inputs": dict(job.receipts) | dict(problem.inputs),
        "methods": rows,
        "provenance": provenance(
            _made_from(job, whole=status != "failed" and all(row["status"] != "failed" for row in rows)),
            job.device,
            job.threads,
            job.seed,
            {"rounds": job.rounds, "warmup": job.warmup, "budget_s": job.budget_s},
        ),
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _made_from(job: Job, whole: bool) -> dict[str, Any]:
    """Return what the record says of its sources; of one that is not `whole` it is not known what would have run."""
    from spectile_study.bench.provenance import Case, ran
    from spectile_study.bench.reached import source_names

    launch = _launch()
    units = launch.launched() if launch and whole else ()
    names = {name for unit in units for name in source_names(unit.package, unit.sources)}
    made_from = ran(Case(job.paper, job.row.get("study") or "", job.device), names)
    return made_from | ({"planned": job.planned} if job.planned else {})


def _launch() -> Any:
    """Return the module that launches kernels, None where nothing has."""
    return sys.modules.get("spectile.core.launch")


def measure_methods(
    job: Job, problem: Problem, failed: Mapping[str, str], announce: Callable[[str | None, float | None], None]
) -> list[dict[str, Any]]:
    """Check all methods of a case, time those that passed in rounds, and return one row for each.

    Parameters
    ----------
    job, failed, announce
        As `measure_case`.
    problem : Problem
        The case.
    """
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
            row, checked[method.name] = check_method(method, job.device)
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
            raise_if_device_lost(job.device, error)
            row = next(row for row in rows if row["method"] == at_work)
            row.update(status="failed", reason=f"failed while timed: {type(error).__name__}: {error}")
            ready = [method for method in ready if method.name != at_work]
            samples = {}
    for row in rows:
        if row["method"] in samples:
            row["samples_s"] = samples[row["method"]]
    return rows
