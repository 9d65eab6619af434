"""Figure 11 of KPM: one device through the optimization stages."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import calls, drawn_by, largest_sample, missing, sizes
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
        called = []
        for place, stage in enumerate(STAGES):
            bar = select(here, f"method={stage}")
            if len(bar):
                bar = bar.sort_values("v_rows").iloc[[-1]]
                call = calls(here, stage).sort_values("v_rows").iloc[-1:]
                # What a user gets stands before the device's own rate, which is paler then.
                pale = {"alpha": 0.35} if len(call) else {}
                style = {"kind": "bar", "positions": [place], "color": look(stage).color}
                drawing.marks(ax, bar, "v_rows", "gflops", **style, **pale)
                if len(call):
                    drawing.marks(ax, call, "v_rows", "gflops", width=0.5, **style)
                    called.append(call)
            else:
                drawing.slot(ax, place, f"{name(stage)} was not measured on {device}")
        drawn = here[here["method"].isin(STAGES)]
        if len(drawn):
            drawing.note(f"{device}: {sizes(largest_sample(drawn))}. {_called(called)}")
        ax.set_title(device, fontsize=8)
        ax.set_xticks(range(len(STAGES)), [name(stage) for stage in STAGES], rotation=25, ha="right", fontsize=7)
        ax.set_ylabel("Gflop/s (138 flop a row)")
    for ax in panels[len(devices) : -1]:
        drawing.empty(ax, missing(frame, "fig11", "the stages"))
    last = panels[-1]
    if not len(together):
        drawing.empty(last, "CPU and GPU together: this run holds no record of it")
        return drawing
    ranks = together[together["p_ranks"].notna()] if "p_ranks" in together else together.iloc[:0]
    here = together.drop(ranks.index)
    # By one process; and the last stage by two MPI ranks, on a sample of their own.
    pairs = [(name(stage), stage, select(here, f"method={stage}_cpu_gpu"), here) for stage in TOGETHER]
    if len(ranks):
        stage = TOGETHER[-1]
        both = select(ranks, f"method={stage}_ranks_cpu_gpu")
        pairs.append((f"{name(stage)}, two ranks", stage, both, ranks))
    words = []
    for place, (title, stage, both, rows) in enumerate(pairs):
        alone, style = select(rows, f"method={stage}"), {"kind": "bar", "color": look(stage).color}
        drawing.marks(last, alone, "v_rows", "gflops", positions=[place - 0.2], width=0.35, **style)
        if not len(both):
            drawing.slot(last, place + 0.2, f"{title}, both: not measured")
            continue
        drawing.marks(last, both, "v_rows", "gflops", positions=[place + 0.2], width=0.35, hatch="//", **style)
        words += [_words(title, alone, both.iloc[0], last, place)] if len(alone) else []
    last.set_ylabel("Gflop/s (138 flop a row)")
    last.set_title("a GPU alone, and (hatched) with its host's CPU", fontsize=8)
    last.set_xticks(range(len(pairs)), [title for title, *_ in pairs], rotation=25, ha="right", fontsize=7)
    said = f"{'; '.join(words)}. " if words else ""
    samples = [sizes(here)] if len(here) else []
    samples += [f"ranks {sizes(ranks)}"] if len(ranks) else []
    drawing.note(
        f"Both: {', '.join(samples)}; shares by what each does alone. {said}The paper's gains 36 % at 85 to 90 %."
    )
    return drawing


def _called(called: list[pandas.DataFrame]) -> str:
    """Return what is said of the calls of ``kpm_dos`` on a device."""
    if not called:
        return "kpm_dos as called: not recorded."
    moments = int(called[0]["v_moments"].iloc[0])
    return (
        f"Narrow bars: kpm_dos as called, {moments} moments, bounds, checks and start vectors in its time; pale ones: "
        "the device alone."
    )


def _words(title: str, alone: pandas.DataFrame, both: pandas.Series, ax, place: int) -> str:
    """Return what a stage gains from the CPU, and its parallel efficiency, which stands over its bar, too."""
    gain = float(both["gflops"] / alone["gflops"].iloc[0] - 1)
    words = f"{title} {f'{gain:.0%} faster' if gain > 0 else f'{-gain:.0%} slower'} than the GPU alone"
    most = float(both.get("v_most_gain_percent", float("nan")))
    words += f" (at most {most:.1f} % to gain)" if most == most else ""
    efficiency = float(both.get("v_sum_of_both_s", float("nan"))) / float(both["time_s"])
    if efficiency != efficiency:
        return words
    ax.annotate(f"{efficiency:.0%}", (place + 0.2, both["gflops"]), ha="center", va="bottom", fontsize=7)
    return f"{words}, efficiency {efficiency:.0%}"
