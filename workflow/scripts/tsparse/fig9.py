"""Figure 9 of tSparse: speed-up on the matrices of the literature, mixed precision, and float64 beside it."""

import pandas

from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import LITERATURE, speedup_figure


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 9: speed-up on A A, matrices of the literature, float16 in and float32 sums; float64"
    return speedup_figure(frame, title, LITERATURE, "tsparse_mean_cusparse_literature_2070", "float64")
