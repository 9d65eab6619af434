"""Figure 10 of tSparse: speed-up on the matrices chosen by the criteria, mixed precision, and float64 beside it."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import CRITERIA, means, speedup_figure

NEEDS = ("matrices",)  # elements whose cases are drawn here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 10: speed-up on A A, matrices chosen by the criteria, float16 in and float32 sums; float64"
    return speedup_figure(frame, title, CRITERIA, "tsparse_mean_cusparse_criteria_2070", "float64", extra=True)


def claims(rows: Rows) -> dict[str, Ours]:
    return means(rows, "criteria", "2070")
