"""Figure 8 of KPM: the refined roofline of the augmented SpMMV on the CPU."""

import numpy as np
import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.cases.kpm.model import code_balance, omega
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import (
    cache_mib,
    drawn_by,
    host_bandwidth,
    line,
    missing,
    on_host,
    set_mib,
    sizes,
    widest_sample,
)
from spectile_study.figures.palette import IN_CACHE

NEEDS = ("cache",)  # elements whose cases are drawn here, too

STAGES = ("naive", "aug_spmmv", "aug_spmmv_table", "stencil")


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = on_host(drawn_by(frame, "fig8"))
    drawing = Drawing("Figure 8: augmented SpMMV on the CPU and its bounds", size=(6.5, 4.2))
    ax = drawing.ax
    stages = widest_sample(rows[rows["method"].isin(STAGES)])
    if not len(stages):
        drawing.empty(ax, missing(frame, "fig8", "the stages on a CPU"))
        return drawing
    for method in STAGES:
        line(drawing, ax, stages, method, "p_num_vectors", "gflops")
    vectors = np.array(sorted(stages["p_num_vectors"].unique()), dtype=float)
    first = stages.iloc[0]
    cache = cache_mib(rows)
    factors = [omega(int(first["p_ny"]), int(first["p_nz"]), int(r), 2**20 * (cache or np.inf)) for r in vectors]
    memory = cached = None
    bandwidth = host_bandwidth(rows)
    if bandwidth is not None:
        memory = bandwidth / (np.array(factors) * [code_balance(r) for r in vectors])
        drawing.model_line(ax, vectors, memory, "P*_MEM = b / (Ω B_min)")
    fitting = at(on_host(drawn_by(frame, "cache")), method="aug_spmmv")
    # The whole set in half of the cache, which other cores and the system use, too.
    fitting = fitting[set_mib(fitting) <= cache / 2] if cache and len(fitting) else fitting.iloc[:0]
    if len(fitting):
        best = fitting.sort_values("gflops").groupby("p_num_vectors").tail(1).sort_values("p_num_vectors")
        across, up = (best[column].to_numpy(dtype=float) for column in ("p_num_vectors", "gflops"))
        cached = np.interp(np.log2(vectors), np.log2(across), up)
        look = {"label": IN_CACHE.label, "color": IN_CACHE.color, "linestyle": "none", "marker": "o"}
        drawing.marks(ax, best, "p_num_vectors", "gflops", **look)
        full = at(stages, method="aug_spmmv").groupby("p_num_vectors")["gflops"].max()
        if (np.interp(full.index.to_numpy(dtype=float), vectors, cached) >= full.to_numpy()).all():
            drawing.model_line(ax, vectors, cached, "P*_LLC, through the best in cache")
        else:
            # To begin and meet takes the threads longer than the work of so small a sample.
            cached = None
            drawing.note("No P*_LLC: the samples in cache are too small for this number of threads to be a bound.")
    if memory is not None and cached is not None:
        drawing.model_line(ax, vectors, np.minimum(memory, cached), "P* = min(P*_MEM, P*_LLC)")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("vectors R")
    ax.set_ylabel("Gflop/s (138 flop a row and vector)")
    ax.set_ylim(0)
    ax.legend(fontsize=7)
    drawing.note(f"Sample: {sizes(stages)}" + (f"; last level cache {cache:.0f} MiB." if cache else "."))
    drawing.note("Ω by a model of one cache that forgets the oldest: " + _words(vectors, factors) + ".")
    if len(fitting):
        drawing.note(f"In cache, the best for each R: {sizes(fitting)}.")
    return drawing


def _words(vectors: np.ndarray, factors: list[float]) -> str:
    if max(factors) == 1:
        return f"1 for every R up to {int(vectors[-1])}, a plane of V stays in the last level cache"
    return ", ".join(f"{factor:.2f} (R = {int(r)})" for r, factor in zip(vectors, factors, strict=True))


def claims(rows: Rows) -> dict[str, Ours]:
    here = rows.at(p_study="host_step", p_nx=100, method="aug_spmmv")
    return {"kpm_block_grows": here.rate().growth("p_num_vectors").at_least(1)}
