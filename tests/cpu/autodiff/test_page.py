"""The page about derivatives: what it shows runs."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/autodiff.md"


def test_examples_run(capsys):
    pytest.importorskip("torch")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    # (1, 0, 0) and (0, 1, -1) / sqrt(2) belong to the eigenvalue 1; the triangle counts for both.
    gradient, finite, change, sparse, near_sparse = capsys.readouterr().out.splitlines()
    assert gradient == "[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, -1.0, 0.5]]" and finite == "True"
    assert change == "[[0.3333, 0.3333, 0.2211], [0.3333, 0.3333, 0.2211], [0.2211, 0.2211, 0.1602]]"
    assert sparse == "[[4.0, 4.0], [0.0, 8.0]]" and near_sparse == "True True"


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_examples_of_docstrings_run(library):
    pytest.importorskip(library)
    module, said, runner = importlib.import_module(f"spectile.{library}"), [], doctest.DocTestRunner()
    for name in module.__all__:
        for test in doctest.DocTestFinder(recurse=False).find(getattr(module, name), name, globs={}):
            runner.run(test, out=said.append)
    assert not runner.failures and runner.tries, "".join(said)


@pytest.mark.parametrize("library, name", [("jax", "JAX"), ("torch", "PyTorch")])
def test_a_missing_library_is_named_in_one_sentence(library, name):
    code = f"import sys; sys.modules['{library}'] = None; import spectile; spectile.{library}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: spectile.{library} needs {name}") and f'"spectile[{library}]"' in last
