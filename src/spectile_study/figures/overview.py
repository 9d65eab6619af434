"""One small picture for each system, read at a width of 300 pixels: ours over the vendor's, or what it gains by stages.

Where a run holds the times of calls, the calls are drawn; KPM's and tSparse's have the device's own time beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas

from spectile_study.bench.stats import speedups
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import calls, drawn_by
from spectile_study.figures.palette import HUES, look, name
from spectile_study.figures.tsparse import vendor
from spectile_study.papers import PAPERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Size of legends and of names below bars, in points: 9 pixels in a picture of 300.
_SMALL = 8
STAGES = ("naive", "aug_spmv", "aug_spmmv", "stencil", "blocked")
STAGE_NAMES = ("library calls", "fused", "blocked", "matrix-free", "two steps")


def draw_spamm(drawing: Drawing, ax: Axes, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over the vendor's dense product against the error of products that were asked to be so good."""
    frame = frame[~(frame["p_gpus"] > 1)]
    asked = frame[frame["method"].str.startswith("called_rtol_") & (frame["status"] == "ok")]
    baseline = first_of(frame[frame["case"].isin(asked["case"])], ("called_dense", "blas"))
    found = [speedups(frame, method, baseline) for method in sorted(set(asked["method"]))]
    rows = pandas.concat([frame.iloc[:0], *found])
    for number, (precision, part) in enumerate(rows.groupby("p_precision", sort=False)):
        style: dict[str, Any] = {"color": HUES[number], "marker": "oD"[number % 2], "kind": "scatter"}
        drawing.marks(ax, part, "error_fro_rel", "speedup", label=str(precision), **style)
    ax.set_title(f"SpAMM over {'the dense product' if baseline == 'called_dense' else name(baseline)}")
    if len(rows):
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set(xlabel="error of A² that came out", ylabel="speed-up", yscale="log")
        _with_none(ax, rows["error_fro_rel"])
        ax.legend(fontsize=_SMALL)


def draw_tsparse(drawing: Drawing, ax: Axes, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over the vendor's sparse product of every matrix, in order."""
    baseline = vendor(frame, "float64")
    device = speedups(frame, "spectile_float64", baseline)
    calls = speedups(frame, "spectile_float64_as_called", "cupyx_float64_as_called")
    rows = (calls if len(calls) else device).sort_values("speedup")
    drawing.marks(ax, rows, "speedup", "speedup", kind="bar", positions=range(len(rows)), label="", color=HUES[0])
    if len(calls):
        baseline = "cupyx_float64"
        beside = device[device["case"].isin(rows["case"])]
        places = [list(rows["case"]).index(case) for case in beside["case"]]
        style: dict[str, Any] = {"label": "device, over cuSPARSE", "color": HUES[1], "marker": "_", "alpha": 0.6}
        drawing.marks(ax, beside, "speedup", "speedup", kind="scatter", positions=places, **style)
        ax.legend(fontsize=_SMALL)
    ax.set_xticks([])
    ax.set_ylim(0, 1.15 * ax.get_ylim()[1])
    ax.set(xlabel=f"{len(rows)} products", title=f"tSparse over {name(baseline)}", ylabel="speed-up")
    ax.axhline(1, color="black", linewidth=0.8)


def draw_evd(drawing: Drawing, ax: Axes, frame: pandas.DataFrame) -> None:
    """Draw the speed-up over the vendor's solver by order, with and without vectors, and over its two-stage one."""
    frame = frame[frame["case"].str.fullmatch(r"evd_\d+_(values|vectors)(_gpu)?") & (frame["p_n"] % 512 == 0)]
    vendor = first_of(frame, ("cusolver_one_stage", "lapack"))
    for task, color, marker in (("values", HUES[0], "o"), ("vectors", HUES[1], "D")):
        part = frame[frame["case"].str.contains(task)]
        rows = speedups(part, "spectile", vendor).sort_values("p_n")
        drawing.marks(ax, rows, "p_n", "speedup", color=color, marker=marker, label=f"eigen{task}")
        # The newer algorithm of the vendor, which few records hold.
        rows = speedups(part, "spectile", "cusolver_two_stage").sort_values("p_n")
        label = "over its two stages" if task == "values" else ""
        drawing.marks(ax, rows, "p_n", "speedup", color=color, marker="x", kind="scatter", label=label)
    ax.set_title(f"EVD over {name(vendor)}")
    ax.axhline(1, color="black", linewidth=0.8)
    if ax.get_legend_handles_labels()[0]:
        ax.set_xscale("log", base=2)
        ax.set(xlabel="n", ylabel="speed-up")
        ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
        ax.legend(fontsize=_SMALL)


def draw_kpm(drawing: Drawing, ax: Axes, frame: pandas.DataFrame) -> None:
    """Draw the rate of each stage of the kernels, and of the calls that take it, on the GPU where there is one."""
    drawn = drawn_by(frame, "fig11")
    clock = "events" if (drawn["clock"] == "events").any() else "wall"
    rows = drawn[(drawn["clock"] == clock) & (drawn["p_num_vectors"] == drawn["p_num_vectors"].max())]
    for place, stage in enumerate(STAGES):
        series = rows[rows["method"] == stage].sort_values("gflops").iloc[-1:]
        call = calls(drawn[drawn["record"].isin(series["record"])], stage)
        style: dict[str, Any] = {"kind": "bar", "positions": [place], "label": "", "color": look(stage).color}
        drawing.marks(ax, series, "gflops", "gflops", alpha=0.35 if len(call) else 1.0, **style)
        drawing.marks(ax, call, "gflops", "gflops", width=0.5, **style)
    ax.set_xticks(range(len(STAGES)), STAGE_NAMES, rotation=30, ha="right", fontsize=_SMALL)
    ax.set(title="KPM, stage by stage", ylabel="Gflop/s")


def first_of(frame: pandas.DataFrame, methods: Sequence[str]) -> str:
    """Return the first of `methods` that `frame` holds finished times of, or the last."""
    done = set(frame.loc[(frame["status"] == "ok") & frame["time_s"].notna(), "method"])
    return next((method for method in methods if method in done), methods[-1])


def _with_none(ax: Axes, errors: pandas.Series) -> None:
    """Set a logarithmic scale of `errors` that has a place for 0: the bits of the float64 product itself."""
    some = errors[errors > 0]
    if len(some) == len(errors):
        ax.set_xscale("log")
        return
    least = math.floor(math.log10(some.min())) if len(some) else 0
    ax.set_xscale("symlog", linthresh=10.0**least, linscale=0.5)
    ax.set_xticks([0, *(10.0**power for power in range(least + 2, 1, 3))])
    ax.set_xlim(-(10.0 ** (least - 1)), 2 * max(some, default=1.0))


#: Inches; 300 pixels wide, a point is 1.25 pixels.
SIZE = (3.3, 2.4)
PANELS: dict[str, Callable[[Drawing, Axes, pandas.DataFrame], None]] = {
    "spamm": draw_spamm,
    "tsparse": draw_tsparse,
    "evd": draw_evd,
    "kpm": draw_kpm,
}


def picture(paper: str, frame: pandas.DataFrame) -> Drawing:
    """Return the small picture of one system."""
    drawing = Drawing("", size=SIZE)
    PANELS[paper](drawing, drawing.ax, frame)
    if not drawing.notes:
        drawing.ax.clear()
        drawing.empty(drawing.ax, f"{PAPERS[paper].name}: this run holds no record for its picture")
    return drawing
