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
    drawing = Drawing(title, 3, len(TABLE_1), (13, 7), share_y=True)
    rows, ratios = select(frame, "p_study=product,status=ok"), [ratio / 100 for ratio in RATIOS]
    for line, group in enumerate(("fp16", "fp32", "cpu")):
        drawing.axes[line, 0].set_ylabel(f"{group if group != 'cpu' else 'CPU'}: speed-up")
        for ax, n in zip(drawing.axes[line], TABLE_1, strict=True):
            found = []
            if group == "cpu":
                for precision, (color, marker) in (("fp32", LOOKS[1]), ("fp64", LOOKS[4])):
                    ours = series(rows, f"p_n={n},p_precision={precision}", "blas")
                    found.append((ours, precision, color, marker))
            else:
                for gpus, (color, marker) in LOOKS.items():
                    here = rows[rows["p_gpus"].clip(lower=1) == gpus] if len(rows) else rows
                    ours = series(here, f"p_n={n},p_precision={group}", "cublas")
                    found.append((ours, f"{gpus} GPU{'s' if gpus > 1 else ''}", color, marker))
            ax.set_title(f"N = {n:,}")
            if not any(len(ours) for ours, *_ in found):
                drawing.empty(ax, "no CPU record" if group == "cpu" else f"no GPU record ({group})")
                continue
            for ours, label, color, marker in found:
                look = {"label": label, "color": color, "marker": marker}
                drawing.marks(ax, ours, "v_valid_ratio", "speedup", lo="speedup_lo", hi="speedup_hi", **look)
            drawing.model_line(ax, ratios, [1 / ratio for ratio in ratios], "1 / valid ratio")
            if group != "cpu":
                printed = [f"spamm_t2_{n}_{ratio:02}_{group}" for ratio in RATIOS]
                drawing.paper_marks(ax, ratios, printed, "paper, 1 V100")
            ax.set(xlabel="valid ratio", yscale="log")
            if n == min(TABLE_1):
                ax.legend(fontsize=6)
    return drawing
