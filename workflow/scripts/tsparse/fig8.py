"""Figure 8 of tSparse: speed-up on the matrices chosen by the criteria, mixed precision."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import CRITERIA, means, speedup_figure


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 8: speed-up on A A, matrices chosen by the criteria, float16 in and float32 sums"
    return speedup_figure(frame, title, CRITERIA, "tsparse_mean_cusparse_criteria_titan", "float16", extra=True)


def claims(rows: Rows) -> dict[str, Ours]:
    return means(rows, "criteria", "titan")
