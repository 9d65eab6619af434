"""Functions of the CPU where compiled code can be kept, and where no folder for it can be written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "src"
COMPILED = sorted(
    path.relative_to(SOURCES).with_suffix("").as_posix().replace("/", ".")
    for path in SOURCES.glob("spectile/**/*.py")
    if re.search(r"^@njit\(", path.read_text(), flags=re.MULTILINE)
)
# Importing a module decorates its functions; two small ones are compiled.
CHILD = f"""
import importlib, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in {COMPILED}:
        importlib.import_module(name)
    import numpy as np
    from spectile.kpm.cpu.patterns import __file__ as where
    from spectile.nearsparse import norm_map, tune_tau
    norms = norm_map(np.full((64, 64), 2.0))
    assert norms.norms.tolist() == [[64.0, 64.0]] * 2 and tune_tau(norms, norms, 0.5)[1] in (0.0, 1.0)
print(where)
for warning in caught:
    if issubclass(warning.category, RuntimeWarning):
        print(warning.message)
"""


@pytest.fixture
def unwritable(tmp_path):
    """Return a copy of the library, and variables of a process, that leave Numba no folder to write to."""
    copy = tmp_path / "site/spectile"
    shutil.copytree(SOURCES / "spectile", copy, ignore=shutil.ignore_patterns("__pycache__", "cubins"))
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    for folder in folders:
        # Root may write to any folder, but nobody below a file.
        (folder / "__pycache__").touch()
        folder.chmod(0o555)
    home = tmp_path / "home"
    home.touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PYTHONWARNINGS")}
    homes = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": str(copy.parent)}
    yield kept | homes | {"PYTHONDONTWRITEBYTECODE": "1"}
    for folder in folders:
        folder.chmod(0o755)


def lines(variables):
    done = subprocess.run([sys.executable, "-c", CHILD], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    where, *warned = done.stdout.splitlines()
    assert where.startswith(variables["PYTHONPATH"])
    return warned


def test_where_nothing_can_be_written_functions_are_compiled_and_it_is_said_once(unwritable):
    (warned,) = lines(unwritable)
    assert "compiles the functions of the CPU anew" in warned and "NUMBA_CACHE_DIR" in warned


def test_a_folder_that_is_named_is_used(unwritable, tmp_path):
    assert not lines(unwritable | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")})
    assert list((tmp_path / "cache").rglob("norms.*.nbi"))


def test_every_function_that_is_kept_is_compiled_through_core():
    assert {name.split(".")[1] for name in COMPILED} == {"nearsparse", "tsparse", "evd", "kpm"}
    for path in SOURCES.rglob("*.py"):
        if path != SOURCES / "spectile/core/jit.py":
            assert not re.search(r"cache=True|\"cache\"", path.read_text()), f"{path} is to use spectile.core.jit.njit"
