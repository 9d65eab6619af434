"""The walks of CONTRIBUTING: the files exist in that order, hold what the walk names, and are no more than promised."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## Three walks")[2].partition("\n## ")[0]
#: Title of a walk -> most files, and an example of the parts of a path that the walk leaves open.
WALKS = {
    "Following one `spgemm` call to the kernel and back": (6, {}),
    "Adding a figure": (3, {"<paper>": "evd", "<element>": "fig9"}),
}


def steps(title):
    """Return path and text of each step."""
    section = TEXT.partition(f"### {title}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\d\. `([^`]+)`: (.*?)(?=^\d\. |\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)


def filled(path, example):
    for part, value in example.items():
        path = path.replace(part, value)
    return ROOT / path


def test_every_walk_is_known():
    assert re.findall(r"^### (.*)$", TEXT, flags=re.MULTILINE) == list(WALKS)


@pytest.mark.parametrize("title", WALKS)
def test_files_hold_what_the_walk_names(title):
    most, example = WALKS[title]
    walk = steps(title)
    assert 2 <= len({path for path, _ in walk}) == len(walk) <= most
    for path, text in walk:
        source = filled(path, example).read_text()
        names = re.findall(r"`(\w+)(?:\(\w*\))?`", text)
        assert [name for name in names if not re.search(rf"\b{name}\b", source)] == [], path


def test_each_file_of_the_spgemm_walk_is_reached_from_one_before():
    (first, _), *rest = steps("Following one `spgemm` call to the kernel and back")
    sources = (ROOT / first).read_text()
    for path, _ in rest:
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        ways = (
            rf"from {package} import [^\n]*\b{name}\b",
            rf"from {module} import",
            rf"\b{re.escape(Path(path).name)}\b",
        )
        assert any(re.search(way, sources) for way in ways), path
        sources += (ROOT / path).read_text()


def test_a_figure_is_a_script_a_caption_and_a_word_in_the_sheet():
    for paper in ("spamm", "tsparse", "evd", "kpm"):
        scripts = {path.stem for path in (ROOT / "workflow/scripts" / paper).glob("*.py")}
        captions = {path.stem for path in (ROOT / "workflow/report" / paper).glob("*.rst")}
        head, *rows = (ROOT / f"config/{paper}.tsv").read_text().splitlines()
        column = head.split("\t").index("element")
        named = {name for row in rows for name in row.split("\t")[column].split(",")}
        assert scripts == captions and scripts <= named
