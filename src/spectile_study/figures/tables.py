"""Tables whose measured cells are tied to records: cells hold values, and words come when a page is written."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from pandas.io.formats.style import Styler

from spectile_study.bench.record import dates
from spectile_study.figures.marks import earlier, single, write_marks, write_text
from spectile_study.figures.palette import name as words_of

#: Words of a cell without a number, shown pale.
_NOTHING = ("not measured", "not printed", "fails")
#: So many cases of a single sample are named; more are counted.
_NAMED = 3
#: What of a method has a single sample, by column, where it is not its own time.
_OF = {"speedup": ", speed-up"}


@dataclass(frozen=True)
class Cell:
    """A value of a table, with what stands small below it.

    Attributes
    ----------
    value : number, str or None
        What the cell is about; exported under the column's name.  None is shown as a dash.
    pattern : str or callable
        Format of the value on the page.
    below : mapping
        Further values by name; exported under ``<column>: <name>``.  None is left out of the page.
    words : str
        The second line of the page, with the names of `below` in braces.
    """

    value: Any
    pattern: str | Callable[[Any], str] = "{}"
    below: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""

    def __str__(self) -> str:
        """Return the cell as the page shows it: one line, or two."""
        first = "-" if self.value is None else self.value if isinstance(self.value, str) else self._formatted()
        second = self.words.format(**self.below) if self.words else ""
        return f"{first}\n{second}" if second else first

    def _formatted(self) -> str:
        return self.pattern(self.value) if callable(self.pattern) else self.pattern.format(self.value)


def percent(ratio: float) -> str:
    """Return a nominal ratio as the papers print it: 30 %."""
    return f"{100 * ratio:.0f} %"


def first_value(rows: pandas.DataFrame, column: str) -> float | None:
    """Return the number in `column` of the first of `rows`, None where there is no row."""
    return float(rows[column].iloc[0]) if len(rows) else None


class Table:
    """A table whose measured cells are tied to records.

    Parameters
    ----------
    title : str
        What the table shows, in the paper's numbering.
    data : DataFrame
        Cells: numbers, text, or :class:`Cell`.  None and NaN are empty slots: "not printed" where the column's name
        holds the word "paper", "not measured" elsewhere.
    notes : sequence of str
        Reasons of empty slots, and what a reader must know, printed below.
    formats : mapping, optional
        Format of a column's numbers, for example ``{"speed-up": "{:.2f}"}``; default four significant digits, and the
        paper's as it prints them.

    Attributes
    ----------
    rest : tuple of str and DataFrame, optional
        Head and cells of a second table below the one that is laid out as the paper's: what the paper does not print.
    """

    def __init__(
        self,
        title: str,
        data: pandas.DataFrame | None = None,
        notes: Sequence[str] = (),
        formats: dict[str, str] | None = None,
    ) -> None:
        self.title = title
        self.data = pandas.DataFrame() if data is None else data
        self.notes = list(dict.fromkeys(notes))
        self.formats = formats or {}
        self.sources: list[dict[str, Any]] = []
        self._earlier: dict[str, set[str]] = {}
        self._single: dict[str, set[str]] = {}
        self.rest: tuple[str, pandas.DataFrame] | None = None

    def cite(self, rows: pandas.DataFrame, column: str) -> Table:
        """Note that cells come from `column` of the frame rows `rows`; return the table."""
        for date in dates(rows):
            self._earlier.setdefault(date, set()).update(rows["method"])
        for method, cases in rows[single(rows, column)].groupby("method")["case"]:
            self._single.setdefault(f"{words_of(str(method))}{_OF.get(column, '')}", set()).update(cases)
        keys = ("record", "paper", "case", "method")
        for *key, value in zip(*(rows[name] for name in (*keys, column)), strict=True):
            self.sources.append(
                dict(zip(keys, key, strict=True))
                | {"y_column": column, "y": "" if isinstance(value, list | np.ndarray) else value}
            )
        return self

    def note(self, text: str) -> None:
        """Write a sentence below the table."""
        if text not in self.notes:
            self.notes.append(text)

    def said(self) -> list[str]:
        """Return all that stands below the table: its notes, what has one sample, and what is of earlier records."""
        few = [
            f"{what} ({', '.join(sorted(cases)) if len(cases) <= _NAMED else f'{len(cases)} cases'})"
            for what, cases in sorted(self._single.items())
        ]
        once = [f"A single sample: {'; '.join(few)}."] if few else []
        return [*self.notes, *once, *earlier(self._earlier)]

    def values(self) -> pandas.DataFrame:
        """Return the cells for a machine: the values alone, and those of second lines in columns of their own.

        The rows of a second table follow those of the first.
        """
        parts = [_values(self.data), *([_values(self.rest[1])] if self.rest else [])]
        return pandas.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]

    def words(self) -> list[list[str]]:
        """Return the head and the lines as the page shows them, without its markup."""
        lines = [
            [_cell(value, str(name), self.formats) for name, value in line.items()]
            for line in self.data.astype(object).to_dict("records")
        ]
        plain = [[" ".join(html.unescape(re.sub("<[^>]+>", " ", cell)).split()) for cell in line] for line in lines]
        return [[str(name) for name in self.data], *plain]

    def to_html(self) -> str:
        """Return the table as one self-contained page."""
        body = _html_table(self.data, self.formats)
        if self.rest:
            head, data = self.rest
            body += f"<h2>{html.escape(head)}</h2>{_html_table(data, self.formats, 'rest')}"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.said())
        return _PAGE.format(title=html.escape(self.title), body=body, notes=f"<ul>{notes}</ul>" if notes else "")

    def save(self, path: str | Path) -> None:
        """Write `path` (.html), the values (.tsv) and their sources (.marks.tsv)."""
        path = Path(path)
        write_text(path, self.to_html())
        write_text(path.with_suffix(".tsv"), self.values().to_csv(sep="\t", index=False))
        write_marks(path, self.sources, ["record", "paper", "case", "method", "y_column", "y"])


def _values(data: pandas.DataFrame) -> pandas.DataFrame:
    columns: dict[str, list[Any]] = {}
    for name in data:
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in data[name]]
        columns[str(name)] = [cell.value for cell in cells]
        for part in dict.fromkeys(part for cell in cells for part in cell.below):
            columns[f"{name}: {part}"] = [cell.below.get(part) for cell in cells]
    return pandas.DataFrame(columns, index=data.index)


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #222; }}
h1 {{ font-size: 1.05em; }}
h2 {{ font-size: 1em; font-weight: normal; margin-top: 2em; }}
ul {{ color: #555; font-size: 0.92em; max-width: 60em; }}
</style></head><body><h1>{title}</h1>{body}{notes}</body></html>
"""
#: Rules of every table, by selector; columns of words stand at the left.
_RULES = {
    "": "border-collapse: collapse; font-variant-numeric: tabular-nums",
    "th, td": "padding: 0.25em 0.7em; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd",
    "th": "background: #f4f4f4; vertical-align: bottom",
    "td": "white-space: nowrap",
    ".long": "white-space: normal",
    ".none, small": "color: #777",
    "small": "white-space: normal",
}


def _html_table(data: pandas.DataFrame, formats: dict[str, str], name: str = "") -> str:
    """Return the table's HTML: columns of text at the left, numbers at the right."""
    data = data.set_axis([str(name) for name in data], axis="columns").reset_index(drop=True)
    texts = [f".col{place}" for place in range(data.shape[1]) if _is_text(data.iloc[:, place])]
    rules = _RULES | ({", ".join(texts): "text-align: left"} if texts else {})
    styler = Styler(data, uuid=name, uuid_len=len(name), cell_ids=False)
    styler.set_table_styles([{"selector": selector, "props": props} for selector, props in rules.items()])
    styler.set_td_classes(data.map(lambda value: "long" if len(str(value)) > 40 else ""))
    styler.format({name: functools.partial(_cell, column=str(name), formats=formats) for name in data})
    return styler.format_index(_header, axis="columns").hide(axis="index").to_html()


def _header(name: object) -> str:
    """Return the HTML of a column's name, whose powers of ten stay on one line."""
    return re.sub(r"(?<=\de)-(?=\d)", "&#8209;", html.escape(str(name)))


def _is_text(column: pandas.Series) -> bool:
    """Whether a column holds words: most of its cells do not begin as a number does."""
    words = [str(value) for value in column.dropna() if str(value) not in {"", "-", *_NOTHING}]
    return sum(not re.match(r"[-+<>]?\s*[\d.][\d.,e+-]*(?![A-Za-z])", word) for word in words) > len(words) / 2


def _cell(value: Any, column: str, formats: dict[str, str]) -> str:
    papers = "paper" in column
    value = str(value) if isinstance(value, Cell) else value
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


def like(ours: float | None, theirs: float) -> Cell | str:
    """Return our number with the digits that the paper prints, four at least; nothing where there is none."""
    value = float("nan") if ours is None else float(ours)
    if value != value:
        return ""
    digits = 4 if theirs != theirs else max(4, len(f"{theirs:.10g}".partition("e")[0].strip("-0.").replace(".", "")))
    return Cell(value, "{:,.0f}" if digits <= 4 and 1e3 <= abs(value) < 1e7 else f"{{:,.{digits}g}}")
