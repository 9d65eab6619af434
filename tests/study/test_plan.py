"""The plan of a run, without Snakemake: what each element is drawn from, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from matplotlib import pyplot

from spectile_study import plan
from spectile_study.bench import provenance, record
from spectile_study.bench.sheets import SheetError
from spectile_study.figures.elements import elements

ROOT = Path(__file__).parents[2]


def configured(**changes):
    return yaml.safe_load((ROOT / "config/config.yaml").read_text()) | changes


def named(paper, **others):
    return SimpleNamespace(paper=paper, **others)


def test_an_element_is_drawn_from_its_own_cases_alone():
    made = plan.Plan(configured(), ROOT)
    of_all = set(made.records(named("kpm")))
    own = set(made.drawn_from(named("kpm", element="fig11")))
    assert own and own < of_all
    for path in own:
        row = made.row(named("kpm", case=Path(path).stem))
        assert "fig11" in row["element"].split(",")


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_what_an_element_draws_is_the_same_without_the_others_cases(paper, monkeypatch):
    monkeypatch.chdir(ROOT)
    frame = record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet")
    for element in elements(paper):
        names = {element.name, *element.needs}
        mine = frame[[bool(names & set(str(cell).split(","))) for cell in frame["p_element"]]]
        whole, own = (element.draw(rows) for rows in (frame, mine))
        if element.is_figure:
            pyplot.close("all")
        marks = [str(drawn.notes if element.is_figure else drawn.sources) for drawn in (whole, own)]
        assert marks[0] == marks[1], f"{paper} {element.name} draws cases of others: name them in NEEDS"


def test_recorded_results_need_no_record():
    made = plan.Plan(configured(source="recorded", machine="h200"), ROOT)
    assert made.all_records() == []
    assert made.drawn_from(named("evd", element="t1")) == [str(ROOT / "results/recorded/h200/evd.parquet")]


def test_an_edited_script_draws_its_own_element_again(tmp_path):
    made = plan.Plan(configured(), ROOT)
    digests = [made.drawing_digest(named("kpm", element=name)) for name in ("fig1", "fig2")]
    assert digests[0] != digests[1]
    script = tmp_path / "fig1.py"
    script.write_text((ROOT / "workflow/scripts/kpm/fig1.py").read_text() + "\n# a comment\n")
    files = [ROOT / "workflow/scripts/kpm/fig1.py", script]
    programs = [provenance.program(path) for path in files]
    assert programs[0] == programs[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": {"element": "fig1,fig99"}}, "case a names the element 'fig99', which no script draws"),
        ({"a": {"element": "fig1,cache"}}, None),
        ({"a": {"element": None}}, None),
    ],
)
def test_unknown_elements_are_refused(rows, message):
    check = lambda: plan.check_elements(  # noqa: E731
        rows, elements("kpm", ROOT / "workflow/scripts"), Path("kpm.tsv"), ROOT / "workflow/schemas/kpm.schema.yaml"
    )
    if message is None:
        check()
        return
    with pytest.raises(SheetError, match=message):
        check()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cage12", None),
        ("cagge12", "did you mean cage12"),
        ("vanHeukelum/cage13x", "did you mean"),
        ("bcsstk31", None),
    ],
)
def test_unknown_matrices_are_refused(name, message):
    check = lambda: plan.check_matrices(  # noqa: E731
        {"a": {"matrix": name}}, ROOT / "config/matrices.tsv", Path("tsparse.tsv")
    )
    if message is None:
        check()
        return
    with pytest.raises(SheetError, match=f"case a names the matrix '{name}', which is not known; .*{message}"):
        check()


def test_a_case_gets_its_gpus_or_ends_the_run():
    made = plan.Plan(configured(device="cuda", run="paper"), ROOT)
    eight = next(case for case, row in made.cases("spamm").items() if row["gpus"] == 8)
    assert made.gpus(named("spamm", case=eight), None) == 8
    with pytest.raises(SheetError, match="needs 8 GPUs and --resources gpu=4 would clip it"):
        made.gpus(named("spamm", case=eight), 4)


def test_cuda_without_a_device_is_refused(monkeypatch):
    from spectile.core import device

    monkeypatch.setattr(device, "available", lambda: False)
    plan.check_device("auto")
    with pytest.raises(SheetError, match="this machine has no CUDA device that can be used"):
        plan.check_device("cuda")
