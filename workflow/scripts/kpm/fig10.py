"""Figure 10 of KPM: bandwidth of three kernels over the width of the block, by counted bytes where there are."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import counted, drawn_by, fastest_bandwidth, line, missing
from spectile_study.figures.palette import name

NEEDS = ("t2",)  # elements whose cases are drawn here, too

PANELS = (("spmmv", "a"), ("aug_spmmv_nodots", "b"), ("aug_spmmv", "c"))


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig10")
    drawing = Drawing("Figure 10: bytes over time", columns=3, size=(10.0, 3.5), share_y=True)
    machine = drawn_by(frame, "t2")
    least = rows[rows["p_study"] == "step"]
    found = counted(rows)
    found = found[found["dram_gbytes_s"].notna()]
    for ax, (method, letter) in zip(drawing.axes[0], PANELS, strict=True):
        here = at(least, method=method)
        ax.set_title(f"({letter}) {name(method)}")
        if not len(here):
            drawing.empty(ax, missing(frame, "fig10", name(method), method=method))
            continue
        line(drawing, ax, least, method, "p_num_vectors", "gbytes_s", label="least bytes (model)", linestyle=":")
        if len(found):
            line(drawing, ax, found, method, "p_num_vectors", "dram_gbytes_s", label="main memory (counted)")
            line(
                drawing, ax, found, method, "p_num_vectors", "l2_gbytes_s", label="L2 cache (counted)", linestyle="--"
            )  # fmt: skip
            line(
                drawing, ax, found, method, "p_num_vectors", "l1_gbytes_s", label="L1 cache (counted)", linestyle="-."
            )  # fmt: skip
        same = fastest_bandwidth(machine[machine["processor"] == here["processor"].iloc[0]])
        if len(same):
            ends = [here["p_num_vectors"].min(), here["p_num_vectors"].max()]
            drawing.model_line(ax, ends, [float(same["gbytes_s"].iloc[0])] * 2, "b of Table II")
        ax.set_xscale("log", base=2)
        ax.set_xlabel("vectors R")
        if not any(other.get_legend() for other in drawing.axes[0]):
            ax.legend(loc="upper right" if len(found) else "center right", fontsize=6)
    if len(found):
        drawing.note(
            "The paper's DRAM rate falls with R while caches saturate, and the kernel with dot products is slowest "
            "throughout, bound by latency. Here the DRAM rate stays near b, with dot products as without: V is staged "
            "through shared memory from R = 8 on, past the L1 cache, and sums stay in registers."
        )
    drawing.axes[0][0].set_ylim(bottom=0)
    drawing.axes[0][0].set_ylabel("GB/s")
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    here = rows.at(p_study="step", p_nx=100)
    blocks = here.at(method="aug_spmmv").rate()
    without_dots = here.at(p_precision="complex128").speedup("aug_spmmv_nodots", "aug_spmmv")
    balances = (rows.at(case=f"step_100x100x40_r{width}", method="aug_spmmv") for width in (1, 64))
    narrow, wide = (balance.column("bytes", per="flops").only() for balance in balances)
    # Of a balance a + b/R, what is left of R -> inf.
    constant = Ours((64 * wide.number - narrow.number) / 63, (*narrow.parts, *wide.parts))
    narrow_rate, wide_rate = (_counted_rate(rows, width) for width in (1, 64))
    attainable = rows.at(p_study="machine", method=("triad", "copy", "update")).column("bytes", per="time_s").max()
    return {
        "kpm_memory_bound": (narrow_rate / attainable).at_least(0.9),
        "kpm_dram_rate_falls": (wide_rate / narrow_rate).at_most(0.9),  # markedly, too
        "kpm_balance_1": narrow,
        "kpm_balance_inf": constant,
        "kpm_dots_cost": without_dots.min().at_least(1.1),  # markedly
        "kpm_width_grows": blocks.growth("p_num_vectors").at_least(1),
        "kpm_width_saturates": blocks.last_step("p_num_vectors").at_most(1.1),
    }


def _counted_rate(rows: Rows, width: int) -> Ours:
    """Return the counted main-memory bytes of the plain product over the time of the same steps."""
    here = rows.at(p_nx=100, p_num_vectors=width, p_precision="complex128", method="spmmv")
    return here.at(p_study="counters").column("v_dram_bytes").only() / here.at(p_study="step").column("time_s").only()
