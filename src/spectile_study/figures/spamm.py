"""What SpAMM's figures of speed share: looks by number of GPUs, and the series of a panel."""

from __future__ import annotations

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.ceilings import Machine, executed_64x128, machine, speedup_bound
from spectile_study.cases.spamm.thresholds import RATIOS
from spectile_study.figures.palette import GPUS, Look
from spectile_study.figures.tables import Cell


def series(frame: pandas.DataFrame, conditions: str, vendor: str) -> pandas.DataFrame:
    """Return the rows of all six nominal ratios that meet `conditions`, with speed-ups."""
    rows = select(frame, conditions)
    parts = [speedups(rows, f"spectile_{ratio:02}", vendor) for ratio in RATIOS]
    return pandas.concat(parts)


def lines_of(rows: pandas.DataFrame, group: str, n: int) -> list[tuple[pandas.DataFrame, Look]]:
    """Return the series of a panel: rows with speed-ups, and their look."""
    if group == "cpu":
        looks = {"fp32": GPUS[1], "fp64": GPUS[4]}
        return [(series(rows, f"p_precision={p},p_n={n}", "blas"), look._replace(label=p)) for p, look in looks.items()]
    gpus = rows["p_gpus"].clip(lower=1)
    return [
        (series(rows[gpus == count], f"p_n={n},p_precision={group}", "cublas"), look) for count, look in GPUS.items()
    ]


def bounded_speedup(row: pandas.Series | None, frame: pandas.DataFrame, ratio: int, paper: float | None) -> Cell:
    """Return the measured speed-up over its bounds and the printed one; `row` is None where it is not measured."""
    below, words = {}, []
    if row is not None and row["p_precision"] != "tf32x3":  # the vendor's product runs on other units there
        below["bound"] = 1 / row["v_valid_ratio"]
        words.append("of {bound:.1f}")
        bound = _time_bound(row, select(frame, f"case={row['case']},status=ok"), ratio)
        if bound:
            below["bound by time"] = bound
            words[0] += " ({bound by time:.1f})"
    if paper is not None:
        below["paper"] = paper
        words.append("paper {paper:g}")
    return Cell(None if row is None else row["speedup"], "{:.2f}", below, "; ".join(words))


def machine_of(frame: pandas.DataFrame, device: str) -> Machine | None:
    """Return the rates of a device: its copy as the frame's records measured it, None where nothing is known of it."""
    copies = frame[(frame["method"] == "copy") & (frame["status"] == "ok") & (frame["device"] == device)]
    try:
        return machine(device, float((copies["bytes"] / copies["time_s"]).max()) if len(copies) else None)
    except KeyError:
        return None


def _time_bound(row: pandas.Series, case: pandas.DataFrame, ratio: int) -> float | None:
    """Return the speed-up if the norm maps take their time and the rest runs at the vendor's rate, or None."""
    times, n = case.set_index("method")["time_s"], int(row["p_n"])
    if "cublas" in times:
        rates = machine_of(case, row["device"])
        return (
            speedup_bound(times["cublas"], n, row["p_precision"], executed_64x128(n, ratio), rates) if rates else None
        )
    if {"blas", "norm_maps"} <= set(times.index):
        return times["blas"] / (times["norm_maps"] + row["v_valid_ratio"] * times["blas"])
    return None
