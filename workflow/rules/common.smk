# The plan of this run, and what only Snakemake knows of it.  Everything else of the workflow is in spectile_study.
import os
import shlex
import sys
import threading
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The sources beside this workflow serve where spectile is not installed, as in a rule's own environment.
HOME = Path(str(workflow.current_basedir)).resolve().parents[1]
SOURCES = str(HOME / "src")
sys.path.append(SOURCES)
SEARCH_PATH = "PYTHONPATH"
if SOURCES not in os.environ.get(SEARCH_PATH, "").split(os.pathsep):
    os.environ[SEARCH_PATH] = os.pathsep.join(
        filter(None, [os.environ.get(SEARCH_PATH), SOURCES])
    )

from spectile_study.bench.sheets import SheetError
from spectile_study.plan import Plan, check_device

# In its own folder the workflow's paths are relative, so that the folder may be moved.
STUDY = Path() if HOME == Path.cwd() else HOME


def worded(function, *arguments):
    """Call `function`; what is wrong with the configuration or a sheet ends the run with one sentence."""
    try:
        return function(*arguments)
    except SheetError as error:
        print(f"spectile: {error}", file=sys.stderr)
        sys.exit(1)


PLAN = worded(Plan, config, STUDY)
if not workflow.remote_exec and not PLAN.is_recorded:
    for paper in PLAN.papers:
        worded(PLAN.cases, paper)


# What is stale is told once, by the Snakemake that its user started, and not again where that one writes its report.
if not workflow.remote_exec and "--report" not in sys.argv and PLAN.news():
    print(f"spectile: {PLAN.news()}.", file=sys.stderr)


# Executors write the interpreter's path into a shell's command line as it stands: one with a space is quoted for them.
INTERPRETER = (
    sys.executable
    if Path(sys.executable).exists()
    else "".join(shlex.split(sys.executable)[:1])
)
sys.executable = shlex.quote(INTERPRETER)


wildcard_constraints:
    paper="|".join(PLAN.papers),
    case="[a-z0-9_]+",
    element="[a-z0-9_]+",
    name="[A-Za-z0-9_-]+",
    file="[A-Za-z0-9_+-][A-Za-z0-9._+-]*",
    matrix="([A-Za-z0-9_.+-]+/)?[A-Za-z0-9_.+-]+",


def inputs_of(wildcards):
    """Return the receipts of a case's inputs; a case whose record is stale is measured again if the user asks for it."""
    if not workflow.remote_exec and PLAN.is_measured_again(wildcards):
        # As --forcerun does for a file, of those alone that this run needs.
        workflow.dag.forcefiles.add(PLAN.record(wildcards.paper, wildcards.case))
    return PLAN.inputs(wildcards)


def gpus_of(wildcards):
    """Return the GPUs of a measuring job, held against Snakemake's own limit."""
    limit = workflow.global_resources.get("gpu")
    try:
        return PLAN.gpus(wildcards, limit.value if limit is not None else None)
    except SheetError as error:
        raise WorkflowError(str(error)) from None


def end_without_timers():
    """Cancel the timers that this process leaves when it ends: it would wait for them.

    Snakemake's limit of jobs per second starts one, and costs each job on a cluster a second after its last word.
    """
    threading.main_thread().join()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


if workflow.remote_exec:
    threading.Thread(target=end_without_timers, daemon=True).start()
