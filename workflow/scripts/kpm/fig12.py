"""Figure 12 of KPM: weak and strong scaling over GPUs, and over MPI ranks of the CPU."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, in_series, missing
from spectile_study.figures.palette import SCALING, look, name

_ONE = "this run measured one number of {} only, which is no scaling"
LINES = {"aug_spmmv": "--", "stencil": "-.", "blocked": "-"}


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig12")
    drawing = Drawing("Figure 12: scaling over GPUs and MPI ranks", columns=3, size=(11.0, 3.8))
    weak, strong, ranks = drawing.axes[0]
    for ax, title, names in ((weak, "weak, GPUs", ("square", "bar")), (strong, "strong, GPUs", ("strong",))):
        ax.set_title(title)
        here = rows[rows["p_study"] == "devices"]
        if here["p_gpus"].nunique() < 2:
            why = _ONE.format("GPUs") if len(here) else missing(_of(frame, "devices"), "fig12", "several GPUs")
            drawing.empty(ax, why)
            continue
        for kind in names:
            for method, line in LINES.items():
                series = in_series(at(here, method=method), kind).sort_values("p_gpus")
                if not len(series):
                    continue
                first, last = series.iloc[0], series.iloc[-1]
                share = last["gflops"] / last["p_gpus"] / first["gflops"] * first["p_gpus"]
                label = f"{kind}, {name(method)}: {share:.0%} at {int(last['p_gpus'])}"
                style = {"color": SCALING[kind].color, "linestyle": line, "marker": look(method).marker}
                drawing.marks(ax, series, "p_gpus", "gflops", label=label, **style)
                ends = [float(first["p_gpus"]), float(last["p_gpus"])]
                ideal = [first["gflops"] * count / first["p_gpus"] for count in ends]
                drawing.model_line(ax, ends, ideal, "_ideal")
        _dress(ax, "GPUs")
    here = at(rows[rows["p_study"] == "ranks"], method="aug_spmmv")
    ranks.set_title("ranks of one CPU")
    if len(here) and here["p_ranks"].nunique() > 1:
        for kind, style in SCALING.items():
            drawing.marks(ranks, in_series(here, kind), "p_ranks", "gflops", label=kind, color=style.color)
        _dress(ranks, "ranks")
    else:
        why = _ONE.format("ranks")
        drawing.empty(ranks, why if len(here) else missing(_of(frame, "ranks"), "fig12", "several ranks"))
    return drawing


def _of(frame: pandas.DataFrame, study: str) -> pandas.DataFrame:
    return frame[frame["p_study"] == study]


def _dress(ax, what: str) -> None:
    ax.set_xlabel(what)
    ax.set_ylabel("Gflop/s (138 flop a row)")
    ax.set_xlim(0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylim(0)
    ax.legend(fontsize=6)


def claims(rows: Rows) -> dict[str, Ours]:
    sample = rows.at(p_study="devices", p_nx=400, p_ny=400, p_nz=40, method="aug_spmmv")
    tile, four = (rows.at(case=f"devices_{case}", method="aug_spmmv") for case in ("400x100x40_1", "400x400x40_4"))
    efficiency = four.rate().map(lambda rate: rate / 4).only() / tile.rate().only()
    return {
        "kpm_strong_scaling": sample.rate().growth("p_gpus").at_least(1),
        "kpm_weak_scaling": efficiency.at_most(1),
    }
