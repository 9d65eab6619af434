"""The page about derivatives: what it shows runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/autodiff.md"


def test_examples_run(capsys):
    pytest.importorskip("torch")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    # (1, 0, 0) and (0, 1, -1) / sqrt(2) belong to the eigenvalue 1; the triangle counts for both.
    gradient, finite = capsys.readouterr().out.splitlines()
    assert gradient == "[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, -1.0, 0.5]]" and finite == "True"
