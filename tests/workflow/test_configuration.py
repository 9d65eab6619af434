"""Configuration and plan: wrong keys are worded errors, plans are quick, every drawing has its caption."""

import re
import time
from pathlib import Path

import pytest
import yaml

from spectile_study.bench import provenance, sheets
from spectile_study.figures.elements import elements

from .conftest import ROOT, snakemake
from .faulty.workflow import busyness

PAPERS = [paper for paper in provenance.PAPERS if (ROOT / f"config/{paper}.tsv").exists()]
DRAWINGS = [element for paper in PAPERS for element in elements(paper, ROOT / "workflow/scripts")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "rouns=3"], "unknown key 'rouns' at its top level; did you mean 'rounds'?"),
        (["--config", "rounds=many"], "rounds = 'many'.*it is: timed rounds of a case"),
        (["--config", "rounds=1"], "rounds = 1"),
        (["--config", "machine=a/b"], "machine = 'a/b'.*name of this machine"),
        (["--config", "machine=a;touch x"], "machine = 'a;touch x'"),
        (["--config", "papers=[spam]"], "papers"),
        (["--config", "source=recorded"], "no machine 'this': choose one.*machine=NAME, of h200, xeon2"),
        (["--config", "suitesparse_url=http://example.org/"], "https, file, or http on loopback"),
    ],
)
def test_wrong_configuration_is_worded(workflow_copy, options, message):
    done = snakemake(workflow_copy, "-n", *options, check=False)
    assert done.returncode != 0
    assert re.search(message, done.stdout + done.stderr), done.stderr
    assert not (workflow_copy / "results/this").exists()


@pytest.mark.parametrize("config", ["config/config.yaml", "config/paper.yaml"])
def test_plan_takes_less_than_five_seconds(workflow_copy, config):
    snakemake(workflow_copy, "-n", "--quiet", "all", "--configfile", config)
    busy = busyness()
    start = time.perf_counter()
    done = snakemake(workflow_copy, "-n", "--configfile", config)
    assert time.perf_counter() - start < 5 * busy
    assert "draw_figure" in done.stdout


def test_configuration_reference_names_every_key():
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    text = (ROOT / "config/README.md").read_text()
    for key, item in schema["properties"].items():
        assert f"| `{key}` |" in text
        assert "default" in item["description"]
    defaults = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    assert set(defaults) == set(schema["properties"])
    sheets.validate(defaults | yaml.safe_load((ROOT / "config/paper.yaml").read_text()), schema, "config/paper.yaml")


def test_configuration_reference_names_every_variable():
    text = (ROOT / "config/README.md").read_text()
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/**/*.py"), *ROOT.glob("workflow/**/*.smk")]
    used = {name for path in sources for name in re.findall(r"SPECTILE_[A-Z0-9_]*[A-Z0-9]", path.read_text())}
    assert used == set(re.findall(r"SPECTILE_[A-Z0-9_]*[A-Z0-9]", text))


@pytest.mark.parametrize("paper", PAPERS)
def test_sheets_are_sound(paper):
    schema = ROOT / f"workflow/schemas/{paper}.schema.yaml"
    rows = sheets.read_sheet(ROOT / f"config/{paper}.tsv", schema)
    assert any("quick" in row["run"].split(",") for row in rows.values())
    assert any("paper" in row["run"].split(",") for row in rows.values())
    for key, item in yaml.safe_load(schema.read_text())["properties"].items():
        assert item.get("description"), f"{paper}: {key} has no description"
    named = {element for row in rows.values() for element in (row["element"] or "").split(",") if element}
    drawn = {element.name for element in DRAWINGS if element.paper == paper}
    assert drawn <= named | {"none"}, f"{paper}: {sorted(drawn - named)} are drawn and no case names them"


@pytest.mark.parametrize("element", DRAWINGS, ids=lambda element: f"{element.paper}_{element.name}")
def test_drawings_are_short_and_captioned(element):
    text = element.script.read_text()
    assert len(text.splitlines()) < 60
    caption = (ROOT / f"workflow/report/{element.paper}/{element.name}.rst").read_text()
    assert 20 < len(caption) < 1500
    assert f"def {'draw' if element.is_figure else 'table'}(frame" in text


def test_captions_have_drawings():
    named = {(element.paper, element.name) for element in DRAWINGS}
    captions = {(path.parent.name, path.stem) for path in (ROOT / "workflow/report").glob("*/*.rst")}
    assert captions == named


def test_no_machine_paths_in_the_repository():
    import subprocess

    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "uv.lock" not in files
    here = f"{ROOT}/"
    for name in files:
        path = Path(ROOT / name)
        if path.suffix in {".parquet", ".png"} or not path.exists():
            continue
        assert here not in path.read_text(errors="ignore"), f"{name} names a folder of this machine"
