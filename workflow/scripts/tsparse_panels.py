"""What tSparse's figures share: the sixteen matrices of Table 1, their slots, and speed-ups over the vendor."""

import numpy as np
import pandas

from spectile.bench.claims import select
from spectile.bench.stats import geometric_mean, speedups

LITERATURE = (
    "mc2depi", "webbase-1M", "cage12", "dawson5", "lock1074", "patents_main", "struct3", "wiki-Vote",
)  # fmt: skip
CRITERIA = ("bcsstk30", "nemeth21", "pcrystk03", "pct20stif", "pkustk06", "pli", "net50", "web-NotreDame")
SIXTEEN = LITERATURE + CRITERIA
OTHERS = ("cusp", "rmerge2", "nsparse", "ac_spgemm", "speck")
COLORS = {"float16": "#0072B2", "tf32": "#56B4E9", "float32": "#009E73", "float64": "#882255"}


def short(matrix: str) -> str:
    """Return a matrix's name without its group."""
    return str(matrix).rpartition("/")[2]


def matrices(frame: pandas.DataFrame, part: str) -> list[str]:
    """Return the matrices of a part that the frame holds, largest first."""
    rows = select(frame, f"p_part={part}")
    if not len(rows) or "v_nnz" not in rows:
        return []
    return list(rows.sort_values("v_nnz", ascending=False)["p_matrix"].drop_duplicates())


def why_missing(frame: pandas.DataFrame, matrix: str, methods: tuple[str, ...] = ()) -> str:
    """Return why the frame has no number for a matrix: the reason of one of `methods`, else the first there is."""
    rows = select(frame, f"p_matrix={matrix}")
    asked = rows[rows["method"].isin(methods)] if len(rows) else rows
    reasons = [str(reason) for part in (asked, rows) for reason in part.get("reason", []) if reason]
    if any("absent from the mirror" in reason for reason in reasons):
        return f"{short(matrix)}: not at hand, absent from the mirror"
    return f"{short(matrix)}: {reasons[0]}" if reasons else f"{short(matrix)}: not in this run"


def not_at_hand(frame: pandas.DataFrame) -> list[str]:
    """Return one note that names the matrices which the mirror does not hold, or none."""
    if not len(frame):
        return []
    absent = frame[frame["reason"].astype(str).str.contains("absent from the mirror")]["p_matrix"]
    names = ", ".join(short(name) for name in absent.drop_duplicates())
    return [f"Not at hand, absent from the mirror (spectile fetch asks the collection): {names}."] if names else []


def vendor(frame: pandas.DataFrame, precision: str) -> str:
    """Return the vendor's method that `precision` is measured against: cuSPARSE where it ran, else SciPy."""
    name = "float64" if precision == "float64" else "float32"
    gpu = f"cusparse_{name}"
    return gpu if len(select(frame, f"method={gpu},status=ok")) else f"scipy_{name}"


def bars(
    drawing, ax, frame: pandas.DataFrame, names, ours: str, baseline: str, claim: str = "", label: str = ""
) -> None:
    """Draw the speed-up of `ours` over `baseline` for `names`, hatch what is absent, and state the mean's matrices."""
    found = speedups(frame, ours, baseline) if len(frame) else frame
    places, rows = [], []
    for place, name in enumerate(names):
        here = select(found, f"p_matrix={name}") if len(found) else found
        if len(here):
            places.append(place)
            rows.append(here.iloc[[0]])
        else:
            drawing.slot(ax, place, why_missing(frame, name, (ours, baseline)))
    if rows:
        data = pandas.concat(rows).assign(place=places)
        settings = {"color": COLORS.get(ours.split("_")[1], "#0072B2"), "label": label or ours.replace("_", " ")}
        drawing.marks(
            ax, data, "place", "speedup", kind="bar", lo="speedup_lo", hi="speedup_hi", positions=places, **settings
        )
        mean = geometric_mean(data["speedup"])
        ax.set_title(f"geometric mean of these {len(data)}: {mean:.2f}", fontsize=8)
    if claim:
        drawing.paper_line(ax, claim, "paper's mean of its eight")
    ax.axhline(1, color="black", linewidth=0.6)
    ax.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=7)
    if len(names):
        ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(0, 1.18 * ax.get_ylim()[1])  # room for the legend
    ax.set_ylabel(f"speed-up over {baseline.replace('_', ' ')}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, ncols=2, loc="upper right")


def speedup_figure(frame: pandas.DataFrame, title: str, names, ours: str, claim: str, extra: bool):
    """Return one of Figures 7 to 10: the paper's eight slots, and with `extra` the matrices at hand beside them."""
    from spectile.figures.style import Drawing

    frame = frame[frame["status"].notna()] if len(frame) else frame
    baseline = vendor(frame, ours.split("_")[1]) if len(frame) else "cusparse_float32"
    drawing = Drawing(title, 1, 2 if extra else 1, (11 if extra else 8, 4.2))
    bars(drawing, drawing.axes[0, 0], frame, names, ours, baseline, claim)
    if extra:
        wanted = [name for name in matrices(frame, "mirror") if meets(frame, name, 21)] + matrices(frame, "family")
        if wanted:
            bars(drawing, drawing.axes[0, 1], frame, wanted, ours, baseline)
        else:
            drawing.empty(drawing.axes[0, 1], "no other matrix of this run meets the criteria, and it has no family")
    return drawing


def meets(frame: pandas.DataFrame, matrix: str, row_mean: float = 42, nnz: float = 300_000) -> bool:
    """Whether a matrix meets the paper's global criterion (for its larger device; 21 entries a row for the other)."""
    row = select(frame, f"p_matrix={matrix}").iloc[0]
    return bool(row["v_row_mean"] > row_mean and row["v_nnz"] > nnz)


def scores(predicted: np.ndarray, faster: np.ndarray) -> tuple[float | None, float | None]:
    """Return precision and recall."""
    hits = int((predicted & faster).sum())
    return (hits / predicted.sum() if predicted.any() else None), (hits / faster.sum() if faster.any() else None)


def fitted(rows: pandas.DataFrame) -> float:
    """Return the filling of tiles (column ``filled``) from which predicting "faster" is right most often."""
    faster = rows["speedup"] > 1
    return max(np.sort(rows["filled"]), key=lambda cut: ((rows["filled"] >= cut) == faster).mean())


def long_rows(mean: int, nnz: int):
    """Return the paper's criterion of rows longer than `mean` and more than `nnz` entries: its text and its test."""
    return f"row > {mean} and NNZ(A) > {nnz:,}", lambda r: (r["v_row_mean"] > mean) & (r["v_nnz"] > nnz)
