"""What is drawn of the frame of everyday draws: the distribution of each system, the worst draws by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas

from spectile_study.everyday import frame as frames
from spectile_study.everyday import predict
from spectile_study.everyday.outputs import FIGURES, TABLES
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import GREY, HUES
from spectile_study.figures.tables import Cell, Table

QUANTILES = (0.05, 0.5, 0.95)
WORST = 10
#: Of each system the columns whose product is the size of a draw, what that is called, and what tells draws apart.
SIZES = {
    "spamm": (("p_m", "p_k", "p_n"), "m k n", "p_kind"),
    "tsparse": (("w_products",), "products", "p_kind"),
    "evd": (("p_n",), "order n", "p_form"),
    "kpm": (("w_nnz", "p_vectors"), "entries times R", "p_kind"),
}
CALLS = {"spamm": "spamm", "tsparse": "spgemm", "evd": "eigh", "kpm": "kpm_dos"}


def compared(frame: pandas.DataFrame, system: str) -> pandas.DataFrame:
    """Return the measured draws of a system that have a rival, as rows that marks are noted of."""
    rows = frame[(frame["system"] == system) & (frame["status"] == "ok") & frame["ratio"].notna()].copy()
    rows["ratio"] = rows["ratio"].astype(float)
    rows = rows.sort_values("ratio", ignore_index=True)
    rows["share"] = (np.arange(len(rows)) + 0.5) / max(len(rows), 1)
    rows["record"] = [f"everyday {seed}" for seed in rows["seed"]]
    rows["paper"], rows["case"] = rows["system"], [f"{system} {index}" for index in rows["index"]]
    columns = [column for column in SIZES[system][0] if column in rows]
    rows["size"] = np.prod([rows[column].astype(float) for column in columns], axis=0) if len(columns) else np.nan
    rows["library"] = rows["method"]
    rows["method"] = "spectile"
    return rows


def quantiles(rows: pandas.DataFrame) -> list[float]:
    """Return the 5, 50 and 95 % quantiles of the ratios."""
    return [float(value) for value in np.quantile(rows["ratio"], QUANTILES)]


def figure(frame: pandas.DataFrame, system: str) -> Drawing:
    """Return the distribution of a system's ratios, and each draw over its size."""
    rows = compared(frame, system)
    drawing = Drawing(f"Everyday draws of {CALLS[system]}: the best alternative's time over ours", columns=2)
    left, right = drawing.axes[0]
    left.set_title("distribution")
    right.set_title("each draw")
    own = frame[frame["system"] == system]
    if not len(rows):
        why = "no draw was measured beside an alternative" if len(own) else "no draw of this system is in the frame"
        for ax in (left, right):
            drawing.empty(ax, why)
        return drawing
    # One distribution, of whatever commits: the sentence below the figure names them.
    drawing.marks(left, rows.drop(columns="commit"), "ratio", "share", label="draws", marker="")
    for value, at in zip(quantiles(rows), QUANTILES, strict=True):
        left.axhline(at, color=GREY, linewidth=0.6)
        # Below and to the right of its point: the curve rises.
        words = f"{at:.0%}: {value:.2f}"
        left.annotate(words, (value, at), textcoords="offset points", xytext=(4, -3), fontsize=8, va="top")
    _, name, kind = SIZES[system]
    for color, (label, group) in zip(HUES, rows.groupby(kind), strict=False):
        drawing.marks(right, group, "size", "ratio", kind="scatter", color=color, label=str(label), markersize=3)
    left.axvline(1, color="black", linewidth=0.8)
    right.axhline(1, color="black", linewidth=0.8)
    left.set(xscale="log", xlabel="alternative's time / ours", ylabel="share of the draws")
    right.set(xscale="log", yscale="log", xlabel=name, ylabel="alternative's time / ours")
    right.legend(fontsize=7)
    for sentence in sentences(own):
        drawing.note(sentence)
    return drawing


def sentences(own: pandas.DataFrame) -> list[str]:
    """Return what a reader must know of the draws of one system: how many, by what seed, and what is left out."""
    if not len(own):
        return []
    count = own["status"].value_counts()
    devices = ", ".join(sorted(own["device"].dropna().unique()))
    said = [
        f"{count.get('ok', 0)} draws measured, {count.get('skipped', 0)} beyond this machine's limits, "
        f"{count.get('failed', 0)} failed; seed {own['seed'].iloc[0]}, {devices}."
    ]
    commits = own.loc[own["status"] == "ok", "commit"].str[:7].value_counts(sort=False)
    if len(commits) > 1:
        said.append(f"By commits: {', '.join(f'{count} draws at {name}' for name, count in commits.items())}.")
    failed = own[own["status"] == "failed"]
    said += [f"Failed: {row['draw']} ({row['reason']})." for _, row in failed.iterrows()]
    alone = int(((own["status"] == "ok") & own["ratio"].isna()).sum())
    if alone:
        said.append(f"Without an alternative that passed its check: {alone}.")
    missing = own["missing"].dropna()
    absent = sorted({part for text in missing for part in str(text).split("; ") if "not installed" in part})
    return said + ([f"Without {'; '.join(absent)}."] if absent else [])


def distribution(frame: pandas.DataFrame) -> Table:
    """Return the quantiles of each system."""
    lines, notes = [], []
    for system in FIGURES:
        own, rows = frame[frame["system"] == system], compared(frame, system)
        notes += [f"{CALLS[system]}: {sentence}" for sentence in sentences(own)]
        if not len(rows):
            continue
        low, middle, high = quantiles(rows)
        # The dense product's time, of which a share is allowed, has a launch in it.
        timed = {"s_launch", "w_share"} <= set(rows)
        launch = rows["s_launch"] * (1 - rows["w_share"]) / rows["seconds"] if timed else np.nan
        lines.append(
            {
                "call": CALLS[system],
                "draws": len(rows),
                "5 %": low,
                "median": middle,
                "95 %": high,
                "least": float(rows["ratio"].iloc[0]),
                "draws below 1": int((rows["ratio"] < 1).sum()),
                "share of what the work allows": _middle(rows["allowed_share"]),
                "of that and of one launch": _middle(rows["allowed_share"] + launch),
                "share in which the device works": _middle(rows["device_share"]),
            }
        )
    columns = ["call", "draws", "5 %", "median", "95 %", "least", "draws below 1", "share of what the work allows",
               "of that and of one launch", "share in which the device works"]  # fmt: skip
    title = "Everyday draws: the best alternative's time over ours"
    formats = dict.fromkeys(("5 %", "median", "95 %", "least"), "{:.2f}")
    return Table(title, pandas.DataFrame(lines, columns=columns), notes, formats)


def _middle(column: pandas.Series) -> Cell | None:
    numbers = column.dropna().astype(float)
    if not len(numbers):
        return None
    low = float(np.quantile(numbers, 0.05))
    return Cell(float(numbers.median()), "{:.2f}", {"low": low, "draws": len(numbers)}, "5 %: {low:.2f}, {draws} draws")


def bound_by(row: pandas.Series) -> str:
    """Return what takes most of a call's time, or of SpAMM on a CPU all but the product; "" where the row cannot tell.

    On a GPU the host, the preparation (of KPM) or the kernels; on a CPU the preparation or the recurrence.
    """
    share, setup = row["device_share"], row.get("s_setup")
    prepared = 0.0 if pandas.isna(setup) else min(1.0, setup / row["seconds"])
    if share < 0.5:
        return f"the host, {1 - share:.0%} of the call"
    if prepared > 0.5:
        return f"the preparation, {prepared:.0%} of the call"
    if not pandas.isna(share):
        return f"the kernels, {share:.0%} of the call"
    if prepared:
        return f"the recurrence, {1 - prepared:.0%} of the call"
    if row["system"] == "spamm" and not pandas.isna(row["allowed_share"]):
        return f"all but the product, {max(0.0, 1 - row['allowed_share']):.0%} of the call"
    return ""


def worst(frame: pandas.DataFrame) -> Table:
    """Return the draws of least ratio of each system, by name."""
    parts = [compared(frame, system).head(WORST) for system in FIGURES]
    lines = []
    for rows in parts:
        for _, row in rows.iterrows():
            interval = {"low": float(row["ratio_lo"]), "high": float(row["ratio_hi"])}
            lines.append(
                {
                    "call": row["call"],
                    "draw": row["draw"],
                    "taken": row["library"] or None,
                    "ms": 1e3 * float(row["seconds"]),
                    "alternative": row["rival"],
                    "its ms": 1e3 * float(row["rival_s"]),
                    "ratio": Cell(float(row["ratio"]), "{:.2f}", interval, "{low:.2f} to {high:.2f}"),
                    "bound by": bound_by(row) or None,
                }
            )
    columns = ["call", "draw", "taken", "ms", "alternative", "its ms", "ratio", "bound by"]
    made = Table(f"The {WORST} worst draws of each system", pandas.DataFrame(lines, columns=columns))
    for rows in parts:
        made.cite(rows, "ratio")
    return made


def draw(source: Path, results: Path) -> None:
    """Draw everything of a frame into a machine's results.

    Parameters
    ----------
    source : Path
        The frame.
    results : Path
        Folder of the machine.
    """
    frame = frames.read(source)
    folder = results / "everyday"
    folder.mkdir(parents=True, exist_ok=True)
    for system in FIGURES:
        figure(frame, system).save(folder / f"{system}.svg")
    for name, made in zip(TABLES, (distribution(frame), worst(frame), predict.table(frame)), strict=True):
        made.save(folder / f"{name}.html")
