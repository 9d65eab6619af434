"""What KPM's figures share: which rows to draw, and rates derived from their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from spectile_study.bench.rows import at
from spectile_study.cases.kpm import model, multi, shared
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import look, name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Flop of a row of 13 complex entries, one vector and step.
ROW_FLOPS = model.step_flops(1, 13, 1)

#: Studies of several devices, whose timed calls have their own number of steps.
SEVERAL = ("devices", "hybrid")
#: Stages that a call of ``kpm_dos`` takes, and the method that measures it.
CALLED = {"aug_spmmv": "as_called_stored", "blocked": "as_called_free"}
HOST_STUDIES = ("host_machine", "host_step", "threads", "ranks")


def drawn_by(frame: pandas.DataFrame, element: str, status: str = "ok") -> pandas.DataFrame:
    """Return the rows that a figure or table draws, with rates; empty where the run holds none."""
    rows = frame[has_element(frame, element) & (frame["status"] == status)].copy()
    # A GPU run also measures the CPU beside it, where a study asks for that.
    host = rows["clock"].isin(["wall", "external"]) & rows["p_study"].isin(HOST_STUDIES)
    is_cpu = rows["device"].map(lambda name: "CPU" in name).astype(bool)
    rows["processor"] = rows["device"].where(~host | is_cpu, rows["device"].map("{}'s host CPU".format))
    time, flops, least = (pandas.to_numeric(rows[name]) for name in ("time_s", "flops", "bytes"))
    rows["gflops"], rows["gbytes_s"] = flops / time / 1e9, least / time / 1e9
    steps = np.where(rows["p_study"].isin(SEVERAL), multi.STEPS, shared.STEPS)
    if "v_moments" in rows:  # a call has its own number of them
        steps = (pandas.to_numeric(rows["v_moments"]) / 2).fillna(pandas.Series(steps, rows.index)).to_numpy()
    rows["ms_per_step"] = time / steps * 1e3
    rows["gbytes_per_vector"] = least / steps / pandas.to_numeric(rows["p_num_vectors"]) / 1e9
    return rows


def has_element(frame: pandas.DataFrame, element: str) -> pandas.Series:
    """Return which rows are of a case that the sheet names for `element`."""
    return frame["p_element"].map(lambda cell: element in str(cell).split(",")).astype(bool)


def counted(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows whose bytes Nsight Compute counted, with volumes per vector and step, and rates.

    Counting times nothing: a rate is counted bytes over the time of the same step where that was measured.
    """
    mine = rows[rows["v_dram_bytes"].notna()].copy()
    same = ["p_nx", "p_ny", "p_nz", "p_num_vectors", "p_precision", "method", "machine"]
    times = rows[rows["p_study"] == "step"].set_index(same)["time_s"]
    time = pandas.to_numeric(times[~times.index.duplicated()].reindex(mine.set_index(same).index)).to_numpy()
    for memory in ("dram", "l2", "l1"):
        volume = pandas.to_numeric(mine[f"v_{memory}_bytes"])
        mine[f"{memory}_per_vector"] = volume / shared.STEPS / pandas.to_numeric(mine["p_num_vectors"]) / 1e9
        mine[f"{memory}_gbytes_s"] = volume / time / 1e9
    return mine


def on_host(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows measured on a CPU: those timed by the wall clock."""
    return rows[rows["clock"].isin(["wall", "external"])]


def bandwidths(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of a device's measured bandwidths, the best last: a triad's bytes leave fetched lines out."""
    rates = rows[rows["method"].isin(["triad", "update", "copy"]) & rows["p_study"].isin(["machine", "host_machine"])]
    return rates.sort_values("gbytes_s")


def fastest_bandwidth(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the row of the best of a device's measured bandwidths."""
    return bandwidths(rows).iloc[-1:]


def host_bandwidth(rows: pandas.DataFrame) -> float | None:
    """Return the best of a CPU's measured bandwidths in GB/s."""
    best = fastest_bandwidth(on_host(rows))
    return float(best["gbytes_s"].iloc[0]) if len(best) else None


def largest_sample(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the largest sample among them."""
    return rows[rows["v_rows"] == rows["v_rows"].max()] if len(rows) else rows


def widest_sample(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the sample with most widths of the block vector, the largest of those."""
    if not len(rows):
        return rows
    widths = rows.groupby("v_rows")["p_num_vectors"].nunique()
    return rows[rows["v_rows"] == widths[widths == widths.max()].index.max()]


def sizes(rows: pandas.DataFrame) -> str:
    """Return the samples of rows, largest first, and what a step touches, as words."""
    named = rows.sort_values("v_rows", ascending=False)
    words = [f"{int(nx)} x {int(ny)} x {int(nz)}" for nx, ny, nz in named[["p_nx", "p_ny", "p_nz"]].to_numpy()]
    sets = set_mib(rows)
    most = f"{sets.min():.0f} to {sets.max():.0f}" if sets.max() > sets.min() else f"{sets.max():.0f}"
    return f"{', '.join(dict.fromkeys(words))}, a set of {most} MiB"


def set_mib(rows: pandas.DataFrame) -> pandas.Series:
    """Return what a step of each row touches: the matrix and both block vectors."""
    columns = rows[["v_rows", "v_nnz", "p_num_vectors"]].astype(float)
    return columns.apply(lambda row: model.working_set(*(int(each) for each in row)) / 2**20, axis=1)


def cache_mib(rows: pandas.DataFrame) -> float | None:
    """Return the last level cache of the CPU whose bandwidth the rows hold."""
    best = fastest_bandwidth(on_host(rows))
    return float(best["v_llc_mib"].iloc[0]) if len(best) and best["v_llc_mib"].notna().all() else None


def line(drawing: Drawing, ax: Axes, rows: pandas.DataFrame, method: str, x: str, y: str, **settings: Any) -> None:
    """Draw one stage over a numeric column."""
    series_rows = at(rows, method=method)
    series_rows = series_rows[series_rows[x].notna()]
    style = look(method)
    series = {"label": style.label, "color": style.color, "marker": style.marker}
    drawing.marks(ax, series_rows, x, y, **(series | settings))


def calls(rows: pandas.DataFrame, stage: str) -> pandas.DataFrame:
    """Return the calls of ``kpm_dos`` that take the stage; none where none takes it, or none was recorded."""
    return at(rows, method=CALLED[stage]) if stage in CALLED else rows.iloc[:0]


def in_series(rows: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """Return the rows of one series of Figure 12, or of Table III's throughput mode."""
    return rows[rows["p_scaling"].map(lambda cell: name in str(cell).split(",")).astype(bool)]


def largest(rows: pandas.DataFrame, count: int) -> pandas.DataFrame:
    """Return the row of the largest sample on so many GPUs (or on one CPU), the fastest of equal ones."""
    best = rows[rows["clock"].isin(["events", "wall"]) & (rows["processor"] == rows["device"])]
    best = best[pandas.to_numeric(best["p_gpus"]).fillna(0).clip(lower=1) == count]
    return best.sort_values(["v_rows", "gflops"]).iloc[-1:]


def link_rate(gflops: float, sent: float) -> float:
    """Return the GB/s that a device sends while it computes a step: `sent` to either side, in parts of its own rows."""
    return 2 * sent * np.dtype(np.complex128).itemsize / ROW_FLOPS * gflops


def missing(
    frame: pandas.DataFrame, element: str, what: str, study: str | None = None, method: str | None = None
) -> str:
    """Return why a panel is empty: the reason of a skipped method, or that the run holds no record."""
    skipped = drawn_by(frame, element, "skipped")
    skipped = skipped[skipped["p_study"] == study] if study else skipped
    skipped = skipped[skipped["method"] == method] if method else skipped
    reasons = [reason for reason in skipped["reason"] if reason]
    return reasons[0] if reasons else f"this run holds no record of {what}"


def draw_together(drawing: Drawing, ax: Axes, together: pandas.DataFrame, stages: Sequence[str]) -> None:
    """Draw the stages of a GPU alone, and with its host's CPU: by one process, and the last one by two MPI ranks."""
    if not len(together):
        drawing.empty(ax, "CPU and GPU together: this run holds no record of it")
        return
    ranks = together[together["p_ranks"].notna()] if "p_ranks" in together else together.iloc[:0]
    here = together.drop(ranks.index)
    # By one process; and the last stage by two MPI ranks, on a sample of their own.
    pairs = [(name(stage), stage, at(here, method=f"{stage}_cpu_gpu"), here) for stage in stages]
    if len(ranks):
        stage = stages[-1]
        both = at(ranks, method=f"{stage}_ranks_cpu_gpu")
        pairs.append((f"{name(stage)}, two ranks", stage, both, ranks))
    words = []
    for place, (title, stage, both, rows) in enumerate(pairs):
        alone, style = at(rows, method=stage), {"kind": "bar", "color": look(stage).color}
        drawing.marks(ax, alone, "v_rows", "gflops", positions=[place - 0.2], width=0.35, **style)
        if not len(both):
            drawing.slot(ax, place + 0.2, f"{title}, both: not measured")
            continue
        drawing.marks(ax, both, "v_rows", "gflops", positions=[place + 0.2], width=0.35, hatch="//", **style)
        words += [_words(title, alone, both.iloc[0], ax, place)] if len(alone) else []
    ax.set_ylabel("Gflop/s (138 flop a row)")
    ax.set_title("GPU alone; hatched: with its host", fontsize=8)
    ax.set_xticks(range(len(pairs)), [title for title, *_ in pairs], rotation=25, ha="right", fontsize=7)
    said = f"{'; '.join(words)}. " if words else ""
    samples = [sizes(here)] if len(here) else []
    samples += [f"ranks {sizes(ranks)}"] if len(ranks) else []
    drawing.note(
        f"Both: {', '.join(samples)}; shares by what each does alone. {said}The paper's gains 36 % at 85 to 90 %."
    )


def _words(title: str, alone: pandas.DataFrame, both: pandas.Series, ax: Axes, place: int) -> str:
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
