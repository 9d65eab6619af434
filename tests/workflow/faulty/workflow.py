"""A copy of the repository whose one system has faulty methods: the real rules, profiles and commands, in seconds."""

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..conftest import ROOT, copy_workflow

FAULTY = Path(__file__).parent
HEADER = ("case", "run", "element", "gpus", "minutes", "memory_gb", "methods", "n", "matrix")
PLOT = """\
from spectile_study.figures.drawing import Drawing


def draw(frame):
    drawing = Drawing("Figure 1: every method that has a time")
    drawing.marks(drawing.ax, frame.dropna(subset=["time_s"]), x="p_n", y="time_s", method="good", kind="scatter")
    return drawing
"""


def faulty_workflow(target, *rows):
    """Copy the workflow to `target`; its one paper is kpm with `rows`, mappings of the columns in HEADER."""
    target.mkdir(parents=True, exist_ok=True)
    copy_workflow(target)
    # The library is copied, too: an edit while the test runs would rightly measure everything again.
    (target / "src").unlink()
    shutil.copytree(ROOT / "src", target / "src", ignore=_not_copied)
    for path in (*target.glob("config/*.tsv"), *target.glob("workflow/scripts/*/*.py")):
        if path.name not in {"claims.tsv", "matrices.tsv"}:
            path.unlink()
    filled = [
        {"run": "quick", "element": "fig1", "minutes": "1", "memory_gb": "1", "methods": "good,vendor", "n": "1000"}
        | row
        for row in rows
    ]
    lines = ["\t".join(HEADER), *("\t".join(str(row.get(key, "")) for key in HEADER) for row in filled)]
    (target / "config/kpm.tsv").write_text("\n".join(lines) + "\n")
    (target / "workflow/schemas/kpm.schema.yaml").write_text((FAULTY / "kpm.schema.yaml").read_text())
    (target / "workflow/scripts/kpm/fig1.py").write_text(PLOT)
    (target / "workflow/report/kpm/fig1.rst").write_text("Times.\n")
    config = target / "config/config.yaml"
    config.write_text(config.read_text().replace("papers: [spamm, tsparse, evd, kpm]", "papers: [kpm]"))
    return target


def _not_copied(folder, names):
    """Leave out what is cached beside the sources but Python's bytecode, which every copy would compile again."""
    return [name for name in names if Path(folder).name == "__pycache__" and not name.endswith(".pyc")]


def environment(folder, **variables):
    return os.environ | {"PYTHONPATH": f"{FAULTY}:{folder / 'src'}"} | variables


@contextlib.contextmanager
def started(folder, *options, **variables):
    """Start Snakemake in its own process group, which ends with the block; its output goes to snakemake.out."""
    with (folder / "snakemake.out").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", *map(str, options)],
            cwd=folder,
            env=environment(folder, **variables),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Tests started in the background of a shell ignore interrupts, and so would this.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(folder, *options, check=True, timeout=1200, **variables):
    """Run Snakemake to its end; return its exit status and what it printed."""
    before = (folder / "snakemake.out").stat().st_size if (folder / "snakemake.out").exists() else 0
    with started(folder, *options, **variables) as process:
        code = process.wait(timeout=timeout)
    printed = (folder / "snakemake.out").read_bytes()[before:].decode()
    assert code == 0 or not check, printed
    return code, printed


def wait_for(what, ready, seconds=1200):
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, f"{what} did not come within {seconds} s"
        time.sleep(0.02)


def records(folder):
    """Return the records of the workflow in `folder`: case -> (content, time of writing)."""
    found = folder.glob("results/this/records/kpm/*.json")
    return {path.stem: (json.loads(path.read_text()), path.stat().st_mtime_ns) for path in found}


def statuses(folder, case):
    """Return the status of each method of a measured case."""
    record = json.loads((folder / f"results/this/records/kpm/{case}.json").read_text())
    return {method["method"]: method["status"] for method in record["methods"]}


def busyness():
    """Return how many times longer a start of Snakemake takes here and now than on a quiet machine (0.9 s)."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "snakemake", "--version"], check=True, stdout=subprocess.DEVNULL)
    return max(1.0, (time.perf_counter() - begin) / 0.9)


def processor_seconds(work):
    """Return the processor time of what `work()` starts and waits for: other load changes it less than the clock's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def processor_seconds_of_a_start():
    """Return the processor time of a start of Snakemake here and now: the least of three."""
    command = [sys.executable, "-m", "snakemake", "--version"]
    start = functools.partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    return min(processor_seconds(start) for _ in range(3))


def quiet_seconds(work):
    """Return the processor time of `work()` as a quiet machine takes it, on which a start of Snakemake takes 0.9 s."""
    seconds = 0.9 * processor_seconds(work) / processor_seconds_of_a_start()
    print(f"{seconds:.1f} s of a quiet machine's processor")
    return seconds
