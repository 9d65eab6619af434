"""Figure 7 of tSparse: speed-up on the matrices of the literature, mixed precision."""

import pandas

from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import LITERATURE, SIXTEEN, means, of_sixteen, speedup_figure

NEEDS = ("fig8",)  # elements whose cases are judged here, too


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 7: speed-up on A A, matrices of the literature, float16 in and float32 sums"
    return speedup_figure(frame, title, LITERATURE, "tsparse_mean_cusparse_literature_titan", "")


def claims(rows: Rows) -> dict[str, Ours]:
    but_one = rows.at(p_matrix=[name for name in SIXTEEN if name != "web-NotreDame"])
    gain = but_one.speedup("tasks_float16", "tasks_nontcu").geomean()
    random = rows.at(p_part="literature")
    over = [random.speedup("tasks_float16", rival).geomean() for rival in ("rmerge2", "nsparse", "ac_spgemm", "speck")]
    best = max(over, key=lambda ours: ours.number if ours.is_known else -1)
    gain_and_loss = {"tsparse_tcu_gain": gain, "tsparse_loses_on_random": best.at_most(1)}
    return means(rows, "literature", "titan") | of_sixteen(rows, "titan") | gain_and_loss
