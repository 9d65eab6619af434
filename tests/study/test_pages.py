"""The pages of docs/: their tables are those of the records, and their links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("config/*.md")])


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("system", ["readme", "evd", "kpm", "spamm", "tsparse"])
def test_tables_are_those_of_the_records(tables, system):
    page = ROOT / ("README.md" if system == "readme" else f"docs/performance/{system}.md")
    text = page.read_text()
    names = re.findall(r"<!-- table ([a-z ]+) -->\n\| ", text)
    assert names == [name for name in tables.TABLES if name.partition(" ")[0] == system]
    assert tables.written(page) == text, "python docs/tables.py writes them anew"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_readme_says_what_each_known_gpu_gets():
    from spectile.core.devices import TABLE

    (section,) = re.findall(r"## Which GPUs\n(.*?)\n## ", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    rows = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    assert set(TABLE) <= {name.strip() for row in rows for name in row.split(",")}
