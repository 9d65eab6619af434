"""One figure a paper, compared with its approved picture.

`make pictures` draws the approved ones anew after a wanted change of the look; look at each before it is committed.
"""

from pathlib import Path

import pytest

from spectile_study.bench import record
from spectile_study.figures.elements import elements

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stem", ["spamm_fig5", "tsparse_fig12", "evd_fig11", "kpm_fig9"])
@pytest.mark.mpl_image_compare(baseline_dir="pictures", style="default", tolerance=12, savefig_kwargs={"dpi": 60})
def test_picture(stem, monkeypatch):
    monkeypatch.chdir(ROOT)
    paper, _, name = stem.partition("_")
    (element,) = [element for element in elements(paper) if element.name == name]
    # Rows of an H200 that stay as they are: a new measurement is no new look.
    frame = record.read_frame(Path(__file__).parent / f"pictures/{stem}.parquet", whole=True)
    return element.draw(frame).finish(stem)
