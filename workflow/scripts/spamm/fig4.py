"""Figure 4 of cuSpAMM: the map of valid products, and the work of the blocks for strides 1 and 2."""

import pandas
from matplotlib.patches import Rectangle

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 4: valid products of each 32-block of C, N = 1,024, and their assignment", 1, 2, (9, 4.2))
    rows = at(frame, p_study="map", status="ok")
    for stride, ax in zip((1, 2), drawing.axes[0], strict=True):
        if not len(rows):
            drawing.empty(ax, "no record of the map in this run")
            continue
        row = rows.iloc[0]
        side = int(len(row[f"v_loads_{stride}"]) ** 0.5)
        image = drawing.image(ax, row, f"v_loads_{stride}", (side, side))
        drawing.figure.colorbar(image, ax=ax, label="tile products of a thread block")
        ax.set_title(
            f"s = {stride}: {stride * stride} tile{'s' if stride > 1 else ''} a block, "
            f"max/mean {row[f'v_max_over_mean_{stride}']:.2f}"
        )
        ax.set_xlabel("block column j")
        ax.set_ylabel("block row i")
    if len(rows):
        side = int(len(rows.iloc[0]["v_loads_1"]) ** 0.5)
        for p in (0, side // 2):
            for q in (0, side // 2):
                drawing.axes[0, 0].add_patch(Rectangle((q - 0.5, p - 0.5), 1, 1, fill=False, edgecolor="red"))
        drawing.axes[0, 1].add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor="red"))
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    worse = rows.at(p_study="map").column("v_max_over_mean_1", per="v_max_over_mean_2")
    return {"spamm_stride_balances": worse.min().at_least(1)}
