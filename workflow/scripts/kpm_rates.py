"""What KPM's figures share: which rows to draw, and rates derived from their samples."""

import numpy as np
import pandas

from spectile_study.bench.claims import select
from spectile_study.cases.kpm import model, multi, shared

#: Flop of a row of 13 complex entries, one vector and step.
ROW_FLOPS = model.step_flops(1, 13, 1)

#: Studies of several devices, whose timed calls have their own number of steps.
SEVERAL = ("devices", "hybrid")
HOST_STUDIES = ("host_machine", "host_step", "threads", "ranks")
NAMES = {
    "naive": "naive (library calls)", "aug_spmv": "aug_spmv()", "aug_spmmv": "aug_spmmv()",
    "aug_spmmv_sell": "aug_spmmv(), SELL-32", "aug_spmmv_star": "aug_spmmv()*", "spmmv": "SpMMV alone",
    "aug_spmmv_nodots": "without dot products", "aug_spmmv_table": "repeated values or rows once",
    "aug_spmmv_mixed": "stored in complex64", "stencil": "no stored matrix", "blocked": "no matrix, two steps",
    "blocked_nccl": "no matrix, two steps, NCCL", "blocked_ranks": "no matrix, two steps, a rank a GPU",
    "aug_spmmv_cpu_gpu": "aug_spmmv(), CPU and GPU",
}  # fmt: skip
COLORS = {
    "naive": "#D55E00", "aug_spmv": "#E69F00", "aug_spmmv": "#0072B2", "aug_spmmv_sell": "#56B4E9",
    "aug_spmmv_star": "#999933", "spmmv": "#117733", "aug_spmmv_nodots": "#CC79A7",
    "aug_spmmv_table": "#661100", "aug_spmmv_mixed": "#882255", "stencil": "#009E73",
    "blocked": "#332288", "blocked_nccl": "#882255", "blocked_ranks": "#AA4499", "aug_spmmv_cpu_gpu": "#661100",
}  # fmt: skip

MARKERS = {
    "naive": "X", "aug_spmv": "P", "aug_spmmv": "s", "aug_spmmv_sell": "v", "aug_spmmv_star": "*", "spmmv": "^",
    "aug_spmmv_nodots": "p", "aug_spmmv_table": "d", "aug_spmmv_mixed": "h", "stencil": ">", "blocked": "o",
}  # fmt: skip


def drawn_by(frame: pandas.DataFrame, element: str, status: str = "ok") -> pandas.DataFrame:
    """Return the rows that a figure or table draws, with rates; empty where the run holds none."""
    if not len(frame) or "p_element" not in frame:
        return frame.iloc[:0]
    mine = frame["p_element"].map(lambda cell: element in str(cell).split(","))
    rows = frame[mine & (frame["status"] == status)].copy()
    if len(rows):
        # A GPU run also measures the CPU beside it, where a study asks for that.
        host = rows["clock"].isin(["wall", "external"]) & rows["p_study"].isin(HOST_STUDIES)
        rows["processor"] = rows["device"].where(
            ~host | rows["device"].str.contains("CPU"), rows["device"] + "'s host CPU"
        )
    if status == "ok" and len(rows):
        time, flops, least = (pandas.to_numeric(rows[name]) for name in ("time_s", "flops", "bytes"))
        rows["gflops"], rows["gbytes_s"] = flops / time / 1e9, least / time / 1e9
        steps = rows["p_study"].isin(SEVERAL).map({True: multi.STEPS, False: shared.STEPS})
        rows["ms_per_step"] = time / steps * 1e3
        if "p_num_vectors" in rows:
            rows["gbytes_per_vector"] = least / steps / pandas.to_numeric(rows["p_num_vectors"]) / 1e9
    return rows


def counted(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows whose bytes Nsight Compute counted, with volumes per vector and step, and rates.

    Counting times nothing: a rate is counted bytes over the time of the same step where that was measured.
    """
    if not len(rows) or "v_dram_bytes" not in rows:
        return rows.iloc[:0]
    mine = rows[rows["v_dram_bytes"].notna()].copy()
    same = ["p_nx", "p_ny", "p_nz", "p_num_vectors", "p_precision", "method", "machine"]
    times = rows[rows["p_study"] == "step"].set_index(same)["time_s"]
    time = pandas.to_numeric(times[~times.index.duplicated()].reindex(mine.set_index(same).index)).to_numpy()
    for memory in ("dram", "l2"):
        volume = pandas.to_numeric(mine[f"v_{memory}_bytes"])
        mine[f"{memory}_per_vector"] = volume / shared.STEPS / pandas.to_numeric(mine["p_num_vectors"]) / 1e9
        mine[f"{memory}_gbytes_s"] = volume / time / 1e9
    return mine


def on_host(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows measured on a CPU: those timed by the wall clock."""
    return rows[rows["clock"].isin(["wall", "external"])] if len(rows) else rows


def host_bandwidth(rows: pandas.DataFrame) -> float | None:
    """Return the best of a CPU's measured bandwidths in GB/s: a triad's bytes leave fetched lines out."""
    rates = [select(on_host(rows), f"method={method}") for method in ("triad", "update")]
    return max((float(rate["gbytes_s"].iloc[0]) for rate in rates if len(rate)), default=None)


def line(drawing, ax, rows: pandas.DataFrame, method: str, x: str, y: str, **settings) -> None:
    """Draw one stage over a numeric column."""
    here = select(rows, f"method={method}")
    here = here[here[x].notna()] if len(here) else here
    look = {"label": NAMES[method], "color": COLORS[method], "marker": MARKERS[method]}
    drawing.marks(ax, here, x, y, **(look | settings))


def in_series(rows: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """Return the rows of one series of Figure 12, or of Table III's throughput mode."""
    if not len(rows) or "p_scaling" not in rows:
        return rows.iloc[:0]
    return rows[rows["p_scaling"].map(lambda cell: name in str(cell).split(","))]


def largest(rows: pandas.DataFrame, count: int) -> pandas.DataFrame:
    """Return the row of the largest sample on so many GPUs (or on one CPU), the fastest of equal ones."""
    here = rows[rows["clock"].isin(["events", "wall"]) & (rows["processor"] == rows["device"])] if len(rows) else rows
    if not len(here):
        return here
    here = here[pandas.to_numeric(here["p_gpus"]).fillna(0).clip(lower=1) == count]
    return here.sort_values(["v_rows", "gflops"]).iloc[[-1]] if len(here) else here


def link_rate(gflops: float, sent: float) -> float:
    """Return the GB/s that a device sends while it computes a step: `sent` to either side, in parts of its own rows."""
    return 2 * sent * np.dtype(np.complex128).itemsize / ROW_FLOPS * gflops


def missing(
    frame: pandas.DataFrame, element: str, what: str, study: str | None = None, method: str | None = None
) -> str:
    """Return why a panel is empty: the reason of a skipped method, or that the run holds no record."""
    skipped = drawn_by(frame, element, "skipped")
    skipped = skipped[skipped["p_study"] == study] if study and len(skipped) else skipped
    skipped = skipped[skipped["method"] == method] if method and len(skipped) else skipped
    reasons = [reason for reason in skipped.get("reason", []) if reason]
    return reasons[0] if reasons else f"this run holds no record of {what}"
