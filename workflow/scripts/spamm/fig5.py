"""Figure 5 of cuSpAMM: speed-up over the dense product by valid ratio, size and number of GPUs."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.cases.spamm.thresholds import RATIOS, TABLE_1
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.spamm import lines_of

GROUPS = {"fp16": "fp16", "fp32": "fp32", "cpu": "CPU"}


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 5: speed-up over the vendor's dense product, by valid ratio"
    rows, ratios = at(frame, p_study="product", status="ok"), [ratio / 100 for ratio in RATIOS]
    found = {group: {n: lines_of(rows, group, n) for n in TABLE_1} for group in GROUPS}
    there = [group for group in found if any(len(ours) for lines in found[group].values() for ours, *_ in lines)]
    if not there:
        drawing = Drawing(title)
        drawing.empty(drawing.ax, "no record of a product in this run")
        return drawing
    drawing = Drawing(title, len(there), len(TABLE_1), (13, 0.8 + 2.4 * len(there)), share_y=True)
    for axes, group in zip(drawing.axes, there, strict=True):
        axes[0].set_ylabel(f"{GROUPS[group]}: speed-up")
        for ax, n in zip(axes, TABLE_1, strict=True):
            if group == there[0]:
                ax.set_title(f"N = {n:,}")
            if not any(len(ours) for ours, *_ in found[group][n]):
                drawing.empty(ax, "no record")
                continue
            for ours, (color, marker, label), events in found[group][n]:
                # The device's own time is a lighter mark beside what a call takes.
                look = {"label": label, "color": color, "marker": marker}
                if events:
                    look |= {"label": f"{label}, {events}", "alpha": 0.3, "linestyle": ":"}
                drawing.marks(ax, ours, "v_valid_ratio", "speedup", **look)
            one = "1 / valid ratio" if group == "cpu" else "1 / valid ratio (1 GPU)"
            drawing.model_line(ax, ratios, [1 / ratio for ratio in ratios], one)
            if group != "cpu":
                printed = [f"spamm_t2_{n}_{ratio:02}_{group}" for ratio in RATIOS]
                drawing.paper_marks(ax, ratios, printed, "paper, 1 V100")
            ax.axhline(1, color="black", linewidth=0.5)
            ax.set_yscale("log")
            if group == there[-1]:
                ax.set_xlabel("valid ratio")
        drawing.legend_beside(axes[-1], axes, lambda label: (label.partition(" ")[2].startswith("GPU"), label))
    if "fp16" in there:
        drawing.note("fp16: over cuBLAS with sums in float32; Table 2 has cublasHgemm, the paper's baseline, too.")
    for group in [group for group in GROUPS if group not in there]:
        drawing.note(f"{GROUPS[group]}{'' if group == 'cpu' else ' on a GPU'}: this run holds no record.")
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    products = rows.at(p_study="product")
    single, half = (products.at(p_precision=precision) for precision in ("fp32", "fp16"))
    one, eight = single.at(p_gpus=1), half.at(p_n=4096, p_gpus=8)
    found = {
        f"spamm_more_gpus_{name}": here.speedup("spectile_05", "cublas").growth("p_gpus", "p_n").at_least(1)
        for name, here in (("fp32", single), ("fp16", half))
    }
    return found | {
        "spamm_max_fp32": one.speedup("spectile_05", "cublas")
        .max()
        .beside(one.speedup("called_05", "called_dense").max()),
        "spamm_max_gpus8": eight.speedup("spectile_05", "cublas").only(),
        "spamm_faster_fp32": one.speedup("spectile_25", "cublas")
        .min()
        .at_least(1)
        .beside(one.speedup("called_25", "called_dense").min().at_least(1)),
    }
