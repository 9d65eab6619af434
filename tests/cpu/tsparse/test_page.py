"""The page about semirings, masks and three matrices: what it shows comes out."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/sparse.md"


def test_examples_print_what_they_promise(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(block, names)
    ways, same, similar, terms, *listed, total, block, clusters, multigrid = capsys.readouterr().out.splitlines()
    assert ways == "[[10.0, 0.0, 5.0], [4.0, 0.0, 0.0], [0.0, 3.0, 10.0]]"
    assert same == "True" and similar == "20000 10"
    assert terms == "csc 0" and total == block == "True"
    assert listed == ["cpu: one pass, by columns", "cpu: counted, then filled, by columns"]
    assert clusters == "4 4"  # each planted group is one cluster
    assert multigrid == "[2304, 576, 144, 36, 9] True"
