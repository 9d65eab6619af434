"""Figure 8 of KPM: the refined roofline of the augmented SpMMV on the CPU."""

import numpy as np
import pandas

from spectile_study.bench.claims import select
from spectile_study.cases.kpm.model import code_balance, omega
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, host_bandwidth, largest_sample, line, missing, on_host, sizes

NEEDS = ("cache",)  # elements whose cases are drawn here, too

STAGES = ("naive", "aug_spmmv", "aug_spmmv_table", "stencil")


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = on_host(drawn_by(frame, "fig8"))
    drawing = Drawing("Figure 8: augmented SpMMV on the CPU and its bounds", size=(6.5, 4.2))
    ax = drawing.ax
    stages = largest_sample(rows[rows["method"].isin(STAGES)])
    if not len(stages):
        drawing.empty(ax, missing(frame, "fig8", "the stages on a CPU"))
        return drawing
    for method in STAGES:
        line(drawing, ax, stages, method, "p_num_vectors", "gflops")
    vectors = np.array(sorted(stages["p_num_vectors"].unique()), dtype=float)
    first = stages.iloc[0]
    factors = [omega(int(first["p_ny"]), int(first["p_nz"]), int(r), _cache_bytes(first)) for r in vectors]
    memory = cached = None
    bandwidth = host_bandwidth(rows)
    if bandwidth is not None:
        memory = bandwidth / (np.array(factors) * [code_balance(r) for r in vectors])
        drawing.model_line(ax, vectors, memory, "P*_MEM = b / (Ω B_min)")
    fitting = in_cache(on_host(drawn_by(frame, "cache")))
    if len(fitting):
        best = fitting.groupby("p_num_vectors")["gflops"].max()
        cached = np.interp(np.log2(vectors), np.log2(best.index.to_numpy(dtype=float)), best.to_numpy())
        drawing.model_line(ax, vectors, cached, "P*_LLC, measured in cache")
    if memory is not None and cached is not None:
        drawing.model_line(ax, vectors, np.minimum(memory, cached), "P* = min(P*_MEM, P*_LLC)")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("vectors R")
    ax.set_ylabel("Gflop/s (138 flop a row and vector)")
    ax.set_ylim(0)
    ax.legend(fontsize=7)
    drawing.note(f"Sample: {sizes(stages)}.")
    drawing.note("Ω by a model of one cache that forgets the oldest: " + _words(vectors, factors) + ".")
    if len(fitting):
        drawing.note(f"In cache, the best for each R: {sizes(fitting)}.")
    return drawing


def in_cache(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the full kernel's rows whose set fits into half of the last level cache."""
    mine = select(rows, "method=aug_spmmv")
    if "v_set_mib" not in mine:
        return mine.iloc[:0]
    return mine[pandas.to_numeric(mine["v_set_mib"]) <= 0.5 * pandas.to_numeric(mine["v_llc_mib"])]


def _cache_bytes(row: pandas.Series) -> float:
    mib = row.get("v_llc_mib")
    return float(mib) * 2**20 if mib is not None and not pandas.isna(mib) else np.inf


def _words(vectors: np.ndarray, factors: list[float]) -> str:
    if max(factors) == 1:
        return f"1 for every R up to {int(vectors[-1])}, a plane of V stays in the last level cache"
    return ", ".join(f"{factor:.2f} (R = {int(r)})" for r, factor in zip(vectors, factors, strict=True))
