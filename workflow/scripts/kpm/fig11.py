"""Figure 11 of KPM: one device through the optimization stages."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import calls, draw_together, drawn_by, largest_sample, missing, sizes
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
            bar = at(here, method=stage)
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
    draw_together(drawing, panels[-1], together, TOGETHER)
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


def claims(rows: Rows) -> dict[str, Ours]:
    gpu, cpu = (rows.at(case=f"{where}_200x100x40_r32") for where in ("step", "host"))
    large, hybrid = rows.at(p_nx=lambda sites: sites > 199), rows.at(p_study="hybrid")
    node = large.at(p_study="hybrid", method="aug_spmmv_cpu_gpu").rate().median()
    naive = large.at(p_study="host_step", method="naive").rate().median()
    shared = hybrid.at(method=("aug_spmmv_cpu_gpu", "aug_spmmv_ranks_cpu_gpu"))
    efficiency = shared.column("v_sum_of_both_s", per="time_s")
    return {
        "kpm_gpu_speedup": gpu.speedup("aug_spmmv", "naive").median(),
        "kpm_node_speedup": (node / naive).at_least(10),
        "kpm_heterogeneous_gain": hybrid.gain("aug_spmmv_cpu_gpu", "aug_spmmv").only(),
        "kpm_heterogeneous_efficiency_low": efficiency.max(),
        "kpm_heterogeneous_efficiency_high": efficiency.max(),
        "kpm_nnzr": gpu.at(method="naive").column("v_nnz_per_row").only(),
        "kpm_augmented_gains_gpu": gpu.speedup("aug_spmv", "naive").min().at_least(1),
        "kpm_blocking_gains_gpu": gpu.speedup("aug_spmmv", "aug_spmv").min().at_least(1),
        "kpm_augmented_gains_cpu": cpu.speedup("aug_spmv", "naive").min().at_least(1),
        "kpm_blocking_gains_cpu": cpu.speedup("aug_spmmv", "aug_spmv").min().at_least(1),
    }
