"""Everyday draws in the workflow: measured when asked for, drawn again from a recorded frame, in the report."""

import shutil

import pytest

from spectile_study.everyday import frame, outputs

from .conftest import snakemake

pytestmark = pytest.mark.workflow
#: As little as makes a frame: one draw that takes no time.
LITTLE = "everyday={systems: [evd], draws: 1, minutes: 5, call_s: 0.001, rounds: 2, rounds_s: 0.05, seed: 11}"


def test_draws_are_measured_drawn_and_drawn_again_where_they_are_recorded(workflow_copy):
    done = snakemake(workflow_copy, "--cores", 1, "--config", LITTLE, "device=cpu", "--", "everyday")
    results = workflow_copy / "results/this"
    assert (frame.read(results / "everyday.parquet")["status"] == "ok").sum() == 1, done.stderr
    assert all((results / path).exists() for path in outputs.outputs())

    recorded = workflow_copy / "results/recorded/box"
    recorded.mkdir()
    (results / "everyday.parquet").rename(recorded / "everyday.parquet")
    own = ("-n", "--config", "source=recorded", "machine=box", "papers=[kpm]")
    for target in ("everyday", "all"):  # the report has them, too
        listed = snakemake(workflow_copy, *own, "--", target).stdout
        assert "draw_everyday" in listed and "measure_everyday" not in listed
    (recorded / "everyday.parquet").unlink()
    assert "draw_everyday" not in snakemake(workflow_copy, *own, "--", "all").stdout


def test_what_is_not_recorded_is_refused_with_one_sentence(workflow_copy):
    box = workflow_copy / "results/recorded/box"
    box.mkdir()
    shutil.copy(workflow_copy / "results/recorded/epyc2/evd.parquet", box)
    own = ("--config", "source=recorded", "machine=box")
    for target in ("everyday", "results/box/everyday/evd.svg"):
        done = snakemake(workflow_copy, "-n", *own, "--", target, check=False)
        said = [line for line in done.stderr.splitlines() if line.startswith("spectile:")]
        assert done.returncode == 1 and "holds no everyday draws" in said[-1], done.stderr
