"""The container holds what the rules' environments name, and nothing that the package does not know."""

import re
import tomllib

import yaml
from packaging.specifiers import SpecifierSet

from .conftest import ROOT

DOCKERFILE = (ROOT / "container/Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENTS = {path.stem: yaml.safe_load(path.read_text())["dependencies"] for path in ROOT.glob("envs/*.yaml")}


def test_python_is_one_that_the_package_takes():
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)-slim", DOCKERFILE, re.M)
    assert version in SpecifierSet(PROJECT["requires-python"])
    for name, dependencies in ENVIRONMENTS.items():
        (python,) = [word for word in dependencies if isinstance(word, str) and word.startswith("python ")]
        assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"]), name


def test_extras_are_those_of_the_environments():
    (extras,) = re.findall(r'pip install --no-cache-dir -e "/opt/spectile\[([^]]*)\]"', DOCKERFILE)
    wanted = {"cluster", "crate"}
    for dependencies in ENVIRONMENTS.values():
        for line in next(word["pip"] for word in dependencies if isinstance(word, dict)):
            wanted |= set(re.findall(r"[a-z0-9]+", line.partition("[")[2]))
    assert set(extras.split(",")) == wanted
    assert wanted <= set(PROJECT["optional-dependencies"])


def test_programs_are_those_of_the_environments():
    (packages,) = re.findall(r"--no-install-recommends (.*) \\$", DOCKERFILE, re.M)
    programs = {
        word.split()[0] for dependencies in ENVIRONMENTS.values() for word in dependencies if isinstance(word, str)
    }
    assert set(packages.split()) == programs - {"python", "pip"} | {"git"}


def test_every_rule_names_an_environment_that_is_there():
    for path in ROOT.glob("workflow/rules/*.smk"):
        named = re.findall(r'"\.\./\.\./envs/(\w+)\.yaml"', path.read_text())
        assert set(named) <= set(ENVIRONMENTS) and len(named) == path.read_text().count("    conda:")
