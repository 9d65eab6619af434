"""The pins that rebuild the environment: every package that is asked for, in a version that is allowed."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "envs/constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}


@pytest.mark.parametrize("package", [".", "src/spectile_study"])
def test_every_dependency_is_pinned_to_a_version_that_is_allowed(package):
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        wanted = Requirement(line)
        if canonicalize_name(wanted.name) != "spectile":
            assert wanted.specifier.contains(PINS[canonicalize_name(wanted.name)]), line


def test_pins_are_versions_and_no_addresses():
    assert all(version and "/" not in version and " " not in version for version in PINS.values())
    assert len(PINS) == len(LINES)
