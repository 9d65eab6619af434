"""What tSparse's figures share: the sixteen matrices of Table 1, their slots, and speed-ups over the vendor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas

from spectile_study.bench.claims import listed, printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import geometric_mean, speedups
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import KERNEL_FORMAT, PRECISIONS, SLOT
from spectile_study.figures.palette import name as called
from spectile_study.figures.tables import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LITERATURE = (
    "mc2depi", "webbase-1M", "cage12", "dawson5", "lock1074", "patents_main", "struct3", "wiki-Vote",
)  # fmt: skip
CRITERIA = ("bcsstk30", "nemeth21", "pcrystk03", "pct20stif", "pkustk06", "pli", "net50", "web-NotreDame")
SIXTEEN = LITERATURE + CRITERIA
#: The two parts of the paper's sixteen matrices.
PARTS = ("literature", "criteria")
OTHERS = ("cusp", "bhsparse", "rmerge2", "nsparse", "ac_spgemm", "speck", "opsparse")
#: What the paper's method is compared with in the paper, and the method that stands for it here.
APPROACHES = {
    "cusparse": "cusparse_float32", "cusp": "cusp", "rmerge2": "rmerge2", "nsparse": "nsparse",
    "ac_spgemm": "ac_spgemm", "speck": "speck", "nontcu": "tasks_nontcu",
}  # fmt: skip


def short(matrix: str) -> str:
    """Return a matrix's name without its group."""
    return str(matrix).rpartition("/")[2]


def matrices(frame: pandas.DataFrame, part: str) -> list[str]:
    """Return the matrices of a part that the frame holds, largest first."""
    rows = at(frame, p_part=part)
    return list(rows.sort_values("v_nnz", ascending=False)["p_matrix"].drop_duplicates())


def why_missing(frame: pandas.DataFrame, matrix: str, methods: tuple[str, ...] = ()) -> str:
    """Return why the frame has no number for a matrix: the reason of one of `methods`, else the first there is."""
    rows = at(frame, p_matrix=matrix, status=["failed", "skipped"])
    preferred = rows[rows["method"].isin(methods)]
    reasons = [str(reason) for part in (preferred, rows) for reason in part["reason"] if isinstance(reason, str)]
    if any("absent from the mirror" in reason for reason in reasons):
        return f"{short(matrix)}: not at hand, absent from the mirror"
    reasons = [re.sub(r"^\w+Error: | after asking for [\d,]+ bytes$", "", reason) for reason in reasons]
    return f"{short(matrix)}: {reasons[0]}" if reasons else f"{short(matrix)}: not in this run"


def not_at_hand(frame: pandas.DataFrame) -> list[str]:
    """Return one note that names the matrices which the mirror does not hold, or none."""
    absent = frame[frame["reason"].astype(str).str.contains("absent from the mirror")]["p_matrix"]
    names = ", ".join(short(name) for name in absent.drop_duplicates())
    return (
        [f"Not at hand, absent from the mirror (spectile-study fetch asks the collection): {names}."] if names else []
    )


def vendor(frame: pandas.DataFrame, precision: str) -> str:
    """Return the vendor's method that `precision` is measured against: cuSPARSE where it ran, else SciPy."""
    name = "float64" if precision == "float64" else "float32"
    gpu, cpu = f"cusparse_{name}", f"scipy_{name}"
    on_cpu = len(frame) and not len(at(frame, method=gpu, status="ok"))
    return cpu if on_cpu else gpu


def series(precision: str) -> dict[str, str]:
    """Return the methods that Figures 7 to 10 draw in `precision`, and the method of which each has a lighter mark.

    The paper's own in its time, conversions apart, with a mark of its time from CSR to CSR; ours by rows as called,
    with a mark of the kernels' time; the paper's rivals in its mixed precision.
    """
    paper = {"tasks_float16": "tasks_csr_float16", "tasks_nontcu": ""} if precision == "float16" else {}
    ours = {f"tasks_{precision}": ""} | paper | {f"spectile_{precision}": f"rows_{precision}"}
    return ours | (dict.fromkeys(OTHERS, "") if precision == "float16" else {})


def bars(
    drawing: Drawing,
    ax: Axes,
    frame: pandas.DataFrame,
    names: Sequence[str],
    precision: str,
    baseline: str,
    claim: str = "",
) -> None:
    """Draw how much faster than the vendor each method is on `names`, hatch what is absent, and state the means."""
    found = {method: _as_called(frame, method, baseline, names) for method in series(precision) if method != baseline}
    found = {method: rows for method, rows in found.items() if len(rows)}
    width = 0.84 / max(len(found), 1)
    for number, (method, rows) in enumerate(found.items()):
        shift = width * (number - (len(found) - 1) / 2)
        places = [names.index(name) + shift for name in rows["p_matrix"]]
        drawing.marks(
            ax, rows, "v_nnz", "speedup", method=method, kind="bar", positions=places,
            width=width, label=f"{_label(rows, method)}: {geometric_mean(list(rows['speedup'])):.2f} ({len(rows)})",
        )  # fmt: skip
        lighter = _named(speedups(frame, series(precision)[method], baseline), names)
        places = [names.index(name) + shift for name in lighter["p_matrix"]]
        color = KERNEL_FORMAT.get(precision, SLOT)
        drawing.marks(
            ax, lighter, "v_nnz", "speedup", kind="scatter", positions=places, color=color, markeredgecolor="black",
            markeredgewidth=0.4, marker="o" if method.startswith("spectile") else "D",
            label="kernels alone" if method.startswith("spectile") else "from CSR to CSR",
        )  # fmt: skip
    drawn = {name for rows in found.values() for name in rows["p_matrix"]}
    for place, name in enumerate(names):
        if name not in drawn:
            drawing.slot(ax, place, why_missing(frame, name, (*found, baseline)))
    if claim:
        drawing.paper_line(ax, claim, "paper's mean of its eight")
    ax.axhline(1, color="black", linewidth=0.6)
    ax.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=7)
    if len(names):
        ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(0, (1.3 if len(found) <= 4 else 1.75) * ax.get_ylim()[1])  # room for the legend
    ax.set_ylabel(f"speed-up over {called(baseline)}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=6.5, ncols=2, loc="upper right", title="geometric mean (of so many)", title_fontsize=6.5)


def _as_called(frame: pandas.DataFrame, method: str, baseline: str, names: Sequence[str]) -> pandas.DataFrame:
    """Return the speed-ups of `method` on `names`: of calls over CuPy's where timed, else over `baseline`."""
    vendors = baseline.replace("cusparse", "cupyx") + "_as_called"
    calls = _named(speedups(frame, f"{method}_as_called", vendors), names)
    return calls if len(calls) else _named(speedups(frame, method, baseline), names)


def _label(rows: pandas.DataFrame, method: str) -> str:
    """Return how a series is called; speed-ups of calls are over CuPy's."""
    as_called = str(rows["method"].iloc[0]).endswith("_as_called")
    return f"{called(method)} as called, over CuPy's" if as_called else called(method)


def _named(rows: pandas.DataFrame, names: Sequence[str]) -> pandas.DataFrame:
    return rows[rows["p_matrix"].isin(names)].drop_duplicates("p_matrix")


def speedup_figure(
    frame: pandas.DataFrame, title: str, names: Sequence[str], claim: str, beside: str, extra: bool = False
) -> Drawing:
    """Return one of Figures 7 to 10: the paper's eight slots in its mixed precision, and a panel beside them.

    Parameters
    ----------
    frame : DataFrame
    title : str
    names : sequence of str
        The paper's matrices.
    claim : str
        The paper's mean.
    beside : {"", "float16", "float64"}
        Precision of the second panel, if there is one.
    extra : bool
        Whether other matrices that meet the criteria, and generated families, are in the second panel.
    """
    frame = frame[frame["status"].notna()]
    drawing = Drawing(title, 1, 2 if beside else 1, (11 if beside else 8, 4.6))
    over = baseline(frame, names)
    bars(drawing, drawing.axes[0, 0], frame, names, "float16", over, claim if over != "cusp" else _over_cusp(claim))
    if over == "cusp":
        drawing.note(
            f"{called(vendor(frame, 'float16'))} ran on none of what is at hand of its eight: the bars are over CUSP."
        )
    if claim.endswith("2070"):
        first = 7 if "literature" in claim else 8
        drawing.note(
            f"The paper's RTX 2070 is not at hand: the left bars are Figure {first}'s again, of this run's device."
        )
    if said := over_each(frame, names, claim):
        drawing.note(f"tSparse (TCU) over each, as the paper's bars show it, in the mean: {said}.")
    if beside:
        wanted = list(names) if beside == "float64" else []
        if extra:
            wanted += [name for name in matrices(frame, "mirror") if meets(frame, name)] + matrices(frame, "family")
        ax = drawing.axes[0, 1]
        if wanted:
            bars(drawing, ax, frame, wanted, beside, vendor(frame, beside))
            ax.set_title("float64" if beside == "float64" else "matrices at hand that meet the criteria, and families")
            if beside == "float16" and (alone := without_rivals(frame, wanted)):
                drawing.note(f"Not measured with all rivals, not all there when it was recorded: {', '.join(alone)}.")
        else:
            drawing.empty(ax, "no other matrix of this run meets the criteria, and it has no family")
    return drawing


def baseline(frame: pandas.DataFrame, names: Sequence[str]) -> str:
    """Return what the bars of `names` are drawn over: the vendor's, or CUSP where the vendor's ran on none of them."""
    wanted = (vendor(frame, "float16"), "cusp")
    ran = (method for method in wanted if len(_named(speedups(frame, "tasks_float16", method), names)))
    return next(ran, wanted[0])


def _over_cusp(claim: str) -> str:
    return claim.replace("cusparse", "cusp")


def without_rivals(frame: pandas.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the matrices in `names` that lack a rival which other matrices of the frame were measured with."""
    rows = frame[frame["method"].isin(OTHERS)]
    built = set(rows.loc[rows["status"] != "skipped", "method"])
    lacking = rows[rows["method"].isin(built) & (rows["status"] == "skipped") & rows["p_matrix"].isin(names)]
    return [short(name) for name in names if name in set(lacking["p_matrix"])]


def failed_rivals(frame: pandas.DataFrame) -> str:
    """Return which rivals gave a wrong product, or none, and on which matrices, as words; empty where none did."""
    rows = frame[frame["method"].isin(OTHERS) & (frame["status"] == "failed")]
    words = []
    for how, wrong in (("a wrong product", True), ("no product", False)):
        for method, part in rows[rows["reason"].str.startswith("wrong result") == wrong].groupby("method", sort=False):
            words.append(f"{called(str(method))} gives {how} on {', '.join(map(short, part['p_matrix']))}")
    return "; ".join(words)


def over_each(frame: pandas.DataFrame, names: Sequence[str], claim: str) -> str:
    """Return the mean speed-up of the paper's method over each approach, beside the paper's mean.

    Of the matrices in `names` on which both ran.
    """
    words: list[str] = []
    approaches = {"cusparse": vendor(frame, "float16"), "nontcu": "tasks_nontcu"} | {name: name for name in OTHERS}
    for approach, method in approaches.items():
        rows = _named(speedups(frame, "tasks_float16", method), names)
        if len(rows):
            paper = claim.replace("cusparse", approach)
            beside = f", paper {printed(paper):.2f}" if paper in listed().index else ""
            words.append(f"{called(method)} {geometric_mean(list(rows['speedup'])):.2f} ({len(rows)}{beside})")
    return "; ".join(words)


def meets(frame: pandas.DataFrame, matrix: str) -> bool:
    """Whether a matrix meets the paper's global criterion (for its smaller device; 42 entries a row for the larger)."""
    row = at(frame, p_matrix=matrix).iloc[0]
    return bool(row["v_row_mean"] > 21 and row["v_nnz"] > 300_000)


def fastest(rows: pandas.DataFrame, names: list[str]) -> pandas.DataFrame:
    """Return the row of the fastest of some methods, or no row."""
    return rows[rows["method"].isin(names)].sort_values("time_s").iloc[:1]


def columns_of_methods(baselines: list[str], threads: bool) -> dict[str, list[str]]:
    """Return the columns of the table with one line for each matrix, and the methods of which each shows the fastest.

    Parameters
    ----------
    baselines : list of str
        The vendor's methods.
    threads : bool
        Whether the rows are of a CPU, where one thread stands beside all.
    """
    precisions = tuple(PRECISIONS)
    wanted = {f"CSR to CSR, {p}": [f"spectile_{p}"] for p in precisions}
    if threads:
        wanted |= {f"one thread, {p}": [f"spectile_{p}_one_thread"] for p in ("float32", "float64")}
    else:
        wanted["kernels alone, 11 or 24 bits"] = [f"rows_{p}" for p in precisions[:3]]
        wanted["kernels alone, float64"] = ["rows_float64"]
        wanted |= {f"tSparse, {p}": [f"tasks_{p}"] for p in ("float16", "float64")}
    return wanted | {called(method): [method] for method in baselines}


def milliseconds(best: pandas.DataFrame, named: bool) -> Cell:
    """Return the milliseconds of the fastest method, and with `named` which it is."""
    time = 1e3 * float(best["time_s"].iloc[0])
    below = {"method": best["method"].iloc[0].replace("_", ", ")} if named else {}
    return Cell(time, "{:,.0f}" if time >= 100 else "{:#.3g}", below, "{method}" if named else "")


def fails(frame: pandas.DataFrame, matrix: str, methods: list[str]) -> str | None:
    """Return that the methods failed on `matrix`, where they did."""
    rows = at(frame, p_matrix=matrix, status="failed")
    return "fails" if rows["method"].isin(methods).any() else None


def compared(rows: Rows) -> Rows:
    """Return the rows of matrices that the paper's criteria are scored on, as the paper chooses them."""
    return rows.at(
        v_nnz=lambda nnz: nnz > 10_000, v_square=True, v_half_range=True, v_tile_density_mean=lambda mean: mean > 1
    )


def means(rows: Rows, part: str, device: str) -> dict[str, Ours]:
    """Return the claims on the mean speed-ups over each approach on one part of the matrices, as `device` has them."""
    here = rows.at(p_part=part)
    return {
        f"tsparse_mean_{approach}_{part}_{device}": here.speedup("tasks_float16", method).geomean()
        for approach, method in APPROACHES.items()
    }


def of_sixteen(rows: Rows, device: str) -> dict[str, Ours]:
    """Return the claims on all sixteen matrices: the means, the wins, and the means without tensor cores."""
    here, found = rows.at(p_part=PARTS), {}
    for approach, method in APPROACHES.items():
        faster = here.speedup("tasks_float16", method)
        found[f"tsparse_mean_{approach}_all_{device}"] = faster.geomean()
        if approach != "nontcu":
            found[f"tsparse_wins_{approach}_{device}"] = faster.wins(of=16)
            found[f"tsparse_nontcu_{approach}_{device}"] = here.speedup("tasks_nontcu", method).geomean()
    return found
