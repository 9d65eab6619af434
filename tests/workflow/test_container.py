"""The container holds what the rules' environments name, and nothing that the package does not know."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from .conftest import ROOT

DOCKERFILE = (ROOT / "container/Dockerfile").read_text()
LIBRARY, STUDY = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "src/spectile_study")
)
ENVIRONMENTS = {path.stem: yaml.safe_load(path.read_text())["dependencies"] for path in ROOT.glob("envs/*.yaml")}


def test_python_is_one_that_the_package_takes():
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)-slim", DOCKERFILE, re.M)
    assert version in SpecifierSet(LIBRARY["requires-python"])
    for name, dependencies in ENVIRONMENTS.items():
        (python,) = [word for word in dependencies if isinstance(word, str) and word.startswith("python ")]
        assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(LIBRARY["requires-python"]), name


def test_extras_are_those_of_the_environments():
    installed = dict(re.findall(r'-e "/opt/spectile([\w/]*)\[([^]]*)\]"', DOCKERFILE))
    assert installed == {"": "cuda13", "/src/spectile_study": "cluster,crate"}
    for folder, project in (("", LIBRARY), ("/src/spectile_study", STUDY)):
        assert set(installed[folder].split(",")) <= set(project["optional-dependencies"])


def test_programs_are_those_of_the_environments():
    (packages,) = re.findall(r"--no-install-recommends (.*) \\$", DOCKERFILE, re.M)
    programs = {
        word.split()[0] for dependencies in ENVIRONMENTS.values() for word in dependencies if isinstance(word, str)
    }
    assert programs == {"python", "pip"}
    # What no channel has is named in the header of its environment.
    assert set(packages.split()) == {"ergo", "git"}
    assert "install Debian's package ergo" in (ROOT / "envs/ergo.yaml").read_text()


def packages_of(environment):
    return set(next(word["pip"] for word in ENVIRONMENTS[environment] if isinstance(word, dict)))


def test_environments_hold_what_the_package_needs_and_no_path():
    outside = {word for word in STUDY["dependencies"] if re.match("(snakemake|pygments|spectile)[^a-z]", word)}
    measuring = set(LIBRARY["dependencies"]) | set(STUDY["dependencies"]) - outside
    assert len(outside) == 3
    assert packages_of("cpu") == packages_of("ergo") == measuring
    assert packages_of("gpu") == measuring | set(LIBRARY["optional-dependencies"]["cuda13"])
    assert set(LIBRARY["dependencies"]) < packages_of("plot") < measuring


@pytest.mark.slow
def test_drawing_runs_in_the_environment_that_it_names(tmp_path):
    python = tmp_path / "plot/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "plot"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *sorted(packages_of("plot"))], check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    drawn = ["draw", "--study", ROOT, "--paper", "kpm", "--element", "fig7", "--results", tmp_path]
    frame = ROOT / "results/recorded/h200/kpm.parquet"
    subprocess.run([python, "-m", "spectile_study", *drawn, "--from", frame], env=environment, check=True)
    assert (tmp_path / "figures/kpm_fig7.svg").stat().st_size > 1000


def test_every_rule_names_an_environment_that_is_there():
    for path in ROOT.glob("workflow/rules/*.smk"):
        blocks = re.findall(r"    conda:\n((?: {8,}.*\n)+)", path.read_text())
        assert len(blocks) == path.read_text().count("    conda:")
        for block in blocks:
            named = re.findall(r'"\.\./\.\./envs/(\w+)\.yaml"', block)
            assert named and set(named) <= set(ENVIRONMENTS)
