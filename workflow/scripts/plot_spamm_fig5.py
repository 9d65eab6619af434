"""Figure 5 of cuSpAMM: speed-up over the dense product by valid ratio, size and number of GPUs."""

import pandas

from spectile.bench.claims import select
from spectile.bench.stats import speedups
from spectile.figures.style import Drawing
from spectile.spamm.cases import RATIOS, TABLE_1

LOOKS = {1: ("#0072B2", "o"), 2: ("#009E73", "^"), 4: ("#E69F00", "s"), 8: ("#CC79A7", "D")}


def series(frame, conditions, vendor):
    """Return the rows of all six nominal ratios that meet `conditions`, with speed-ups."""
    rows = select(frame, conditions)
    parts = [speedups(rows, f"spectile_{ratio:02}", vendor) for ratio in RATIOS] if len(rows) else [rows]
    return pandas.concat(parts)


def draw(frame: pandas.DataFrame) -> Drawing:
    title = "Figure 5: speed-up over the vendor's dense product, by valid ratio"
    drawing = Drawing(title, 3, len(TABLE_1), (13, 7))
    rows = select(frame, "p_study=product,status=ok")
    for line, group in enumerate(("fp16", "fp32", "cpu")):
        for ax, n in zip(drawing.axes[line], TABLE_1, strict=True):
            found = []
            if group == "cpu":
                for precision, (color, marker) in (("fp32", LOOKS[1]), ("fp64", LOOKS[4])):
                    ours = series(rows, f"p_n={n},p_precision={precision}", "blas")
                    found.append((ours, f"CPU, {precision}", color, marker))
            else:
                for gpus, (color, marker) in LOOKS.items():
                    here = rows[rows["p_gpus"].clip(lower=1) == gpus] if len(rows) else rows
                    ours = series(here, f"p_n={n},p_precision={group}", "cublas")
                    found.append((ours, f"{gpus} GPU{'s' if gpus > 1 else ''}, {group}", color, marker))
            if not any(len(ours) for ours, *_ in found):
                what = "CPU" if group == "cpu" else f"GPU ({group})"
                drawing.empty(ax, f"no {what} record in this run")
                ax.set_title(f"N = {n:,}")
                continue
            for ours, label, color, marker in found:
                look = {"label": label, "color": color, "marker": marker}
                drawing.marks(ax, ours, "v_valid_ratio", "speedup", lo="speedup_lo", hi="speedup_hi", **look)
            ratios = [ratio / 100 for ratio in RATIOS]
            drawing.model_line(ax, ratios, [1 / ratio for ratio in ratios], "1 / valid ratio")
            ax.set(title=f"N = {n:,}", xlabel="valid ratio", yscale="log")
            if n == 1024:
                ax.set_ylabel("speed-up")
            ax.legend(fontsize=6)
    return drawing
