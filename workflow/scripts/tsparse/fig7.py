"""Figure 7 of tSparse: speed-up on the matrices of the literature, mixed precision."""

import pandas

from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import LITERATURE, speedup_figure


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 7: speed-up on A A, matrices of the literature, float16 in and float32 sums"
    return speedup_figure(frame, title, LITERATURE, "tsparse_mean_cusparse_literature_titan", "")
