"""The H200's frames and what is drawn of them, read and drawn once for all tests; nobody changes either."""

from functools import cache
from pathlib import Path

from matplotlib import pyplot

from spectile_study.bench import claims, record
from spectile_study.figures.elements import SCRIPTS, elements

ROOT = Path(__file__).parents[2]
CLAIMS = claims.listed(ROOT / "config/claims.tsv").reset_index()


@cache
def frame(paper):
    return record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet", whole=True)


@cache
def drawing(element):
    """Return the drawing of an element of the whole frame of its paper."""
    claims.listed(ROOT / "config/claims.tsv")
    drawn = element.draw(frame(element.paper))
    pyplot.close("all")
    return drawn


def marks(element):
    """Return what ties the drawing of an element to records."""
    drawn = drawing(element)
    return drawn.notes if element.is_figure else drawn.sources


@cache
def of(paper):
    """Return the elements of a paper, by name."""
    return {element.name: element for element in elements(paper, ROOT / SCRIPTS)}
