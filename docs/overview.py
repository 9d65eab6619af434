"""Draw docs/overview.svg, the README's picture, from the recorded measurements: ``python docs/overview.py``."""

from pathlib import Path

import pandas

from spectile_study.bench import record
from spectile_study.bench.stats import speedups
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by
from spectile_study.figures.palette import look, name

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("naive", "aug_spmv", "aug_spmmv", "stencil", "blocked")


def draw_spamm(drawing: Drawing, ax, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over cuBLAS by order, where 5 and 30 % of the tile products are valid."""
    rows = frame[frame["case"].str.startswith("product_") & (frame["p_gpus"] == 1)]
    for precision, color, marker in (("fp16", "#0072B2", "o"), ("fp32", "#009E73", "s"), ("fp64", "#882255", "D")):
        for ratio, line in (("05", "-"), ("30", ":")):
            series = speedups(rows[rows["p_precision"] == precision], f"spectile_{ratio}", "cublas")
            look = {"label": f"{precision}, {int(ratio)} % valid", "color": color, "marker": marker, "linestyle": line}
            drawing.marks(ax, series, "p_n", "speedup", **look)
    ax.set_title("SpAMM over cuBLAS")
    ax.set_ylim(0, 1.3 * ax.get_ylim()[1])  # room for the legend


def draw_tsparse(drawing: Drawing, ax, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over cuSPARSE of every matrix, in order."""
    rows = speedups(frame, "spectile_float64", "cusparse_float64").sort_values("speedup")
    drawing.marks(ax, rows, "speedup", "speedup", kind="bar", positions=range(len(rows)), label="", color="#0072B2")
    ax.set_xticks([])
    ax.set(xlabel=f"{len(rows)} matrices", title="tSparse over cuSPARSE, float64", ylabel="speed-up")


def draw_evd(drawing: Drawing, ax, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over cuSOLVER's two stages by order, with and without eigenvectors."""
    frame = frame[frame["case"].str.fullmatch(r"evd_\d+_(values|vectors)(_gpu)?") & (frame["p_n"] % 512 == 0)]
    for task, color, marker in (("values", "#0072B2", "o"), ("vectors", "#882255", "D")):
        rows = speedups(frame[frame["case"].str.contains(task)], "spectile", "cusolver_two_stage")
        drawing.marks(ax, rows, "p_n", "speedup", color=color, marker=marker, label=f"eigen{task}")
    ax.set_title("EVD over cuSOLVER's two stages, float64")
    ax.set_ylim(0, 1.1 * ax.get_ylim()[1])


def draw_kpm(drawing: Drawing, ax, frame: pandas.DataFrame) -> None:
    """Draw the rate of each stage of the kernels."""
    rows = drawn_by(frame, "fig11")
    rows = rows[(rows["clock"] == "events") & (rows["p_num_vectors"] == 32)]
    for place, stage in enumerate(STAGES):
        series = rows[rows["method"] == stage]
        drawing.marks(ax, series, "gflops", "gflops", kind="bar", positions=[place], label="", color=look(stage).color)
    ax.set_xticks(range(len(STAGES)), [name(stage) for stage in STAGES], rotation=30, ha="right", fontsize=7)
    ax.set(title="KPM, 200 x 100 x 40, R = 32", ylabel="Gflop/s (138 flop a row)")


def main() -> None:
    """Draw the four panels."""
    drawing = Drawing("Recorded on one NVIDIA H200, ours and the vendor's in the same run", 1, 4, size=(14, 3.6))
    panels = {"spamm": draw_spamm, "tsparse": draw_tsparse, "evd": draw_evd, "kpm": draw_kpm}
    for ax, (paper, draw) in zip(drawing.axes[0], panels.items(), strict=True):
        draw(drawing, ax, record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet"))
        if paper != "kpm":
            ax.axhline(1, color="black", linewidth=0.8)
        if paper in ("spamm", "evd"):
            ax.set_xscale("log", base=2)
            ax.set(xlabel="n", ylabel="speed-up")
            ax.legend(fontsize=7, loc="upper left" if paper == "spamm" else "lower left")
    drawing.save(ROOT / "docs/overview.svg")
    (ROOT / "docs/overview.png").unlink()


if __name__ == "__main__":
    main()
