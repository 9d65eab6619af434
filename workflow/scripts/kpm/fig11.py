"""Figure 11 of KPM: one device through the optimization stages."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, largest_sample, missing, sizes
from spectile_study.figures.palette import look, name

TOGETHER = ("naive", "aug_spmv", "aug_spmmv")
STAGES = ("naive", "aug_spmv", "aug_spmmv", "stencil", "blocked")


def draw(frame: pandas.DataFrame) -> Drawing:
    drawn = drawn_by(frame, "fig11")
    together = drawn[drawn["p_study"] == "hybrid"]
    rows = drawn.drop(together.index)
    devices = sorted(rows["processor"].unique())
    drawing = Drawing("Figure 11: one device, stage by stage", columns=max(2, len(devices) + 1), size=(9.5, 3.8))
    panels = list(drawing.axes[0])
    for ax, device in zip(panels, devices, strict=False):
        here = rows[rows["processor"] == device]
        for place, stage in enumerate(STAGES):
            bar = select(here, f"method={stage}")
            if len(bar):
                bar = bar.sort_values("v_rows").iloc[[-1]]
                drawing.marks(ax, bar, "v_rows", "gflops", kind="bar", positions=[place], color=look(stage).color)
            else:
                drawing.slot(ax, place, f"{name(stage)} was not measured on {device}")
        drawn = here[here["method"].isin(STAGES)]
        if len(drawn):
            drawing.note(f"{device}: {sizes(largest_sample(drawn))}.")
        ax.set_title(device, fontsize=8)
        ax.set_xticks(range(len(STAGES)), [name(stage) for stage in STAGES], rotation=25, ha="right", fontsize=7)
        ax.set_ylabel("Gflop/s (138 flop a row)")
    for ax in panels[len(devices) : -1]:
        drawing.empty(ax, missing(frame, "fig11", "the stages"))
    last = panels[-1]
    if not len(together):
        drawing.empty(last, "CPU and GPU together: this run holds no record of it")
        return drawing
    words = []
    ranks = together[together["p_ranks"].notna()] if "p_ranks" in together else together.iloc[:0]
    together = together.drop(ranks.index)
    for place, stage in enumerate(TOGETHER):
        alone, both = select(together, f"method={stage}"), select(together, f"method={stage}_cpu_gpu")
        style = {"kind": "bar", "color": look(stage).color}
        drawing.marks(last, alone, "v_rows", "gflops", positions=[place - 0.2], width=0.35, **style)
        if not len(both):
            drawing.slot(last, place + 0.2, f"{name(stage)}, both: not measured")
            continue
        drawing.marks(last, both, "v_rows", "gflops", positions=[place + 0.2], width=0.35, hatch="//", **style)
        words.append(_words(stage, alone, both.iloc[0], last, place))
    last.set_ylabel("Gflop/s (138 flop a row)")
    last.set_title("a GPU alone, and (hatched) with its host's CPU", fontsize=8)
    last.set_xticks(range(len(TOGETHER)), [name(stage) for stage in TOGETHER], rotation=25, ha="right", fontsize=7)
    words += [
        f"by two MPI ranks ({sizes(ranks)}): {_words(stage, select(ranks, f'method={stage}'), each)}"
        for stage in TOGETHER
        for _, each in select(ranks, f"method={stage}_ranks_cpu_gpu").iterrows()
    ]
    drawing.note(
        f"Both: {sizes(together)}, planes by what each does alone: {'; '.join(word for word in words if word)}. The "
        "paper's pair gains 36 % at 85 to 90 %."
    )
    return drawing


def _words(stage: str, alone: pandas.DataFrame, both: pandas.Series, ax=None, place: int = 0) -> str:
    """Return what a stage gains from the CPU, and its parallel efficiency, which stands over its bar, if it has one."""
    ideal = both.get("v_sum_of_both_s")
    if ideal is None or pandas.isna(ideal) or not len(alone):
        return ""
    efficiency = float(ideal) / float(both["time_s"])
    if ax is not None:
        ax.annotate(f"{efficiency:.0%}", (place + 0.2, both["gflops"]), ha="center", va="bottom", fontsize=7)
    gain = float(both["gflops"] / alone["gflops"].iloc[0] - 1)
    faster = f"{gain:.0%} faster" if gain > 0 else f"{-gain:.0%} slower"
    return f"{name(stage)} {faster} than the GPU alone, efficiency {efficiency:.0%}"
