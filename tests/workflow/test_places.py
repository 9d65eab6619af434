"""Where the workflow may lie: a path with spaces, a checkout that is only read, another workflow that uses it."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from .conftest import ROOT
from .faulty import workflow as faulty

ALL = ("--cores", "2")
OUTSIDE = """\
configfile: "{folder}/config/config.yaml"

module spectile:
    snakefile: "{folder}/Snakefile"
    config: config

use rule * from spectile as spectile_*

rule picture:
    default_target: True
    input: "results/this/figures/kpm_fig1.svg"
    output: "picture.svg"
    shell: "cp {{input:q}} {{output:q}}"
"""


@pytest.fixture
def spaced_python(tmp_path):
    """Return an interpreter whose path has a space, with the packages of this one."""
    folder = tmp_path / "a b/.venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def test_a_path_with_spaces_runs_from_measuring_to_the_report(spaced_python):
    folder = faulty.faulty_workflow(spaced_python.parents[2] / "check out", {"case": "one"})
    path = f"{spaced_python.parent}:{os.environ['PATH']}"
    environment = faulty.environment(folder, PATH=path)
    command = [str(spaced_python), "-m", "snakemake", *ALL]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("figures/kpm_fig1.svg", "claims.html", "config.yaml", "report.zip"):
        assert (folder / "results/this" / name).stat().st_size > 100


def test_results_lie_elsewhere_and_the_checkout_is_only_read(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "checkout", {"case": "one"})
    (folder / "config/matrices.tsv").chmod(0o444)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    out = tmp_path / "elsewhere"
    out.mkdir()
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(folder / "Snakefile"),
        "--directory",
        str(out),
        *ALL,
    ]
    environment = faulty.environment(folder, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "results/this/report.zip").stat().st_size > 1000
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_another_workflow_uses_it_as_a_module(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "checkout", {"case": "one"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "Snakefile").write_text(OUTSIDE.format(folder=folder))
    command = [sys.executable, "-m", "snakemake", *ALL, "--resources", "bench=1"]
    environment = faulty.environment(folder)
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (outside / "picture.svg").read_text().startswith("<?xml")


def test_the_report_is_made_again_where_it_is_missing(tmp_path):
    folder = faulty.faulty_workflow(tmp_path, {"case": "one"})
    faulty.run(folder, *ALL)
    report = folder / "results/this/report.zip"
    whole = report.read_bytes()
    assert whole[:2] == b"PK"
    _, printed = faulty.run(folder, *ALL)
    assert "Nothing to be done" in printed
    report.unlink()
    _, printed = faulty.run(folder, *ALL)
    assert report.read_bytes()[:2] == b"PK" and "Measuring" not in printed
    assert not list(folder.glob("*.zip"))


def test_make_says_how_a_killed_run_goes_on(tmp_path):
    locked = tmp_path / ".snakemake/locks"
    locked.mkdir(parents=True)
    (locked / "0.input.lock").touch()
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in {"snakemake": "exit 1", "python": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv/installed").touch()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    done = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert ".venv/bin/snakemake --unlock, then make again; finished records are kept" in done.stdout
    (locked / "0.input.lock").unlink()
    done = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "unlock" not in done.stdout
    assert Path(tmp_path / "Makefile").exists()
