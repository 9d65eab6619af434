"""One look for the figures and tables of all four papers, and the book-keeping that keeps them true.

Every mark is drawn through :class:`Drawing`, which notes the record that it comes from; the notes are saved beside the
figure (``<stem>.marks.tsv``) and tests recompute them.  The paper's own numbers come from the claims table alone, so
that nothing can be drawn as the paper's which it does not print.
"""

from __future__ import annotations

import functools
import hashlib
import html
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas

from spectile.core.atomic_file import atomic_write
from spectile_study.bench.claims import read_claims

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Table of the papers' printed numbers, relative to the workflow's folder.
CLAIMS = Path("config/claims.tsv")


class Look(NamedTuple):
    """Colour, marker and name of a method: the same in every figure."""

    color: str
    marker: str
    label: str


# Okabe and Ito's palette: distinguishable with colour vision deficiencies and in print.
_OURS, _VENDOR, _OTHER_VENDOR, _PAPER = "#0072B2", "#D55E00", "#E69F00", "#555555"
_PALETTE = (
    "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733", "#999933", "#332288", "#AA4499", "#661100",
)  # fmt: skip
_MARKERS = "osD^vPX*<>hp"
LOOKS = {
    "spectile": Look(_OURS, "o", "spectile"),
    "blas": Look(_VENDOR, "s", "BLAS"),
    "cublas": Look(_VENDOR, "s", "cuBLAS"),
    "cusparse": Look(_VENDOR, "s", "cuSPARSE"),
    "cusolver": Look(_VENDOR, "s", "cuSOLVER"),
    "spectile_two_stage": Look("#56B4E9", "v", "spectile, two stages"),
    "cusolver_one_stage": Look(_VENDOR, "s", "cuSOLVER, one stage"),
    "cusolver_two_stage": Look(_OTHER_VENDOR, "D", "cuSOLVER, two stages"),
    "lapack": Look(_VENDOR, "s", "LAPACK"),
    "lapack_mrrr": Look(_OTHER_VENDOR, "D", "LAPACK, MRRR"),
    "scipy": Look(_VENDOR, "s", "SciPy"),
    "cusp": Look("#882255", "X", "CUSP"),
    "rmerge2": Look("#117733", "^", "RMerge2"),
    "nsparse": Look("#999933", "v", "Nsparse"),
    "ac_spgemm": Look("#332288", "P", "AC-SpGEMM"),
    "speck": Look("#AA4499", "*", "spECK"),
}


def look(method: str) -> Look:
    """Return the look of `method`: a listed one, or one derived from its name, the same in every run."""
    if method in LOOKS:
        return LOOKS[method]
    number = int(hashlib.sha256(method.encode()).hexdigest()[:8], 16)
    return Look(_PALETTE[number % len(_PALETTE)], _MARKERS[number % len(_MARKERS)], name(method))


def name(method: str) -> str:
    """Return how a method is called in print: ``cusparse_float32`` is cuSPARSE float32."""
    if method in LOOKS:
        return LOOKS[method].label
    library, _, variant = method.partition("_")
    return f"{LOOKS[library].label if library in LOOKS else library} {variant.replace('_', ' ')}".strip()


@functools.cache
def claims(path: Path = CLAIMS) -> pandas.DataFrame:
    """Return the claims table, indexed by claim."""
    return read_claims(path).set_index("claim")


def printed(claim: str) -> float:
    """Return the number that the paper prints for `claim`.

    Raises
    ------
    KeyError
        If the claims table does not list it: then it may not be drawn as the paper's.
    """
    table = claims()
    if claim not in table.index:
        raise KeyError(
            f"{claim!r} is not in {CLAIMS}: only printed numbers may be drawn as the paper's, so list it first"
        )
    return float(table["printed"].astype(float).loc[claim])


_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,  # an axis in powers of ten says x 10^8, not 1e8
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": True,  # white over lines and hatches, without an edge
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "svg.hashsalt": "spectile",  # the same data give the same file
    "svg.fonttype": "path",
    "figure.constrained_layout.use": True,
}


class Drawing:
    """A figure whose every mark is tied to a record.

    Parameters
    ----------
    title : str
        What the figure shows, in the paper's numbering ("Figure 5: ...").
    rows, columns : int
        Panels.
    size : tuple of float
        Width and height in inches; keep it landscape, taller figures are cut in the report.
    share_y : bool
        One y axis for a row of panels.
    """

    def __init__(
        self, title: str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.0, 4.0), share_y: bool = False
    ) -> None:
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams.update(_SETTINGS)
        from matplotlib import pyplot

        self.figure: Figure
        self.figure, axes = pyplot.subplots(
            rows, columns, figsize=size, squeeze=False, sharey="row" if share_y else False
        )
        self.axes: np.ndarray = axes
        self.figure.suptitle(title, fontsize=10)
        self.notes: list[dict[str, Any]] = []
        self._empty: dict[Axes, str] = {}
        self._slots: list[str] = []
        self._notes: list[str] = []
        self._models: dict[Axes, list[str]] = {}

    @property
    def ax(self) -> Axes:
        """The first panel."""
        return self.axes[0, 0]

    def marks(
        self,
        ax: Axes,
        rows: pandas.DataFrame,
        x: str,
        y: str,
        *,
        method: str | None = None,
        label: str | None = None,
        kind: str = "line",
        lo: str | None = None,
        hi: str | None = None,
        positions: Sequence[float] | None = None,
        width: float = 0.8,
        **settings: Any,
    ) -> None:
        """Draw one series; every row of `rows` is one mark.

        Parameters
        ----------
        ax : matplotlib Axes
        rows : DataFrame
            Frame rows, with the columns ``record``, ``case``, ``method`` and those named by `x` and `y`.
        x, y : str
            Numeric columns, of the frame or derived from its samples by :mod:`spectile_study.bench.stats`.
        method : str, optional
            Whose look to use; default: the rows' own method.
        kind : {"line", "scatter", "bar", "barh"}
        lo, hi : str, optional
            Columns with the interval of `y`, drawn as whiskers.
        positions : sequence of float, optional
            Where to draw, when `x` is a category.
        width : float
            Width of bars.
        **settings
            Passed to Matplotlib.
        """
        if not len(rows):
            return
        style = look(method or str(rows["method"].iloc[0]))
        rows = rows.sort_values(x) if kind == "line" and positions is None else rows
        across = np.asarray(positions if positions is not None else rows[x], dtype=float)
        up = rows[y].to_numpy(dtype=float)
        settings = dict[str, Any](color=style.color, label=style.label if label is None else label) | settings
        error = None
        if lo is not None and hi is not None:
            error = np.clip([up - rows[lo].to_numpy(dtype=float), rows[hi].to_numpy(dtype=float) - up], 0, None)
        if kind.startswith("bar"):
            ax.grid(visible=False, axis="x" if kind == "bar" else "y")
        if kind == "bar":
            ax.bar(across, up, width, yerr=error, error_kw={"lw": 0.8}, **settings)
        elif kind == "barh":
            ax.barh(across, up, width, xerr=error, error_kw={"lw": 0.8}, **settings)
        else:
            line = "-" if kind == "line" else "none"
            defaults: dict[str, Any] = {"marker": style.marker, "linestyle": line, "elinewidth": 0.8}
            ax.errorbar(across, up, yerr=error, capsize=2, **(defaults | settings))
        self._note(ax, rows, x, y, settings["label"])

    def curve(self, ax: Axes, row: pandas.Series, x: str, y: str, *, label: str | None = None, **settings: Any) -> None:
        """Draw one list-valued pair of columns of one row (a density, a spectrum) as a curve."""
        style = look(str(row["method"]))
        settings = dict[str, Any](color=style.color, label=style.label if label is None else label) | settings
        ax.plot(np.asarray(row[x], dtype=float), np.asarray(row[y], dtype=float), **settings)
        self._note(ax, row.to_frame().T, x, y, settings["label"], whole=True)

    def image(self, ax: Axes, row: pandas.Series, column: str, shape: tuple[int, int], **settings: Any) -> Any:
        """Draw one list-valued column of one row as an image of `shape`; return Matplotlib's image."""
        ax.grid(False)
        drawn = ax.imshow(np.asarray(row[column], dtype=float).reshape(shape), **({"cmap": "viridis"} | settings))
        self._note(ax, row.to_frame().T, column, column, column, whole=True)
        return drawn

    def _note(self, ax: Axes, rows: pandas.DataFrame, x: str, y: str, series: str, whole: bool = False) -> None:
        panel = int(np.flatnonzero([each is ax for each in self.axes.ravel()])[0]) if ax in self.axes.ravel() else -1
        columns = ["record", "paper", "case", "method", x, y]
        for record, paper, case, method, across, up in zip(*(rows[column] for column in columns), strict=True):
            self.notes.append(
                {
                    "panel": panel,
                    "series": series,
                    "record": record,
                    "paper": paper,
                    "case": case,
                    "method": method,
                    "x_column": x,
                    "x": "" if whole else across,
                    "y_column": y,
                    "y": "" if whole else up,
                }
            )

    def paper_line(self, ax: Axes, claim: str, label: str = "paper", *, vertical: bool = False) -> None:
        """Draw a number that the paper prints, as a dashed line."""
        draw = ax.axvline if vertical else ax.axhline
        draw(printed(claim), color=_PAPER, linestyle="--", linewidth=1, label=label)

    def paper_marks(self, ax: Axes, x: Sequence[float], names: Sequence[str], label: str = "paper") -> None:
        """Draw numbers that the paper prints in a table (claims `names`) at `x`, as open grey marks."""
        ax.plot(list(x), [printed(name) for name in names], "--", marker="x", color=_PAPER, linewidth=0.8, label=label)

    def model_line(self, ax: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
        """Draw a bound or a model (a roofline, 1/valid ratio): computed, not measured, and labelled as such.

        Models with different labels in one panel are dashed differently; a label that begins with ``_`` is left out of
        the legend.
        """
        labels = self._models.setdefault(ax, [])
        if label not in labels:
            labels.append(label)
        line = _DASHES[labels.index(label) % len(_DASHES)]
        ax.plot(list(x), list(y), color="black", linestyle=line, linewidth=1, label=label)

    def empty(self, ax: Axes, reason: str) -> None:
        """Leave a panel empty and say why in it; rows and columns that hold empty panels alone are drawn small."""
        ax.grid(False)
        # Not by removing the ticks, which other panels of a row may share.
        ax.tick_params(which="both", bottom=False, left=False, labelbottom=False, labelleft=False)
        ax.spines[:].set_visible(False)
        ax.patch.set_facecolor("#f4f4f4")
        self._empty[ax] = reason

    def slot(self, ax: Axes, position: float, reason: str) -> None:
        """Hatch one category of a bar panel that cannot be filled; the reason stands below the figure.

        Parameters
        ----------
        ax : matplotlib Axes
        position : float
            Place of the category.
        reason : str
            ``"<category>: <why>"``; categories of one reason are named together.
        """
        ax.axvspan(position - 0.4, position + 0.4, facecolor="none", edgecolor="#cccccc", hatch="///", linewidth=0)
        self._slots.append(reason)

    def note(self, text: str) -> None:
        """Write a sentence below the figure, such as why a row of panels is left out."""
        self._notes.append(text)

    def _word_slots(self) -> None:
        """Write the reasons of hatched categories, and the notes, below the figure."""
        by_reason: dict[str, list[str]] = {}
        for text in dict.fromkeys(self._slots):
            category, colon, reason = text.partition(": ")
            by_reason.setdefault(reason if colon else text, []).append(category if colon else "")
        words = [f"{', '.join(names)} ({reason})" if any(names) else reason for reason, names in by_reason.items()]
        texts = [*([f"hatched: {'; '.join(words)}"] if words else []), *self._notes]
        if texts:
            lines = [textwrap.fill(text, int(16 * self.figure.get_figwidth())) for text in texts]
            self.figure.supxlabel("\n".join(lines), fontsize=7, color="#666666")

    def _word_empty(self) -> None:
        """Shrink rows and columns of empty panels, and write the reasons into them."""
        empty = np.array([[ax in self._empty for ax in row] for row in self.axes])
        heights, widths = (np.where(empty.all(axis=axis) & ~empty.all(), 0.3, 1.0) for axis in (1, 0))
        grid = self.axes[0, 0].get_gridspec()
        grid.set_height_ratios(heights)
        grid.set_width_ratios(widths)
        characters = 13 * self.figure.get_figwidth() * widths / widths.sum()
        for row in self.axes:
            for ax, most in zip(row, characters, strict=True):
                if ax in self._empty:
                    # The title, too, would reach beyond a narrow panel.
                    lines = [
                        textwrap.fill(text, min(34, int(most))) for text in (ax.get_title(), self._empty[ax]) if text
                    ]
                    text = "\n\n".join(lines)
                    ax.set_title("")
                    ax.text(
                        0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color="#666666", fontsize=8
                    )
            filled = [ax for ax in row if ax not in self._empty]
            if filled and filled[0] is not row[0] and row[0].get_shared_y_axes().joined(row[0], filled[0]):
                filled[0].tick_params(labelleft=True)
                filled[0].set_ylabel(row[0].get_ylabel())
                row[0].set_ylabel("")

    def save(self, path: str | Path) -> None:
        """Write the figure as `path` (.svg), a .png beside it, and its marks (.marks.tsv); then close it.

        Raises
        ------
        ValueError
            If a panel holds nothing and no reason.
        """
        from matplotlib import pyplot

        path = Path(path)
        for panel, ax in enumerate(self.axes.ravel()):
            if not ax.has_data() and ax not in self._empty:
                raise ValueError(f"panel {panel} of {path.name} is blank: draw into it, or say why with empty()")
        self._word_slots()
        self._word_empty()
        for ax in self.axes.ravel():
            for axis in (ax.xaxis, ax.yaxis):
                _plain_ticks(axis)
        with atomic_write(path) as partial:
            self.figure.savefig(partial, format="svg", metadata={"Date": None})
        self.figure.set_layout_engine("none")  # panels stay where they are: laying out costs as much as drawing
        with atomic_write(path.with_suffix(".png")) as partial:
            self.figure.savefig(partial, format="png", dpi=130)
        columns = ["panel", "series", "record", "paper", "case", "method", "x_column", "x", "y_column", "y"]
        _write_notes(path, self.notes, columns)
        pyplot.close(self.figure)


_DASHES: tuple[Any, ...] = (":", (0, (4, 2)), "-.", (0, (1, 3)))


def _plain_ticks(axis: Axis) -> None:
    """Label an axis with plain numbers, 1,024 and not 2¹⁰, 10³ or 1024, where they are few and short."""
    from matplotlib import ticker

    if isinstance(axis.get_major_locator(), ticker.FixedLocator):
        return
    if axis.get_scale() == "linear" and 1e3 <= max(map(abs, axis.get_view_interval())) < 1e6:
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    if axis.get_scale() != "log":
        return
    low, high = sorted(axis.get_view_interval())
    if low < 1e-3 or high > 1e6:
        return
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1e3 else f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
    base = axis.get_transform().base  # type: ignore[attr-defined]
    decades = math.log10(high / low)
    if base == 10 and decades < 0.5:
        axis.set_major_locator(ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(ticker.NullLocator())
    elif base == 10 and decades < 2:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))


class Table:
    """A table whose measured cells are tied to records.

    Parameters
    ----------
    title : str
        What the table shows, in the paper's numbering.
    data : DataFrame
        Cells, as text or numbers; the second line of a text is shown small.  None and NaN are empty slots: "not
        printed" where the column's name holds the word "paper", "not measured" elsewhere.
    notes : sequence of str
        Reasons of empty slots, and what a reader must know, printed below.
    formats : mapping, optional
        Format of a column's numbers, for example ``{"speed-up": "{:.2f}"}``; default four significant digits, and the
        paper's as it prints them.
    """

    def __init__(
        self, title: str, data: pandas.DataFrame, notes: Sequence[str] = (), formats: dict[str, str] | None = None
    ) -> None:
        self.title = title
        self.data = data
        self.notes = list(dict.fromkeys(notes))
        self.formats = formats or {}
        self.sources: list[dict[str, Any]] = []

    def cite(self, rows: pandas.DataFrame, column: str) -> Table:
        """Note that cells come from `column` of the frame rows `rows`; return the table."""
        if not len(rows):  # rows of nothing may lack a derived column
            return self
        keys = ("record", "paper", "case", "method")
        for *key, value in zip(*(rows[name] for name in (*keys, column)), strict=True):
            self.sources.append(
                dict(zip(keys, key, strict=True))
                | {"y_column": column, "y": "" if isinstance(value, list | np.ndarray) else value}
            )
        return self

    def to_html(self) -> str:
        """Return the table as one self-contained page."""
        body = _html_table(self.data, self.formats)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return _PAGE.format(title=html.escape(self.title), body=body, notes=f"<ul>{notes}</ul>" if notes else "")

    def save(self, path: str | Path) -> None:
        """Write `path` (.html), the cells (.tsv) and their sources (.marks.tsv)."""
        path = Path(path)
        _write_text(path, self.to_html())
        _write_text(path.with_suffix(".tsv"), self.data.to_csv(sep="\t", index=False))
        _write_notes(path, self.sources, ["record", "paper", "case", "method", "y_column", "y"])


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #222; }}
h1 {{ font-size: 1.05em; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.25em 0.7em; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd; }}
th {{ background: #f4f4f4; vertical-align: bottom; }} td {{ white-space: nowrap; }}
.text {{ text-align: left; }} .long {{ white-space: normal; }}
.none, small {{ color: #777; }} small {{ white-space: normal; }}
ul {{ color: #555; font-size: 0.92em; max-width: 60em; }}
</style></head><body><h1>{title}</h1>{body}{notes}</body></html>
"""


#: Words of a cell without a number, shown pale.
_NOTHING = ("not measured", "not printed", "fails")


def _html_table(data: pandas.DataFrame, formats: dict[str, str]) -> str:
    """Return the table's HTML: columns of text at the left, numbers at the right."""
    columns = [str(name) for name in data]
    sides = ['class="text"' if _is_text(data.iloc[:, place]) else "" for place in range(len(columns))]
    head = "".join(f"<th {side}>{html.escape(name)}</th>" for name, side in zip(columns, sides, strict=True))
    lines = []
    for row in data.itertuples(index=False, name=None):
        cells = zip(columns, sides, row, strict=True)
        lines.append(
            "".join(f"<td {_long(side, value)}>{_cell(value, name, formats)}</td>" for name, side, value in cells)
        )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>".replace(" >", ">")


def _is_text(column: pandas.Series) -> bool:
    """Whether a column holds words: most of its cells do not begin as a number does."""
    words = [str(value) for value in column.dropna() if str(value) not in {"", "-", *_NOTHING}]
    return sum(not re.match(r"[-+<>]?\s*[\d.][\d.,e+-]*(?![A-Za-z])", word) for word in words) > len(words) / 2


def _long(side: str, value: Any) -> str:
    """Return the classes of a cell: long texts are broken into lines."""
    return side.replace("text", "text long") if len(str(value)) > 40 else side


def _cell(value: Any, column: str, formats: dict[str, str]) -> str:
    papers = "paper" in column
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return f'<span class="none">{"not printed" if papers else "not measured"}</span>'
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return formats[column].format(value) if column in formats else _four_digits(float(value), exact=papers)
    first, _, second = html.escape(str(value)).partition("\n")
    first = f'<span class="none">{first}</span>' if first in _NOTHING else first
    return f"{first}<br><small>{second}</small>" if second else first


def _four_digits(value: float, *, exact: bool = False) -> str:
    """Return four significant digits or more, without an exponent up to ten million; `exact` adds no zeros."""
    if 1e3 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}" if exact or value == 0 else f"{value:#.4g}"


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text)


def _write_notes(path: Path, notes: list[dict[str, Any]], columns: list[str]) -> None:
    _write_text(path.with_suffix(".marks.tsv"), pandas.DataFrame(notes, columns=columns).to_csv(sep="\t", index=False))
