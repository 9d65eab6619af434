"""Figure 9 of tSparse: speed-up on the matrices of the literature, mixed precision, and float64 beside it."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import LITERATURE, means, of_sixteen, speedup_figure

NEEDS = ("fig10",)  # elements whose cases are judged here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 9: speed-up on A A, matrices of the literature, float16 in and float32 sums; float64"
    return speedup_figure(frame, title, LITERATURE, "tsparse_mean_cusparse_literature_2070", "float64")


def claims(rows: Rows) -> dict[str, Ours]:
    return means(rows, "literature", "2070") | of_sixteen(rows, "2070")
