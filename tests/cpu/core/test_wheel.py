"""The wheel: built, installed with nothing but its declared dependencies, and used from another directory."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*command, cwd, check=True):
    """Run a command with no variable of ours in its environment."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def pip(*arguments):
    """Run the pip of this environment, with the caller's settings of package indexes and proxies."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=inherited)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(project, folder):
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(project))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Interpreter of an environment that holds the wheel and what it declares."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder)
    python = folder / "bin/python"
    pip("--python", str(python), "install", "--no-compile", str(wheel))
    return python


def sources(package):
    """Return the tracked files of a package that belong into its wheel."""
    done = subprocess.run(["git", "ls-files", f"src/{package}"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name.removeprefix("src/") for name in done.stdout.splitlines() if (ROOT / name).exists()}
    assert {Path(name).suffix for name in tracked} <= {
        ".py", ".cu", ".cuh", ".h", ".yaml", ".typed", ".css", ".txt", ".toml"
    }  # fmt: skip
    return {name for name in tracked if not name.endswith(".toml")}


def packed(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_source_of_the_library_and_nothing_else(wheel):
    tracked, kernels = sources("spectile"), {name for name in packed(wheel) if name.endswith(".cubin")}
    assert packed(wheel) - kernels == tracked and any(name.endswith(".cu") for name in tracked)


def test_the_study_is_a_distribution_of_its_own(tmp_path):
    wheel = built(ROOT / "src/spectile_study", tmp_path)
    assert packed(wheel) == sources("spectile_study")
    files = zipfile.ZipFile(wheel)
    about = {name.rpartition("/")[2]: files.read(name).decode() for name in files.namelist() if ".dist-info/" in name}
    assert "Requires-Dist: spectile==" in about["METADATA"]
    assert about["entry_points.txt"].split() == [
        "[console_scripts]",
        "spectile-study",
        "=",
        "spectile_study.__main__:main",
    ]


def test_only_declared_dependencies_are_installed(python):
    listed = pip("--python", str(python), "list", "--format=json")
    names = {package["name"] for package in json.loads(listed)}
    assert names - {"llvmlite"} == {"numpy", "scipy", "numba", "threadpoolctl", "spectile"}  # llvmlite is Numba's


def test_the_example_of_the_readme_runs_from_another_directory(python, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    where = "import spectile; assert 'site-packages' in spectile.__file__\n"
    assert blocks and run(python, "-c", where + "\n".join(blocks), cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())  # and leave nothing behind


def test_commands_of_the_library(python, tmp_path):
    command = str(python.with_name("spectile"))
    assert re.fullmatch(r"spectile \d+\.\d+\.\d+\n", run(command, "--version", cwd=tmp_path).stdout)
    probe = run(command, "probe", cwd=tmp_path)
    assert json.loads(probe.stdout)["libraries"].keys() >= {"numpy", "scipy", "numba"} and not probe.stderr
    other = run(command, "measure", cwd=tmp_path, check=False)
    assert other.returncode == 2 and "choose from probe, compile" in other.stderr.replace("'", "")


def test_import_takes_less_than_50_ms(python, tmp_path):
    """The least of some imports, by the processor's time, which what else the machine does hardly lengthens."""
    code = "import time; start = time.process_time(); import spectile; print(time.process_time() - start)"
    assert min(float(run(python, "-c", code, cwd=tmp_path).stdout) for _ in range(9)) < 0.05


def test_commands_describe_themselves_with_an_example_that_they_take(python, tmp_path):
    command = str(python.with_name("spectile"))
    for name in ("probe", "compile"):
        shown = run(command, name, "--help", cwd=tmp_path).stdout
        (example,) = re.findall(r"^example: spectile (.*)$", shown, flags=re.M)
        assert example.startswith(name) and "\n\noptions:" in shown
    kernels = run(command, "compile", "--arch", "none", cwd=tmp_path, check=False)
    assert kernels.returncode == 2 and kernels.stderr.count("\n") == 1 and "sm_90a" in kernels.stderr
