"""Where the workflow may lie: a path with spaces, a checkout that is only read, another workflow that uses it."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from spectile_study.bench import provenance

from .conftest import ROOT
from .faulty import workflow as faulty

ALL = ("--cores", "2")
# The Snakefile that docs/cluster.md shows.
(OUTSIDE,) = re.findall(r"```\n(module .*?)```", (ROOT / "docs/cluster.md").read_text(), flags=re.DOTALL)
ALL_OF_IT = """\
rule everything:
    default_target: True
    input: rules.spectile_all.input
"""


@pytest.fixture
def spaced_python(tmp_path):
    """Return an interpreter whose path has a space, with the packages of this one."""
    folder = tmp_path / "a b/.venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def test_results_lie_elsewhere_and_a_checkout_whose_path_has_a_space_is_only_read(spaced_python):
    folder = faulty.faulty_workflow(spaced_python.parents[2] / "check out", {"case": "one"})
    (folder / "config/matrices.tsv").chmod(0o444)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    out = spaced_python.parents[2] / "else where"
    out.mkdir()
    places = ("--snakefile", folder / "Snakefile", "--directory", out)
    command = [str(word) for word in (spaced_python, "-m", "snakemake", *places, *ALL)]
    path = f"{spaced_python.parent}:{os.environ['PATH']}"
    environment = faulty.environment(folder, PATH=path, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("figures/kpm_fig1.svg", "claims.html", "config.yaml", "report.zip"):
        assert (out / "results/this" / name).stat().st_size > 100
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_another_workflow_uses_it_as_a_module(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "checkout", {"case": "one"})
    outside = tmp_path / "outside"
    outside.mkdir()
    snakefile = OUTSIDE.replace("/path/to/spectile", str(folder))
    (outside / "Snakefile").write_text(snakefile)
    command = [sys.executable, "-m", "snakemake", *ALL]
    environment = faulty.environment(folder)
    environment["PYTHONPATH"] = str(faulty.FAULTY)
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (outside / "picture.svg").read_text().startswith("<?xml")
    # Everything of the module, and a report of the outside workflow's own: a module's hooks do not run.
    (outside / "Snakefile").write_text(snakefile.partition("rule picture")[0] + ALL_OF_IT)
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (outside / "results/box/claims.html").exists() and not (outside / "results/box/report.zip").exists()
    command = [sys.executable, "-m", "snakemake", "--report", "own.zip"]
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (outside / "own.zip").read_bytes()[:2] == b"PK"


def test_a_report_that_is_missing_or_was_not_written_is_written_by_the_next_run(finished_copy):
    folder = finished_copy
    report = folder / "results/this/report.zip"
    assert report.read_bytes()[:2] == b"PK"
    _, printed = faulty.run(folder, *ALL)
    assert "Nothing to be done" in printed
    report.unlink()
    caption = folder / "workflow/report/claims.rst"
    whole = caption.read_text()
    caption.write_text("{{ nothing(")
    code, printed = faulty.run(folder, *ALL, check=False)
    assert code != 0 and "spectile: everything is there but the report" in printed
    assert not report.exists() and not list(report.parent.glob(".report-*"))
    caption.write_text(whole)
    _, printed = faulty.run(folder, *ALL)
    assert report.read_bytes()[:2] == b"PK" and "Measuring" not in printed
    # A Snakemake that was killed while it wrote leaves its request behind.
    report.write_bytes(b"not written yet")
    _, printed = faulty.run(folder, *ALL)
    assert report.read_bytes()[:2] == b"PK" and "Measuring" not in printed
    assert not list(folder.glob("*.zip"))


def test_the_sources_beside_the_workflow_are_those_that_run(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "own", {"case": "one"})
    path = folder / "src/spectile_study/bench/timing.py"
    path.write_text(path.read_text() + "\ntime.perf_counter()\n")
    path = folder / "src/spectile_study/plan.py"
    path.write_text(path.read_text() + "\nprint('plan beside the workflow')\n")
    # Another checkout stands first on the search path, as where its environment is used.
    other = {"PYTHONPATH": f"{faulty.FAULTY}:{ROOT / 'src'}"}
    _, printed = faulty.run(folder, "results/this/figures/kpm_fig1.svg", *ALL, **other)
    assert "plan beside the workflow" in printed
    known = faulty.records(folder)["one"][0]["provenance"]
    assert provenance.edited(known, provenance.Case("kpm", "", "cpu")) == ["sources"]


def test_make_says_how_a_killed_run_goes_on(tmp_path):
    locked = tmp_path / ".snakemake/locks"
    locked.mkdir(parents=True)
    (locked / "0.input.lock").touch()
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in {"snakemake": "exit 1", "python": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "src/spectile_study").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "src/spectile_study"):
        (folder / "pyproject.toml").touch()
    (tmp_path / ".venv/installed").touch()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    done = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert ".venv/bin/snakemake --unlock, then make again; finished records are kept" in done.stdout
    (locked / "0.input.lock").unlink()
    done = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "unlock" not in done.stdout
    assert Path(tmp_path / "Makefile").exists()
