"""The page of headlines across the recorded commits: read from git, and of today's frames at its end."""

import re
import subprocess

import pytest

from spectile_study.bench import record
from tests.modules import module_at

from .recorded import ROOT, frame


@pytest.fixture(scope="module")
def history():
    return module_at(ROOT / "docs/history.py")


def test_the_last_line_of_a_headline_is_of_todays_frame(history):
    page = history.PAGE.read_text()
    for paper in history.PAPERS:
        for line in history.headlines(paper, frame(paper)):
            name = f"On h200: {line.what}, over {line.over}"
            (part,) = re.findall(rf"## {re.escape(name)}\n\n(.*?)(?=\n## |\Z)", page, flags=re.DOTALL)
            last = part.strip().splitlines()[-1]
            assert last.endswith(f"| {history.told(line)} |"), "python docs/history.py writes it anew"


def test_a_line_is_of_a_recording_that_moved_the_number(history, tmp_path):
    def git(*words):
        identity = ("-c", "user.name=n", "-c", "user.email=e@e")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    rows = frame("kpm")
    rows = rows[(rows["p_study"] == "step") & rows["method"].isin(["naive", "blocked"])]
    faster = rows.copy()
    faster["samples_s"] = [each / 2 if method == "blocked" else each
                           for each, method in zip(rows["samples_s"], rows["method"], strict=True)]  # fmt: skip
    path = tmp_path / "results/recorded/h200/kpm.parquet"
    path.parent.mkdir(parents=True)
    git("init", "-q")
    for number, table in enumerate((rows, faster, faster.iloc[::-1])):
        record.write_frame(table, path)
        git("add", "-A")
        git("commit", "-qm", str(number))
    found = re.findall(
        r"^\| \d{4}-\d\d-\d\d \| [0-9a-f]{7} \| [^|]* \| ([\d.]+) \| 1 Ham", history.page(tmp_path), flags=re.MULTILINE
    )
    assert len(found) == 2 and float(found[1]) == pytest.approx(2 * float(found[0]), rel=2e-3)
