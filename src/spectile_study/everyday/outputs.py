"""The files that are drawn of everyday draws: what a run of the workflow plans, which loads nothing that draws."""

from __future__ import annotations

from spectile_study.papers import PAPERS

FIGURES = tuple(PAPERS)
TABLES = ("distribution", "worst", "predicted")


def outputs() -> list[str]:
    """Return the files, below the folder of a machine."""
    return [*(f"everyday/{name}.svg" for name in FIGURES), *(f"everyday/{name}.html" for name in TABLES)]
