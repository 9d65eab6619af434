"""docs/plan.md: every word of the plan has a line, and every place and test that a line names is there."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import spectile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plan.md").read_text()
#: The plan in its own words.
PLAN = {
    "Rules": ("download matrices", "generate decay matrices", "generate ergo inputs", "generate Hamiltonian inputs",
              "run kernels", "run baselines"),
    "Packages": ("snakemake", "cupy", "scipy", "ssgetpy", "pandas", "seaborn"),
    "Folders": ("Snakefile", "workflow", "src", "config", "envs", "results", "tests"),
    "Ways of use": ("`snakemake --cores all`", "cluster profile", "calling `eigh`", "calling `spamm`",
                    "reading the report"),
}  # fmt: skip


def rows(section):
    """Return the cells of the table of a section."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return lines[2:]


@pytest.mark.parametrize("section", PLAN)
def test_every_word_of_the_plan_has_a_line(section):
    assert set(PLAN[section]) <= {cells[0] for cells in rows(section)}


def test_rules_are_those_of_the_workflow():
    named = {name for cells in rows("Rules") for name in re.findall(r"`([a-z]+_[a-z_]+)`", cells[1])}
    text = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    made = set(re.findall(r"^rule (\w+):", text, flags=re.MULTILINE)) | {"draw_figure", "draw_table"}
    assert named <= made
    inputs = (ROOT / "workflow/rules/inputs.smk").read_text()
    assert set(re.findall(r"^rule (\w+):", inputs, flags=re.MULTILINE)) <= named


def test_packages_are_needed_and_used_where_the_page_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = " ".join([*project["dependencies"], *(word for words in extras.values() for word in words)])
    for name, _, place in rows("Packages"):
        assert re.search(rf"\b{name}(-cuda13x)?\b", needed), name
        (link,) = re.findall(r"\]\(\.\./([^)]+)\)", place)
        assert re.search(rf"\b(import|from) {name}\b", (ROOT / link).read_text()), f"{link} uses no {name}"


def test_folders_are_there():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {cells[0] for cells in rows("Folders")} <= {line.partition("/")[0] for line in listed.splitlines()}


def test_the_tests_that_the_page_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 12
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists(), f"{path}::{name}"


def test_functions_are_public():
    called = re.findall(r"`from spectile import (\w+)`", PAGE)
    assert called and all(name in spectile.__all__ for name in called)
