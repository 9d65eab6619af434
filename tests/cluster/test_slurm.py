"""The workflow on a real Slurm of one node: what it asks for, and to its end."""

import os
import re
import subprocess

import pytest

from spectile_study.bench import record
from spectile_study.bench.provenance import PAPERS

from ..workflow import test_places
from ..workflow.conftest import copy_workflow, snakemake
from ..workflow.faulty import workflow as faulty
from .onenode import HERE

pytestmark = pytest.mark.cluster
spaced_python = test_places.spaced_python


def submitted(slurm, comment):
    """Return what Slurm knows of the jobs whose comment ends with `comment`."""
    return [
        slurm.run("scontrol", "--oneliner", "show", "job", job)
        for job, (_, note) in slurm.jobs("all").items()
        if note.endswith(comment)
    ]


def processor_times(slurm, note, comment):
    """Return the processor times that each Snakemake of a job noted."""
    (job,) = {job for job, (_, text) in slurm.jobs("all").items() if text.endswith(comment)}
    lines = map(str.split, note.read_text().splitlines())
    return [float(seconds) for noted, seconds in lines if noted == job]


def test_jobs_run_with_an_interpreter_whose_path_has_a_space(slurm, spaced_python):
    folder = faulty.faulty_workflow(spaced_python.parents[2] / "check out", {"case": "one"})
    path = f"{spaced_python.parent}:{slurm.environment.get('PATH', os.environ['PATH'])}"
    environment = faulty.environment(folder, **(slurm.environment | {"PATH": path}))
    options = ("--workflow-profile", "profiles/slurm", *HERE)
    command = [str(spaced_python), "-m", "snakemake", "records", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert faulty.statuses(folder, "one") == {"good": "ok", "vendor": "ok"}


def test_quick_workflow_runs_to_its_end(slurm, tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path,
        {"case": "all_well", "methods": "good,vendor,absent"},
        {"case": "faults", "methods": "good,crash,vendor,nan,wrong,raises"},
        {"case": "with_gpu", "gpus": 1, "minutes": 7, "memory_gb": 2},
        {"case": "third"},
        {"case": "fourth"},
    )
    note = tmp_path / "seconds"
    options = ("--workflow-profile", "profiles/slurm", *HERE)
    _, printed = faulty.run(folder, *options, FAULTY_SECONDS=str(note), **slurm.environment)
    assert (folder / "results/this/figures/kpm_fig1.svg").exists()
    assert (folder / "results/this/report.zip").exists()
    assert faulty.statuses(folder, "faults")["crash"] == "failed"
    assert faulty.statuses(folder, "all_well") == {"good": "ok", "vendor": "ok", "absent": "skipped"}
    # Measuring alone is submitted, once a case: a failed method is a result and nothing is tried again.
    assert len(re.findall("has been submitted with SLURM jobid", printed)) == 5
    with_gpu, without = submitted(slurm, "kpm_with_gpu")[0], submitted(slurm, "kpm_all_well")[0]
    assert "TresPerJob=gres:gpu:1" in with_gpu and "TresPerJob" not in without
    assert "TimeLimit=00:21:00" in with_gpu and "TimeLimit=00:05:00" in without
    assert "MinMemoryNode=2G" in with_gpu and "MinMemoryNode=1G" in without
    assert "OverSubscribe=NO" in without
    # What a job takes on its node: two starts of Snakemake by its plugin, the second of which measures.  Counted in
    # processor time and in such starts, which other load on the machine changes far less than the time by the clock.
    cases = ("all_well", "with_gpu", "third", "fourth")
    jobs = [processor_times(slurm, note, f"kpm_{case}") for case in cases]
    start = faulty.processor_seconds_of_a_start()
    print("processor seconds of jobs:", jobs, "of a start:", start)
    assert [len(job) for job in jobs] == [2] * len(cases), jobs
    assert min(map(sum, jobs)) < 6 * start, (jobs, start)


def test_every_system_is_measured(slurm, tmp_path):
    folder = copy_workflow(tmp_path)
    ranks = "results/this/records/kpm/ranks_12x10x10_2.json"
    here = (*HERE[:-1], "measure_case=2")
    options = ("smoke", ranks, "--workflow-profile", "profiles/slurm", *here, "--config", "budget_s=1", "rounds=3")
    snakemake(folder, *options, **slurm.environment)
    # mpiexec starts its ranks inside the job and does not wait for another step of it.
    assert {method["status"] for method in record.read(folder / ranks)["methods"]} <= {"ok", "skipped"}
    papers = {path.stem for path in folder.glob("config/*.tsv")} & set(PAPERS)
    found = [record.read(path) for path in folder.glob("results/this/records/*/*.json")]
    assert {one["paper"] for one in found} == papers
    for one in found:
        assert "ok" in {method["status"] for method in one["methods"]}, one["reason"]


@pytest.mark.parametrize(
    ("profile", "request_"), [("slurm-gpu", "gres:gpu:h200:1"), ("slurm-gres", "TresPerNode=gres:gpu:h200:1")]
)
def test_gpus_are_asked_for_by_model(slurm, tmp_path, profile, request_):
    case = f"on_{profile.replace('-', '_')}"
    folder = faulty.faulty_workflow(tmp_path, {"case": case, "methods": "gpu_good"})
    options = ("smoke", "--workflow-profile", f"profiles/{profile}", *HERE, "--config", "device=cuda")
    faulty.run(folder, *options, FAULTY_GPUS="1", **slurm.environment)
    assert request_ in submitted(slurm, case)[0]
    assert faulty.statuses(folder, case) == {"gpu_good": "ok"}
