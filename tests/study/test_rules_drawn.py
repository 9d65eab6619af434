"""The graph of a run's rules: drawn from left to right, and kept with the records."""

import itertools
import re
import shutil

from spectile_study.__main__ import main
from spectile_study.figures import rules

from .recorded import ROOT

EDGES = [
    ("fetch", "measure"), ("describe", "measure"), ("measure", "gather"), ("measure", "draw"), ("gather", "claims"),
    ("draw", "report"), ("claims", "report"), ("fetch", "report"),
]  # fmt: skip


def numbers(tag, text):
    return [list(map(int, re.findall(r'="(\d+)"', each)[:4])) for each in re.findall(f"<{tag} [^>]*>", text)]


def test_a_rule_stands_right_of_those_whose_files_it_takes_and_no_two_overlap():
    drawn = rules.svg(EDGES)
    assert set(re.findall(r">([a-z]+)</text>", drawn)) == {name for edge in EDGES for name in edge}
    lines, boxes = numbers("line", drawn), numbers("rect", drawn)
    assert len(lines) == len(EDGES) and all(start < end for start, _, end, _ in lines)
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in itertools.combinations(boxes, 2):
        assert x + width < other_x or other_x + other_width < x or y + height < other_y or other_y + other_height < y
    width, height = numbers("svg", drawn)[0][:2]
    assert all(x + wide <= width and y + high <= height for x, y, wide, high in boxes)


def test_a_graph_without_rules_is_a_picture_all_the_same():
    assert rules.svg([]).startswith("<svg ")


def test_the_graph_is_kept_with_the_records(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(ROOT / "results/recorded/epyc2/evd.zip", run)
    (run / "rules.svg").write_text(rules.svg(EDGES))
    assert main(["keep", "--records", str(run / "evd.zip"), "--into", str(tmp_path / "recorded/epyc2")]) == 0
    assert (tmp_path / "recorded/epyc2/rules.svg").read_text() == rules.svg(EDGES)
    assert "evd.zip" in capsys.readouterr().out
