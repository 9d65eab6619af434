"""The workflow on a real Slurm through cancelled jobs, drained nodes, lost daemons, and what no node has."""

import signal
import time

import pytest

from ..workflow.faulty import workflow as faulty
from .onenode import HERE

pytestmark = pytest.mark.cluster


def test_a_case_that_needs_eight_gpus_is_never_clipped(slurm, tmp_path):
    folder = faulty.faulty_workflow(tmp_path, {"case": "eight", "gpus": 8}, {"case": "one"})
    options = ("--workflow-profile", "profiles/slurm", *HERE, "--retries", "0")
    code, printed = faulty.run(folder, *options, check=False, **slurm.environment)
    assert code != 0
    assert "--gpus=8" in printed and "Requested node configuration is not available" in printed
    assert set(faulty.records(folder)) == {"one"}
    code, printed = faulty.run(folder, *options, "--resources", "gpu=1", check=False, **slurm.environment)
    assert code != 0
    assert "the case eight needs 8 GPUs and --resources gpu=1 would clip it" in printed


def test_interrupted_snakemake_cancels_its_jobs(slurm, tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path, {"case": "one", "methods": "good,waits"}, {"case": "two"}, {"case": "three"}
    )
    note = tmp_path / "note"
    options = ("--workflow-profile", "profiles/slurm", *HERE)
    with faulty.started(folder, *options, FAULTY_NOTE=str(note), **slurm.environment) as process:
        faulty.wait_for("the waiting method", note.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=1200) != 0
    faulty.wait_for("an empty queue", lambda: not slurm.jobs(), seconds=1200)
    assert "one" not in faulty.records(folder)


def test_lost_jobs_nodes_and_daemons(slurm, tmp_path):
    note = tmp_path / "note"
    folder = faulty.faulty_workflow(
        tmp_path, {"case": "first"}, {"case": "second", "methods": "good,waits"}, {"case": "third"}, {"case": "fourth"}
    )
    options = ("--workflow-profile", "profiles/slurm", *HERE)
    variables = slurm.environment | {"FAULTY_NOTE": str(note)}

    # A cancelled job with no retry left: the run ends with a list, and what was finished stays.
    with faulty.started(folder, *options, "--retries", "0", **variables) as process:
        faulty.wait_for("the waiting method", note.exists)
        slurm.run("scancel", *slurm.jobs("RUNNING"))
        assert process.wait(timeout=1200) != 0
    finished = faulty.records(folder)
    assert set(finished) == {"first", "third", "fourth"}
    printed = (folder / "snakemake.out").read_text()
    assert "CANCELLED" in printed
    assert "1 of 1 figures and tables are missing" in printed

    # The same command goes on.  The job is cancelled again and tried again by itself, its node is drained and resumed,
    # and slurmctld is gone for a while.
    note.unlink()
    with faulty.started(folder, *options, **variables) as process:
        faulty.wait_for("the waiting method", note.exists)
        slurm.run("scontrol", "update", f"NodeName={slurm.node}", "State=DRAIN", "Reason=test")
        slurm.run("scancel", *slurm.jobs("RUNNING"))
        faulty.wait_for("the next attempt in the queue", lambda: slurm.jobs("PENDING"))
        assert "DRAIN" in slurm.node_state() and not slurm.jobs("RUNNING")
        slurm.stop("slurmctld")
        time.sleep(10)
        assert process.poll() is None
        slurm.start("slurmctld")
        faulty.wait_for("the node", lambda: slurm.node_state() == "IDLE+DRAIN")
        slurm.run("scontrol", "update", f"NodeName={slurm.node}", "State=RESUME")
        assert process.wait(timeout=1200) == 0
    assert faulty.statuses(folder, "second") == {"good": "ok", "waits": "ok"}
    after = faulty.records(folder)
    assert all(after[case] == finished[case] for case in finished)
    assert (folder / "results/this/figures/kpm_fig1.svg").exists()
