"""What SpAMM's figures of speed share: looks by number of GPUs, and the series of a panel."""

from __future__ import annotations

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.ceilings import Machine, executed_64x64, machine, speedup_bound
from spectile_study.cases.spamm.thresholds import RATIOS
from spectile_study.figures.palette import GPUS, Look
from spectile_study.figures.tables import Cell


def series(rows: pandas.DataFrame, vendor: str, ours: str = "spectile") -> pandas.DataFrame:
    """Return the rows of all six nominal ratios with speed-ups."""
    parts = [speedups(rows, f"{ours}_{ratio:02}", vendor) for ratio in RATIOS]
    return pandas.concat(parts)


def as_called(frame: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """Return the rows of a call of the public function, ``called_30`` beside ``spectile_30``, with speed-ups.

    Over the dense product as called, or over the vendor's own time where a case has none.
    """
    called = name.replace("spectile", "called")
    found = speedups(frame, called, "called_dense")
    return found if len(found) else speedups(frame, called, "cublas")


def waters(row: pandas.Series) -> str:
    """Return how many molecules a row's cluster has, and that it is generated where it is of no simulated liquid."""
    return f"{row['p_molecules']:.0f} waters" + ", generated" * str(row["v_cluster"]).startswith("generated")


def between_events(gpus: int) -> str:
    """Return the words for a time between CUDA events: several GPUs wait there for what the host launches, too."""
    return "between events" if gpus > 1 else "the device alone"


def lines_of(rows: pandas.DataFrame, group: str, n: int) -> list[tuple[pandas.DataFrame, Look, str]]:
    """Return the series of a panel: rows with speed-ups, their look, and what is said of times that are no call's."""
    if group == "cpu":
        looks = {"fp32": GPUS[1], "fp64": GPUS[4]}
        return [
            (series(at(rows, p_precision=p, p_n=n), "blas"), look._replace(label=p), "") for p, look in looks.items()
        ]
    lines = []
    for count, look in GPUS.items():
        here = at(rows[rows["p_gpus"].clip(lower=1) == count], p_n=n, p_precision=group)
        called = pandas.concat([as_called(here, f"spectile_{ratio:02}") for ratio in RATIOS])
        lines += [(called, look, ""), (series(here, "cublas"), look, between_events(count))]
    return lines


def bounded_speedup(
    row: pandas.Series | None,
    frame: pandas.DataFrame,
    ratio: int,
    called: pandas.DataFrame | None = None,
    half_sums: pandas.DataFrame | None = None,
) -> Cell | None:
    """Return the measured speed-up over its bounds; None where it is not measured (`row` is None).

    `called` has the row of the public function, which stands below the device's own; `half_sums` has the speed-up over
    the vendor's product with sums in float16.
    """
    if row is None:
        return None
    below: dict[str, float] = {}
    words: list[str] = []
    if row["p_precision"] != "tf32x3":  # the vendor's product runs on other units there
        below["bound"] = 1 / row["v_valid_ratio"]
        words.append("of {bound:.1f}")
        bound = _time_bound(row, at(frame, case=row["case"], status="ok"), ratio)
        if bound:
            below["bound by time"] = bound
            words[-1] += " ({bound by time:.1f})"
    for name, rows, pattern in (
        ("as called", called, "as called {as called:.2f}"),
        ("over sums in float16", half_sums, "{over sums in float16:.2f} over sums in float16"),
    ):
        if rows is not None and len(rows):
            below[name] = rows["speedup"].iloc[0]
            words.append(pattern)
    return Cell(row["speedup"], "{:.2f}", below, "; ".join(words))


#: A norm of A² between those of the paper's matrices 1 and 2, which it calls small, and of 3 and 4, the large ones.
LARGE_NORM = 1e6


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
        return speedup_bound(times["cublas"], n, row["p_precision"], executed_64x64(n, ratio), rates) if rates else None
    if {"blas", "norm_maps"} <= set(times.index):
        return times["blas"] / (times["norm_maps"] + row["v_valid_ratio"] * times["blas"])
    return None
