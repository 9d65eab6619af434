"""Configuration and plan: wrong keys are worded errors, plans are quick, every drawing has its caption."""

import re
from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_config

from spectile_study.bench import provenance, sheets
from spectile_study.figures.elements import elements
from spectile_study.plan import Plan

from .conftest import ROOT, snakemake
from .faulty.workflow import quiet_seconds

PAPERS = [paper for paper in provenance.PAPERS if (ROOT / f"config/{paper}.tsv").exists()]
DRAWINGS = [element for paper in PAPERS for element in elements(paper, ROOT / "workflow/scripts")]


def configured(*options):
    """Return the configuration with options as Snakemake reads them from its command line."""
    return yaml.safe_load((ROOT / "config/config.yaml").read_text()) | parse_config(options)


def test_wrong_configuration_ends_in_one_sentence(workflow_copy):
    done = snakemake(workflow_copy, "-n", "--config", "rouns=3", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "unknown key 'rouns' at its top level; did you mean 'rounds'?" in done.stdout + done.stderr
    assert not (workflow_copy / "results/this").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("rounds=many", "rounds = 'many'.*it is: timed rounds of a case"),
        ("rounds=1", "rounds = 1"),
        ("machine=a/b", "machine = 'a/b'.*name of this machine"),
        ("machine=a;touch x", "machine = 'a;touch x'"),
        ("papers=[spam]", "papers"),
        ("papers=kpm", r"papers is a list: write papers=\[kpm\]"),
        ("suitesparse_url=http://example.org/", "https, file, or http on loopback"),
        ("source=recorded", "no machine 'this': choose one.*machine=NAME, of epyc2, h100, .*h200"),
    ],
)
def test_wrong_values_are_worded(option, message):
    """As Snakemake reads them; that it says what is raised here is seen above."""
    with pytest.raises(sheets.SheetError, match=message):
        Plan(configured(option), ROOT)


@pytest.mark.parametrize(
    ("paper", "column", "value", "message"),
    [
        ("kpm", "element", "fig77", "names the element 'fig77', which no script draws"),
        ("tsparse", "matrix", "vanHeukelum/cage12x", "names the matrix 'vanHeukelum/cage12x', which is not known"),
        ("evd", "n", "many", "'many' is not a number"),
    ],
)
def test_typos_in_a_sheet_are_refused_in_one_sentence(workflow_copy, paper, column, value, message):
    sheet = workflow_copy / f"config/{paper}.tsv"
    lines = sheet.read_text().splitlines()
    cells = lines[1].split("\t")
    cells[lines[0].split("\t").index(column)] = value
    sheet.write_text("\n".join([lines[0], "\t".join(cells), *lines[2:]]) + "\n")
    with pytest.raises(sheets.SheetError, match=message):
        Plan(configured(), workflow_copy).check()
    if paper == "kpm":  # of them all
        done = snakemake(workflow_copy, "-n", check=False)
        assert done.returncode != 0 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("results/this/figures/kpm_fig77.svg", (), "kpm has no element 'fig77'"),
        ("results/this/records/kpm/nowhere.json", (), "kpm has no case 'nowhere'"),
        ("results/this/kpm.parquet", ("source=recorded", "machine=h200"), "of the machine 'this'"),
    ],
)
def test_files_of_no_rule_are_refused_in_one_sentence(workflow_copy, target, changes, message):
    with pytest.raises(sheets.SheetError, match=message):
        Plan(configured(*changes), workflow_copy).check_targets([target])
    if changes:  # of them all
        done = snakemake(workflow_copy, "-n", "--config", *changes, "--", target, check=False)
        assert done.returncode != 0 and message in done.stderr
        assert "Traceback" not in done.stderr and "MissingRule" not in done.stderr


def test_cuda_without_a_device_ends_before_the_first_job(workflow_copy):
    done = snakemake(workflow_copy, "smoke", "--config", "device=cuda", check=False, CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0 and "this machine has no CUDA device that can be used" in done.stderr + done.stdout
    assert not (workflow_copy / "results/this").exists()


def test_every_rule_explains_itself(workflow_copy):
    listed = snakemake(workflow_copy, "--list-rules").stdout
    for name in ("fetch_matrix", "measure_case", "gather_records", "draw_figure", "draw_table", "check_claims"):
        assert re.search(rf"^{name} \(\S.*\)$", listed, re.M), listed


def test_one_element_measures_its_own_cases_alone(workflow_copy):
    plan = snakemake(workflow_copy, "-n", "results/this/figures/kpm_fig11.svg").stdout
    rows = sheets.read_sheet(ROOT / "config/kpm.tsv", ROOT / "workflow/schemas/kpm.schema.yaml", "quick")
    own = {f"kpm/{case}" for case, row in rows.items() if "fig11" in (row["element"] or "").split(",")}
    assert set(re.findall(r"Measuring (\S+)", plan)) == own
    assert len(re.findall("Drawing the", plan)) == 1


def test_plan_takes_less_than_five_seconds(workflow_copy):
    """The paper's, which holds what all others do."""
    done = []
    # The best of three, as the limit leaves little room for what else the machine does.
    assert any(
        quiet_seconds(lambda: done.append(snakemake(workflow_copy, "-n", "--configfile", "config/paper.yaml"))) < 5
        for _ in range(3)
    )
    assert "draw_figure" in done[0].stdout


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


@pytest.mark.parametrize(
    "element",
    [element for element in DRAWINGS if element.is_papers],
    ids=lambda element: f"{element.paper}_{element.name}",
)
def test_captions_include_whether_ours_agrees(element):
    *_, last = (ROOT / f"workflow/report/{element.paper}/{element.name}.rst").read_text().rstrip().splitlines()
    found = Path(element.output).with_suffix(".agreement.rst")
    assert last == f".. include:: results/{{{{ snakemake.config.machine }}}}/{found}"


def test_captions_have_drawings():
    named = {(element.paper, element.name) for element in DRAWINGS}
    captions = {(path.parent.name, path.stem) for path in (ROOT / "workflow/report").glob("*/*.rst")}
    assert captions == named


def test_nothing_that_git_is_told_to_ignore_is_tracked():
    import subprocess

    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


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
