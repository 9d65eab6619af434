# The plan of this run, and what only Snakemake knows of it.  Everything else of the workflow is in spectile_study.
import os
import shlex
import sys
import threading
from pathlib import Path

import yaml
from snakemake_interface_common.exceptions import WorkflowError

# The sources beside this workflow come first, here and in its jobs: another checkout's, or a released spectile's, would
# measure other kernels than those that are here.
HOME = Path(str(workflow.current_basedir)).resolve().parents[1]
SOURCES = str(HOME / "src")
sys.path.insert(0, SOURCES)
SEARCH_PATH = "PYTHONPATH"
OTHERS = os.environ.get(SEARCH_PATH, "").split(os.pathsep)
os.environ[SEARCH_PATH] = os.pathsep.join(
    [SOURCES, *(path for path in OTHERS if path not in ("", SOURCES))]
)

from spectile_study import snakemake_parts
from spectile_study.bench.sheets import SheetError
from spectile_study.plan import Plan, check_device

SNAKEMAKE = snakemake_parts.Parts(workflow)

# In its own folder the workflow's paths are relative, so that the folder may be moved.
STUDY = Path() if HOME == Path.cwd() else HOME


def worded(function, *arguments):
    """Call `function`; what is wrong with the configuration or a sheet ends the run with one sentence."""
    try:
        return function(*arguments)
    except SheetError as error:
        print(f"spectile: {error}", file=sys.stderr)
        sys.exit(1)


# Another workflow that uses this one as a module has targets, hooks and a report of its own.
IS_MAIN = Path(SNAKEMAKE.main_snakefile()).resolve() in (
    HOME / "Snakefile",
    HOME / "workflow/Snakefile",
)


def asked_for():
    """Return the results that this Snakemake was asked for by name, which it knows itself only after this page."""
    program, *words = sys.argv
    if (
        not IS_MAIN
        or "snakemake" not in Path(program).parts[-2:]
        or not any(word.startswith("results/") for word in words)
    ):
        return []
    return snakemake_parts.targets(words)


# What the working directory's configuration, or that of another workflow, leaves open is as it is beside this workflow.
for key, value in yaml.safe_load((HOME / "config/config.yaml").read_text()).items():
    config.setdefault(key, value)
PLAN = worded(Plan, config, STUDY)
if not SNAKEMAKE.is_in_a_job():
    worded(PLAN.check)
    worded(PLAN.check_targets, asked_for())


# What is stale is told once, by the Snakemake that its user started, and not again where that one writes its report.
if not SNAKEMAKE.is_in_a_job() and not snakemake_parts.writes_report() and PLAN.news():
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


def is_kept(record):
    """Return whether a record came from elsewhere (spectile-study unpack, spectile-study measure) and no one asks for it again."""
    if SNAKEMAKE.is_in_a_job() or SNAKEMAKE.is_forced():
        return False
    return Path(record).exists() and not SNAKEMAKE.has_made(record)


def inputs_of(wildcards):
    """Return the receipts of a case's inputs; a case whose record is stale is measured again if the user asks for it.

    A record that came from elsewhere knows the sha256 of its inputs: it stands until a receipt names another one.
    """
    record = PLAN.record(wildcards.paper, wildcards.case)
    receipts = worded(PLAN.inputs, wildcards)
    if not SNAKEMAKE.is_in_a_job() and PLAN.is_measured_again(wildcards):
        SNAKEMAKE.make_again(record)
    elif is_kept(record):
        there = [path for path in receipts if Path(path).exists()]
        return [
            ancient(path) if PLAN.is_made_from(wildcards, path) else path
            for path in there
        ]
    return receipts


def gpus_of(wildcards):
    """Return the GPUs of a measuring job, held against Snakemake's own limit."""
    try:
        return PLAN.gpus(wildcards, SNAKEMAKE.limit("gpu"))
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


if SNAKEMAKE.is_in_a_job():
    threading.Thread(target=end_without_timers, daemon=True).start()
