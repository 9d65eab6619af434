"""What tSparse's figures share: the sixteen matrices of Table 1, their slots, and speed-ups over the vendor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import geometric_mean, speedups
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import KERNEL_FORMAT, PRECISIONS
from spectile_study.figures.palette import name as called
from spectile_study.figures.tables import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LITERATURE = (
    "mc2depi", "webbase-1M", "cage12", "dawson5", "lock1074", "patents_main", "struct3", "wiki-Vote",
)  # fmt: skip
CRITERIA = ("bcsstk30", "nemeth21", "pcrystk03", "pct20stif", "pkustk06", "pli", "net50", "web-NotreDame")
SIXTEEN = LITERATURE + CRITERIA
OTHERS = ("cusp", "rmerge2", "nsparse", "ac_spgemm", "speck")


def short(matrix: str) -> str:
    """Return a matrix's name without its group."""
    return str(matrix).rpartition("/")[2]


def matrices(frame: pandas.DataFrame, part: str) -> list[str]:
    """Return the matrices of a part that the frame holds, largest first."""
    rows = select(frame, f"p_part={part}")
    return list(rows.sort_values("v_nnz", ascending=False)["p_matrix"].drop_duplicates())


def why_missing(frame: pandas.DataFrame, matrix: str, methods: tuple[str, ...] = ()) -> str:
    """Return why the frame has no number for a matrix: the reason of one of `methods`, else the first there is."""
    rows = select(frame, f"p_matrix={matrix}")
    preferred = rows[rows["method"].isin(methods)]
    reasons = [str(reason) for part in (preferred, rows) for reason in part["reason"] if isinstance(reason, str)]
    if any("absent from the mirror" in reason for reason in reasons):
        return f"{short(matrix)}: not at hand, absent from the mirror"
    reasons = [re.sub(r"^\w+Error: ", "", reason) for reason in reasons]
    return f"{short(matrix)}: {reasons[0]}" if reasons else f"{short(matrix)}: not in this run"


def not_at_hand(frame: pandas.DataFrame) -> list[str]:
    """Return one note that names the matrices which the mirror does not hold, or none."""
    absent = frame[frame["reason"].astype(str).str.contains("absent from the mirror")]["p_matrix"]
    names = ", ".join(short(name) for name in absent.drop_duplicates())
    return [f"Not at hand, absent from the mirror (spectile fetch asks the collection): {names}."] if names else []


def vendor(frame: pandas.DataFrame, precision: str) -> str:
    """Return the vendor's method that `precision` is measured against: cuSPARSE where it ran, else SciPy."""
    name = "float64" if precision == "float64" else "float32"
    gpu, cpu = f"cusparse_{name}", f"scipy_{name}"
    on_cpu = len(frame) and not len(select(frame, f"method={gpu},status=ok"))
    return cpu if on_cpu else gpu


def in_kernels_format(frame: pandas.DataFrame, precision: str, baseline: str) -> pandas.DataFrame:
    """Return the speed-up of each matrix in the kernels' format, of rows or tiles whichever is faster."""
    ratios = pandas.concat([speedups(frame, f"{kind}_{precision}", baseline) for kind in ("rows", "tiles")])
    return ratios.sort_values("speedup", ascending=False).drop_duplicates("case")


def bars(
    drawing: Drawing,
    ax: Axes,
    frame: pandas.DataFrame,
    names: Sequence[str],
    precision: str,
    baseline: str,
    claim: str = "",
) -> None:
    """Draw the speed-ups of `names` in both columns, hatch what is absent, and state the means' matrices."""
    ours = f"spectile_{precision}"
    columns = {"CSR to CSR": (PRECISIONS[precision].color, speedups(frame, ours, baseline))}
    kernels = in_kernels_format(frame, precision, baseline)
    if len(kernels):
        columns["kernel format"] = (KERNEL_FORMAT[precision], kernels)
    means: list[str] = []
    drawn: set[int] = set()
    width = 0.8 / len(columns)
    for number, (label, (color, ratios)) in enumerate(columns.items()):
        rows = [select(ratios, f"p_matrix={name}").iloc[:1] for name in names]
        places = [place for place, row in enumerate(rows) if len(row)]
        if places:
            drawn |= set(places)
            positions = [place + width * (number - (len(columns) - 1) / 2) for place in places]
            data = pandas.concat([rows[place] for place in places]).assign(place=positions)
            settings: dict[str, Any] = {"color": color, "label": label, "width": width}
            drawing.marks(
                ax, data, "place", "speedup", kind="bar", lo="speedup_lo", hi="speedup_hi", positions=positions,
                **settings,
            )  # fmt: skip
            means.append(f"{label} {geometric_mean(list(data['speedup'])):.2f} ({len(data)})")
    for place, name in enumerate(names):
        if place not in drawn:
            drawing.slot(ax, place, why_missing(frame, name, (ours, baseline)))
    if means:
        ax.set_title("geometric means (of so many): " + ", ".join(means), fontsize=8)
    if claim:
        drawing.paper_line(ax, claim, "paper's mean of its eight")
    ax.axhline(1, color="black", linewidth=0.6)
    ax.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=7)
    if len(names):
        ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(0, 1.18 * ax.get_ylim()[1])  # room for the legend
    ax.set_ylabel(f"speed-up over {called(baseline)}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, ncols=3, loc="upper right")


def speedup_figure(
    frame: pandas.DataFrame, title: str, names: Sequence[str], precision: str, claim: str, extra: bool
) -> Drawing:
    """Return one of Figures 7 to 10: the paper's eight slots, and with `extra` the matrices at hand beside them."""
    frame = frame[frame["status"].notna()]
    baseline = vendor(frame, precision)
    drawing = Drawing(title, 1, 2 if extra else 1, (11 if extra else 8, 4.2))
    bars(drawing, drawing.axes[0, 0], frame, names, precision, baseline, claim)
    if extra:
        wanted = [name for name in matrices(frame, "mirror") if meets(frame, name, 21)] + matrices(frame, "family")
        if wanted:
            bars(drawing, drawing.axes[0, 1], frame, wanted, precision, baseline)
        else:
            drawing.empty(drawing.axes[0, 1], "no other matrix of this run meets the criteria, and it has no family")
    return drawing


def meets(frame: pandas.DataFrame, matrix: str, row_mean: float = 42, nnz: float = 300_000) -> bool:
    """Whether a matrix meets the paper's global criterion (for its larger device; 21 entries a row for the other)."""
    row = select(frame, f"p_matrix={matrix}").iloc[0]
    return bool(row["v_row_mean"] > row_mean and row["v_nnz"] > nnz)


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
        reduced = [f"{kind}_{p}" for kind in ("rows", "tiles") for p in precisions[:3]]
        wanted["kernel format, 11 or 24 bits"] = reduced
        wanted["kernel format, float64"] = ["rows_float64", "tiles_float64"]
    return wanted | {called(method): [method] for method in baselines}


def milliseconds(best: pandas.DataFrame, named: bool) -> Cell:
    """Return the milliseconds of the fastest method, and with `named` which it is."""
    time = 1e3 * float(best["time_s"].iloc[0])
    below = {"method": best["method"].iloc[0].replace("_", ", ")} if named else {}
    return Cell(time, "{:,.0f}" if time >= 100 else "{:#.3g}", below, "{method}" if named else "")


def fails(frame: pandas.DataFrame, matrix: str, methods: list[str]) -> str | None:
    """Return that the methods failed on `matrix`, where they did."""
    rows = select(frame, f"p_matrix={matrix},status=failed")
    return "fails" if rows["method"].isin(methods).any() else None
