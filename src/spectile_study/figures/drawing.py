"""Figures whose every mark is tied to a record, with one look for all four papers.

Every mark is drawn through :class:`Drawing`, which notes the record that it comes from; the notes are saved beside the
figure (``<stem>.marks.tsv``) and tests recompute them.  The papers' own numbers come from the claims table alone, so
that nothing can be drawn as the paper's which it does not print.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from spectile.core.atomic_file import atomic_write
from spectile_study.bench.claims import printed
from spectile_study.bench.record import dates
from spectile_study.figures.marks import earlier, write_marks
from spectile_study.figures.palette import GREY, HUES, PALE_GREY, PAPER, SLOT, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
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
        import seaborn
        from matplotlib import pyplot

        seaborn.set_theme(style="ticks", palette=HUES, rc=_SETTINGS)
        # Not seaborn's FacetGrid, which lays panels out before anything is in them, and costs a third of a drawing.
        figure, axes = pyplot.subplots(
            rows, columns, figsize=size, squeeze=False, sharey="row" if share_y else False, layout="constrained"
        )
        self.figure: Figure = figure
        self.axes: np.ndarray = axes
        self.figure.suptitle(title, fontsize=10)
        self.notes: list[dict[str, Any]] = []
        self._empty: dict[Axes, str] = {}
        self._slots: list[str] = []
        self._notes: list[str] = []
        self._earlier: dict[str, set[str]] = {}
        self._models: dict[Axes, list[str]] = {}

    @property
    def ax(self) -> Axes:
        """The first panel."""
        return self.axes[0, 0]

    def legend_beside(
        self, ax: Axes, panels: Iterable[Axes], order: Callable[[str], Any] | None = None, **settings: Any
    ) -> None:
        """Name the marks of some panels once, at the right of one: within it a legend would hide marks.

        Parameters
        ----------
        ax : matplotlib Axes
            The last of its row.
        panels : iterable of matplotlib Axes
            Marks of one label are one entry.
        order : callable, optional
            Key to sort the labels by; default: as they were drawn.
        **settings
            Passed to Matplotlib.
        """
        shown = {
            label: handle for one in panels for handle, label in zip(*one.get_legend_handles_labels(), strict=True)
        }
        names = sorted(shown, key=order) if order else list(shown)
        if names:
            handles = [shown[label] for label in names]
            ax.legend(handles, names, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1), **settings)

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
        positions: Sequence[float] | None = None,
        width: float = 0.8,
        **settings: Any,
    ) -> None:
        """Draw one series; every row of `rows` is one mark, and hollow (a bar dotted) where it is of a single sample.

        A line joins points of one commit alone: what lies between two others may be a change of the program.

        Parameters
        ----------
        ax : matplotlib Axes
        rows : DataFrame
            Frame rows, with the columns ``record``, ``case``, ``method`` and those named by `x` and `y`.
        x, y : str
            Numeric columns, of the frame or derived from its samples by :mod:`spectile_study.bench.stats`; the interval
            of `y`, ``<y>_lo`` to ``<y>_hi`` or that of the time that it is over, is drawn as whiskers.
        method : str, optional
            Whose look to use; default: the rows' own method.
        kind : {"line", "scatter", "bar", "barh"}
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
        ends = _interval(rows, y)
        error = None if ends is None else np.clip([up - ends[0], ends[1] - up], 0, None)
        single = np.zeros(len(up), dtype=bool) if ends is None else ends[0] == ends[1]
        if single.any():
            self.note(SINGLE)
        self._note_dates(rows)
        thin = 0.8 if len(rows) <= _CROWD else 0.4
        if kind.startswith("bar"):
            ax.grid(visible=False, axis="x" if kind == "bar" else "y")
        if kind == "bar":
            bars = ax.bar(across, up, width, yerr=error, error_kw={"lw": thin}, **settings)
        elif kind == "barh":
            bars = ax.barh(across, up, width, xerr=error, error_kw={"lw": thin}, **settings)
        if kind.startswith("bar"):
            for bar in (bar for bar, once in zip(bars, single, strict=True) if once):
                bar.set(edgecolor="black", linestyle=":", linewidth=0.9)
        else:
            look_of = {"marker": style.marker} | settings
            parts = _of_one_commit(rows) if kind == "line" else [slice(None)]
            if len(parts) > 1:
                self.note(APART)
            for number, part in enumerate(parts):
                named = {} if number == 0 else {"label": "_of another commit"}
                self._points(ax, across[part], up[part], kind, look_of | named)
            if single.any():
                hollow = {"markerfacecolor": "white", "label": "_single", "zorder": 3, "alpha": 1}
                self._points(ax, across[single], up[single], "scatter", look_of | hollow)
            if error is not None:
                ax.errorbar(
                    across,
                    up,
                    yerr=error,
                    fmt="none",
                    ecolor=settings["color"],
                    elinewidth=thin,
                    capsize=2 * (thin == 0.8),
                )
        self._note(ax, rows, x, y, settings["label"])

    def _points(self, ax: Axes, across: np.ndarray, up: np.ndarray, kind: str, settings: dict[str, Any]) -> None:
        """Draw points of one series, joined by a line where `kind` is ``line``."""
        # Points alone are lines without a stroke: scatter plots have other margins.
        look = {"linestyle": "-" if kind == "line" else "none", "markeredgecolor": settings["color"]}
        there = ~np.isnan(across) & ~np.isnan(up)
        ax.plot(across[there], up[there], **(look | settings))

    def curve(self, ax: Axes, row: pandas.Series, x: str, y: str, *, label: str | None = None, **settings: Any) -> None:
        """Draw one list-valued pair of columns of one row (a density, a spectrum) as a curve."""
        style = look(str(row["method"]))
        settings = dict[str, Any](color=style.color, label=style.label if label is None else label) | settings
        across, up = (np.asarray(row[column], dtype=float) for column in (x, y))
        order = np.argsort(across, kind="stable")
        ax.plot(across[order], up[order], **settings)
        self._note(ax, row.to_frame().T, x, y, settings["label"], whole=True)

    def image(self, ax: Axes, row: pandas.Series, column: str, shape: tuple[int, int], **settings: Any) -> Any:
        """Draw one list-valued column of one row as an image of `shape`; return Matplotlib's image."""
        ax.grid(False)
        drawn = ax.imshow(np.asarray(row[column], dtype=float).reshape(shape), **({"cmap": "viridis"} | settings))
        self._note(ax, row.to_frame().T, column, column, column, whole=True)
        return drawn

    def _note_dates(self, rows: pandas.DataFrame) -> None:
        """Take note of rows that stay from an earlier record; one sentence names them all."""
        for date in dates(rows):
            self._earlier.setdefault(date, set()).update(rows["method"])

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

    def paper_line(self, ax: Axes, claim: str, label: str = "paper") -> None:
        """Draw a number that the paper prints, as a dashed line."""
        ax.axhline(printed(claim), color=PAPER, linestyle="--", linewidth=1, label=label)

    def paper_marks(
        self, ax: Axes, x: Sequence[float], names: Sequence[str], label: str = "paper", joined: bool = True
    ) -> None:
        """Draw numbers that the paper prints in a table (claims `names`) at `x`, as open grey marks.

        Several of them in a panel have marks and dashes of their own; those that are of other things at each `x`, such
        as means over other matrices, are not `joined`.
        """
        known = sum(line.get_color() == PAPER for line in ax.lines)
        marker, line = (("x", "--"), ("+", ":"))[known % 2]
        look: dict[str, Any] = {"marker": marker, "linestyle": line if joined else "none"}
        ax.plot(list(x), [printed(name) for name in names], color=PAPER, linewidth=0.8, label=label, **look)

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
        ax.patch.set_facecolor(PALE_GREY)
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
        ax.axvspan(position - 0.4, position + 0.4, facecolor="none", edgecolor=SLOT, hatch="///", linewidth=0)
        self._slots.append(reason)

    def note(self, text: str) -> None:
        """Write a sentence below the figure, such as why a row of panels is left out."""
        if text not in self._notes:
            self._notes.append(text)

    def _word_slots(self) -> None:
        """Write the reasons of hatched categories, and the notes, below the figure."""
        by_reason: dict[str, list[str]] = {}
        for text in dict.fromkeys(self._slots):
            category, colon, reason = text.partition(": ")
            by_reason.setdefault(reason if colon else text, []).append(category if colon else "")
        words = [f"{', '.join(names)} ({reason})" if any(names) else reason for reason, names in by_reason.items()]
        texts = [*([f"hatched: {'; '.join(words)}"] if words else []), *self._notes, *earlier(self._earlier)]
        if texts:
            lines = [textwrap.fill(text, int(16 * self.figure.get_figwidth())) for text in texts]
            self.figure.supxlabel("\n".join(lines), fontsize=7, color=GREY)

    def _word_empty(self) -> None:
        """Shrink rows and columns of empty panels, and write the reasons into them."""
        empty = np.array([[ax in self._empty for ax in row] for row in self.axes])
        if empty.all():  # reasons alone need no more than their lines
            self.figure.set_figheight(len(empty) + 0.6)
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
                    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=GREY, fontsize=8)
            filled = [ax for ax in row if ax not in self._empty]
            if filled and filled[0] is not row[0] and row[0].get_shared_y_axes().joined(row[0], filled[0]):
                filled[0].tick_params(labelleft=True)
                filled[0].set_ylabel(row[0].get_ylabel())
            for ax in row:
                if ax in self._empty:  # an axis without ticks needs no name, which would reach beyond a low panel
                    ax.set_ylabel("")

    def finish(self, name: str) -> Figure:
        """Write reasons and plain ticks into the figure and return it; nothing is drawn into it afterwards.

        Raises
        ------
        ValueError
            If a panel holds nothing and no reason; `name` is how the message calls the figure.
        """
        for panel, ax in enumerate(self.axes.ravel()):
            if not ax.has_data() and ax not in self._empty:
                raise ValueError(f"panel {panel} of {name} is blank: draw into it, or say why with empty()")
        self._word_slots()
        self._word_empty()
        for ax in self.axes.ravel():
            for axis in (ax.xaxis, ax.yaxis):
                _plain_ticks(axis)
        return self.figure

    def save(self, path: str | Path) -> None:
        """Write the figure as `path` (.svg), and its marks beside it (.marks.tsv); then close it.

        Raises
        ------
        ValueError
            If a panel holds nothing and no reason.
        """
        from matplotlib import pyplot

        path = Path(path)
        self.finish(path.name)
        with atomic_write(path) as partial:
            self.figure.savefig(partial, format="svg", metadata={"Date": None})
        columns = ["panel", "series", "record", "paper", "case", "method", "x_column", "x", "y_column", "y"]
        write_marks(path, self.notes, columns)
        pyplot.close(self.figure)


#: What is said below a figure of marks that are drawn otherwise.
SINGLE = "Hollow marks and dotted bars: a single sample."
APART = "Points that no line joins were measured with different commits."
#: From so many marks of a series on, its whiskers are thin.
_CROWD = 40
#: Columns that hold something over the time, whose interval is that of the time.
_OVER_TIME = ("rate", "gflops", "gbytes_s")


def _interval(rows: pandas.DataFrame, y: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the ends of the interval of a column, None where it has none."""
    if f"{y}_lo" in rows:
        return rows[f"{y}_lo"].to_numpy(dtype=float), rows[f"{y}_hi"].to_numpy(dtype=float)
    if y not in _OVER_TIME or "time_s_lo" not in rows:
        return None
    value, time, least, most = (rows[name].to_numpy(dtype=float) for name in (y, "time_s", "time_s_lo", "time_s_hi"))
    return value * time / most, value * time / least


def _of_one_commit(rows: pandas.DataFrame) -> list[slice]:
    """Return which neighbouring rows are of one commit."""
    if "commit" not in rows:
        return [slice(None)]
    commits = rows["commit"].tolist()
    starts = [place for place in range(len(commits)) if place == 0 or commits[place] != commits[place - 1]]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(commits)], strict=True)]


_DASHES: tuple[Any, ...] = (":", (0, (4, 2)), "-.", "-")


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
