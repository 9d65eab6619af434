"""Profiles: what they share, and the generic one through a scheduler that the test plays with three scripts."""

import os

import pytest
import yaml

from .conftest import ROOT
from .faulty import workflow as faulty

PROFILES = sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml"))
# PBS's commands with a folder as server: qsub runs the job at once and keeps what it was asked for.
COMMANDS = {
    "qsub": """\
n=$(ls "$PBS_FOLDER" | wc -l)
echo "$*" > "$PBS_FOLDER/$n.asked"
for script; do :; done
run() { bash "$script"; echo $? > "$PBS_FOLDER/$n.part"; mv "$PBS_FOLDER/$n.part" "$PBS_FOLDER/$n.exit"; }
run > "$PBS_FOLDER/$n.out" 2>&1 &
echo $! > "$PBS_FOLDER/$n.pid"
echo "$n.server"
""",
    "qstat": """\
for id; do :; done
n=${id%.server}
[ -e "$PBS_FOLDER/$n.asked" ] || { echo "qstat: Unknown Job Id $id" >&2; exit 153; }
[ -e "$PBS_FOLDER/down" ] && { rm "$PBS_FOLDER/down"; echo "qstat: cannot connect to server" >&2; exit 111; }
echo "Job Id: $id"
if [ -e "$PBS_FOLDER/$n.exit" ]; then
  echo "    job_state = F"
  echo "    Exit_status = $(cat "$PBS_FOLDER/$n.exit")"
else
  echo "    job_state = R"
fi
""",
    "qdel": 'for id; do kill "$(cat "$PBS_FOLDER/${id%.server}.pid")"; done\n',
}


@pytest.fixture
def scheduler(tmp_path):
    folder, programs = tmp_path / "server", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    for name, text in COMMANDS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (programs / name).chmod(0o755)
    return {"PBS_FOLDER": str(folder), "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.cluster
def test_generic_profile_submits_asks_and_finishes(scheduler, tmp_path):
    folder = faulty.faulty_workflow(
        tmp_path / "copy", {"case": "one"}, {"case": "two", "gpus": 2, "minutes": 10, "memory_gb": 3}
    )
    (tmp_path / "server/down").touch()
    options = ("--workflow-profile", "profiles/generic", "--set-threads", "measure_case=1")
    faulty.run(folder, *options, "--seconds-between-status-checks", "1", **scheduler)
    assert (folder / "results/this/figures/kpm_fig1.svg").exists()
    asked = sorted(path.read_text().split(" .snakemake")[0] for path in (tmp_path / "server").glob("*.asked"))
    assert len(asked) == 2
    assert "-l select=1:ncpus=1:mem=1024mb -l place=excl -l walltime=300 " in asked[0]
    assert "-l select=1:ncpus=1:mem=3072mb:ngpus=2 -l place=excl -l walltime=1800 " in asked[1]


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_never_limit_gpus_nor_count_bench_over_a_cluster(name):
    profile = yaml.safe_load((ROOT / f"profiles/{name}/config.yaml").read_text())
    assert profile["set-resource-scopes"] == {"bench": "local"}
    assert "gpu" not in profile.get("resources", {})
    assert profile["keep-going"] and profile["rerun-incomplete"] and profile["show-failed-logs"]
    if profile.get("executor"):
        assert "resources" not in profile and profile["retries"] == 2
    else:  # on one machine nothing is lost but what fails for good, and one case is measured at a time
        assert "retries" not in profile and profile["resources"] == {"bench": 1}


def test_a_finished_record_survives_what_fails_before_the_new_one_is_whole(scheduler, finished_copy, tmp_path):
    folder = finished_copy
    target = "results/this/records/kpm/one.json"
    path = folder / target
    whole = path.read_bytes()
    qsub = tmp_path / "programs/qsub"
    working = qsub.read_text()
    options = ("--workflow-profile", "profiles/generic", "--set-threads", "measure_case=1", "--retries", "0")
    options += ("--seconds-between-status-checks", "1", "--latency-wait", "1", target)
    # A submission fails, then a job.
    for fault in ("#!/bin/sh\nexit 1\n", working.replace('bash "$script"', "false")):
        qsub.write_text(fault)
        code, _ = faulty.run(folder, *options, "--forcerun", "measure_case", check=False, **scheduler)
        assert code != 0 and path.read_bytes() == whole
    qsub.write_text(working)
    faulty.run(folder, *options, "--forcerun", "measure_case", **scheduler)
    assert path.read_bytes() != whole  # measured again, once it can be
    assert list(folder.glob("results/this/.*")) == []  # no copy is left
