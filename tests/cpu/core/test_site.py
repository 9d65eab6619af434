"""The site, without building it: programs of the gallery run, flow charts can be read, and every page has a place."""

import ast
import importlib.util
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import spectile
from tests.modules import module_at

DOCS = Path(__file__).parents[3] / "docs"
PROGRAMS = sorted((DOCS / "gallery").glob("plot_*.py"))
CHARTS = [
    pytest.param(chart, id=f"{page.relative_to(DOCS)}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, chart in enumerate(re.findall(r"```mermaid\n.*?```", page.read_text(encoding="utf-8"), re.DOTALL))
]


def imported(program):
    """Return the packages that a program imports."""
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_of_the_gallery_runs_and_draws(program, monkeypatch, tmp_path):
    for package in imported(program):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    pyplot.close("all")
    pyplot.switch_backend("agg")
    try:
        runpy.run_path(str(program))
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        assert figures and all(axes.has_data() for figure in figures for axes in figure.axes)
    finally:
        pyplot.close("all")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def flowcharts():
    return module_at(DOCS / "flowcharts.py")


@pytest.mark.parametrize("chart", CHARTS)
def test_a_flow_chart_of_a_page_is_drawn(flowcharts, chart):
    drawn = flowcharts.drawn(f"before\n\n{chart}\n\nafter")
    assert "mermaid" not in drawn and drawn.count("<svg") == 1


def test_a_flow_chart_has_its_nodes_and_edges_below_each_other(flowcharts):
    labels, edges = flowcharts.read("a[start] -->|why| b{or?}\nb --> c & d[end]\nc --> d\n")
    assert labels == {"a": "start", "b": "or?", "c": "c", "d": "end"}
    assert edges == [("a", "b", "why"), ("b", "c", ""), ("b", "d", ""), ("c", "d", "")]
    picture = flowcharts.svg("a[start] -->|why| b{or?}\nb --> c & d[end]\nc --> d\n")
    heights = [int(re.search(rf'y="(\d+)">{re.escape(label)}<', picture)[1]) for label in ("start", "or?", "c", "end")]
    assert heights == sorted(set(heights)) and ">why<" in picture
    with pytest.raises(ValueError, match="no node"):
        flowcharts.read("a --- b")


def points(path):
    """Return points along the curves of an edge."""
    for piece in path.removeprefix("M").split(" L"):
        ends = np.array([[float(x) for x in pair.split(",")] for pair in piece.replace("C", "").split()])
        for t in np.linspace(0, 1, 101):
            yield np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]) @ ends


@pytest.mark.parametrize(
    "chart", [*CHARTS, pytest.param("```mermaid\nflowchart LR\na --> b --> c --> d\na --> d\na --> c\n```", id="by")]
)
def test_edges_of_a_flow_chart_pass_beside_its_boxes_and_it_can_be_heard(flowcharts, chart):
    (picture,) = re.findall(r"<svg.*?</svg>", flowcharts.drawn(f"{chart}\n"), re.DOTALL)
    boxes = re.findall(r'<rect x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)" rx', picture)
    corners = np.array(boxes, dtype=float)
    for path in re.findall(r'<path d="([^"]*)"/>', picture):
        for x, y in points(path):
            inside = (abs(x - corners[:, 0] - corners[:, 2] / 2) < corners[:, 2] / 2 - 1) & (
                abs(y - corners[:, 1] - corners[:, 3] / 2) < corners[:, 3] / 2 - 1
            )
            assert not inside.any()
    (said,) = re.findall(r'aria-label="([^"]*)"', picture)
    assert all(label in said for label in re.findall(r">([^<>]+)</text>", picture))


def test_every_page_has_a_place_on_the_site():
    listed = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for name in filter(None, (line for line in tree.splitlines() if not line.startswith(":"))):
                listed.add((page.parent / f"{name.rpartition('<')[2].rstrip('>')}.md").resolve())
    pages = {page for page in DOCS.rglob("*.md") if page.parent != DOCS / "paper"}
    assert pages - listed == set(), "a page is in no table of contents: name it in that of a page beside it"
    made = {DOCS / "examples/index.md", *(DOCS / f"api/{name}.md" for name in (*dir(spectile), "spectile"))}
    assert listed - pages <= made, "a table of contents names a page that is not there"
