"""Every figure and table of the workflow has its script, its caption, and cases that name it."""

from pathlib import Path

import pytest

from spectile_study import papers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_a_figure_is_a_script_a_caption_and_a_word_in_the_sheet(paper):
    scripts = {path.stem for path in (ROOT / "workflow/scripts" / paper).glob("*.py")}
    captions = {path.stem for path in (ROOT / "workflow/report" / paper).glob("*.rst")}
    head, *rows = (ROOT / f"config/{paper}.tsv").read_text().splitlines()
    column = head.split("\t").index("element")
    named = {name for row in rows for name in row.split("\t")[column].split(",")}
    assert scripts == captions and scripts <= named
