"""The package as a user meets it: light to import, its public names where they should be."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spectile


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_example_of_the_readme_runs():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    lines = run(text.partition("```python\n")[2].partition("```")[0]).splitlines()
    tau, valid_ratio, bound = map(float, lines[0].split())
    assert tau > 0 and abs(valid_ratio - 0.1) < 0.01 and bound > 0
    assert abs(float(lines[1].split()[1]) - 4000) < 40


def test_import_is_light():
    heavy = "('numba', 'cupy', 'pandas', 'matplotlib', 'scipy')"
    assert run(f"import sys, spectile; print([m for m in {heavy} if m in sys.modules])").strip() == "[]"


@pytest.mark.parametrize("name", spectile.__all__)
def test_public_names_are_documented(name):
    assert getattr(spectile, name).__doc__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        spectile.nothing  # noqa: B018


@pytest.mark.parametrize(
    "imports",
    [
        "from spectile import spamm",
        "import spectile.spamm.api; from spectile import spamm",
        "from spectile.spamm import norm_map; import spectile; spamm = spectile.spamm",
        "from spectile.spamm import spamm",
    ],
)
def test_spamm_is_callable_however_it_is_imported(imports):
    code = "; import numpy; a = numpy.eye(4); print(spamm(a, a, tau=0.0, block=2, backend='cpu').c.trace())"
    assert float(run(imports + code)) == np.trace(np.eye(4))
