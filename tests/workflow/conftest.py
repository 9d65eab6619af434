"""A copy of the repository to run Snakemake in, so that tests leave the checkout alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW_PARTS = ("Snakefile", "workflow", "config", "profiles", "envs", "results/recorded")


def copy_workflow(target):
    """Copy what Snakemake reads to `target`; the library stays the installed one."""
    for part in WORKFLOW_PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target / part)
    (target / "src").symlink_to(ROOT / "src")
    return target


@pytest.fixture
def workflow_copy(tmp_path):
    return copy_workflow(tmp_path)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Return a folder with a finished run of two cases, one of which has no method that passes: copy it."""
    from .faulty import workflow as faulty

    cases = {"case": "one"}, {"case": "two", "methods": "nan"}
    folder = faulty.faulty_workflow(tmp_path_factory.mktemp("finished") / "copy", *cases)
    faulty.run(folder, "--cores", "2", "--set-threads", "measure_case=1")
    return folder


@pytest.fixture
def finished_copy(finished_run, tmp_path):
    """Return a copy of that folder of the test's own, in which Snakemake knows all files."""
    return shutil.copytree(finished_run, tmp_path / "copy", symlinks=True)


def snakemake(folder, *options, check=True, timeout=1200, **environment):
    """Run Snakemake in `folder`; return the finished process with its output."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *map(str, options)],
        cwd=folder,
        env=os.environ | environment,
        check=check,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
