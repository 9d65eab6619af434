"""The import contracts of pyproject.toml: none has exceptions, and each kind notices what it is there for."""

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def lint(tree):
    """Run lint-imports over the packages in the folder `tree`, with the contracts of pyproject.toml."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from importlinter.cli import lint_imports_command as run"
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}; run()", str(tree), *options], capture_output=True, text=True, cwd=tree
    )
    return done.returncode, done.stdout + done.stderr


def test_no_contract_has_exceptions():
    assert "exclude_type_checking_imports" not in SETTINGS and "skip_descendants" not in str(SETTINGS)
    assert not [contract["name"] for contract in SETTINGS["contracts"] if "ignore_imports" in contract]


@pytest.fixture
def tree(tmp_path):
    for package in SETTINGS["root_packages"]:
        for source in (ROOT / "src" / package).rglob("*.py"):
            copy = tmp_path / source.relative_to(ROOT / "src")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    return tmp_path


def test_each_wrong_import_is_noticed(tree):
    """`make lint` sees that the sources as they are keep the contracts."""
    wrong = {
        "spectile/core/memory.py": "def late():\n    from spectile.evd import api",  # upwards, inside a function
        "spectile/evd/api.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import spectile.kpm.api",
        "spectile/tsparse/api.py": "def late():\n    import spectile_study.bench.timing",
        "spectile_study/bench/timing.py": "from spectile.nearsparse.api import spamm",
        "spectile_study/bench/stats.py": "def late():\n    from spectile_study.bench import compare",  # a circle
    }
    for module, line in wrong.items():
        path = tree / module
        path.write_text(path.read_text() + f"\n\n{line}\n")
    status, text = lint(tree)
    assert status == 1
    broken = re.sub(r"\s+", " ", text.partition("Broken contracts")[2])
    for said in (
        "spectile.core.memory -> spectile.evd.api",
        "spectile.evd.api -> spectile.kpm.api",
        "spectile.tsparse.api -> spectile_study.bench.timing",
        "spectile_study.bench.timing -> spectile.nearsparse.api",
        ".stats -> .compare",
    ):
        assert said in broken, text


def test_no_circle_of_modules_and_the_packages_that_hold_them():
    """The contract compares siblings; a module that imports the package that it lies in is its blind spot."""
    graph = grimp.build_graph(*SETTINGS["root_packages"], cache_dir=None)
    graphlib.TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    ).prepare()


def test_no_import_hides_in_a_string():
    """Names of our modules are given to importlib only where a public name or a paper chooses among several."""
    allowed = {"spectile/__init__.py", "spectile_study/bench/measure/case.py"}
    hiding = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                named = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                if any(isinstance(value, str) and value.startswith("spectile") for value in named):
                    hiding.add(path.relative_to(ROOT / "src").as_posix())
    assert hiding <= allowed
