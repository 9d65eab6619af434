"""Figure 9 of tSparse: speed-up on the matrices of the literature, float64."""

import pandas

from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import LITERATURE, speedup_figure


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 9: speed-up on A A, matrices of the literature, float64"
    return speedup_figure(frame, title, LITERATURE, "float64", "tsparse_mean_cusparse_literature_2070", extra=False)
