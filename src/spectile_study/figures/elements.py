"""The papers' tables and figures as the workflow finds them: ``workflow/scripts/<paper>/<element>.py``, one each.

A script defines ``draw(frame)``, which returns a :class:`~spectile_study.figures.drawing.Drawing`, or ``table(frame)``,
which returns a :class:`~spectile_study.figures.tables.Table`; its caption is ``workflow/report/<paper>/<element>.rst``.
Beside it stands ``claims(rows)``, which computes our number of each claim of ``config/claims.tsv`` that is drawn there.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas

    from spectile_study.bench.rows import Ours, Rows
    from spectile_study.figures.drawing import Drawing
    from spectile_study.figures.tables import Table

SCRIPTS = Path("workflow/scripts")


class Element(NamedTuple):
    """One table or figure of a paper, or one that is ours alone."""

    paper: str
    name: str
    script: Path

    @property
    def is_figure(self) -> bool:
        """Whether its script draws a figure, not a table."""
        return "\ndef draw(" in self.script.read_text()

    @property
    def output(self) -> str:
        """Where it is drawn, below the results of a machine."""
        name = f"{self.paper}_{self.name}"
        return f"figures/{name}.svg" if self.is_figure else f"tables/{name}.html"

    @property
    def is_papers(self) -> bool:
        """Whether the paper has it; what is ours alone goes by a name."""
        return re.fullmatch(r"(fig|t)\d+", self.name) is not None

    @property
    def label(self) -> str:
        """How the paper calls it: Figure 5, Table 1; what the paper does not have goes by its name."""
        numbered = re.fullmatch(r"(fig|t)(\d+)", self.name)
        if numbered is None:
            return f"{self.name} (not in the paper)"
        return f"{'Figure' if numbered[1] == 'fig' else 'Table'} {numbered[2]}"

    @property
    def subject(self) -> str:
        """What it shows in a few words: the first line of its script, shortened at its first comma where long."""
        first = self.script.read_text().partition("\n")[0]
        words = re.sub(r"^(Figure|Table) \w+ of [^:]*: ", "", first.strip('."'))
        words = words if len(words) < 65 else re.split("[,:;(]", words)[0]
        start, space, rest = words.partition(" ")
        return (start.lower() if start.istitle() else start) + space + rest

    @property
    def needs(self) -> tuple[str, ...]:
        """Other elements whose cases it draws or judges, too: ``NEEDS`` of its script."""
        for node in ast.parse(self.script.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NEEDS":
                return tuple(ast.literal_eval(node.value))
        return ()

    def draw(self, frame: pandas.DataFrame) -> Drawing | Table:
        """Return the drawing of the paper's `frame`."""
        module = _loaded(self.script)
        return module.draw(frame) if self.is_figure else module.table(frame)

    def claims(self, rows: Rows) -> dict[str, Ours]:
        """Return our number of each claim that its script computes from the paper's `rows`."""
        compute = getattr(_loaded(self.script), "claims", None)
        return dict(compute(rows)) if compute else {}


@functools.cache
def _loaded(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"drawn_{script.parent.name}_{script.stem}", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def elements(paper: str, scripts: Path = SCRIPTS) -> list[Element]:
    """Return the paper's tables, then its figures, in their order."""
    every = [Element(paper, path.stem, path) for path in scripts.glob(f"{paper}/*.py")]
    return sorted(every, key=lambda element: (element.is_figure, _natural(element.name)))


def _natural(text: str) -> tuple[list[int], str]:
    """Return a key that sorts fig10 after fig9."""
    return [int(number) for number in re.findall(r"\d+", text)], text
