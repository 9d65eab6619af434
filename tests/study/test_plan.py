"""The plan of a run, without Snakemake: what each element is drawn from, and what is refused."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import yaml
from matplotlib import pyplot

from spectile_study import plan
from spectile_study.bench import archive, provenance, record, sheets, sources
from spectile_study.bench.sheets import SheetError
from spectile_study.figures import agreement
from spectile_study.figures.elements import elements

from .recorded import ROOT, frame, marks, of


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
def test_an_element_draws_its_own_cases_alone(paper):
    elements_of = frame(paper).drop_duplicates("record").set_index("record")["p_element"].astype(str).str.split(",")
    for element in of(paper).values():
        names = {element.name, *element.needs}
        others = {note["case"] for note in marks(element) if not names & set(elements_of[note["record"]])}
        assert not others, f"{paper} {element.name} draws cases of others: name them in NEEDS"


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_everything_is_drawn_from_records_of_its_own_cases(paper, tmp_path, monkeypatch):
    """A run that measures draws an element from the JSON of its own cases, here of a device that no table knows."""
    monkeypatch.chdir(ROOT)
    kept = archive.load(ROOT / f"results/recorded/h200/{paper}.zip").values()
    for element in of(paper).values():
        names = {element.name, *element.needs}
        own = [each for each in kept if names & set((each["params"].get("element") or "").split(","))]
        records = record.frame(each | {"device": "a processor"} for each in own)
        made = element.draw(records)
        pyplot.close("all")
        recorded = set(records["record"])
        assert {note["record"] for note in (made.notes if element.is_figure else made.sources)} <= recorded
        assert agreement.of_element(records, element)["verdict"].notna().all()


def plain(value):
    """Return a cell without the difference between a list and an array, and between one absence and another."""
    return np.asarray(value).tolist() if np.ndim(value) else "" if pandas.isna(value) else str(value)


def test_a_frame_that_was_written_holds_what_the_records_do(tmp_path):
    kept = archive.load(ROOT / "results/recorded/h200/kpm.zip").values()
    records = record.frame(kept)
    record.write_frame(records, tmp_path / "frame.parquet")
    read = record.read_frame(tmp_path / "frame.parquet")
    for column in records:
        assert list(map(plain, records[column])) == list(map(plain, read[column])), column


def test_recorded_results_need_no_record():
    made = plan.Plan(configured(source="recorded", machine="h200"), ROOT)
    assert made.all_records() == []
    assert made.drawn_from(named("evd", element="t1")) == [str(ROOT / "results/recorded/h200/evd.parquet")]


def test_an_edited_script_draws_its_own_element_again(tmp_path):
    for part in ("config", "workflow"):
        shutil.copytree(ROOT / part, tmp_path / part)

    def digests():
        sources._file_digest.cache_clear()
        made = plan.Plan(configured(), tmp_path)
        return [made.drawing_digest(named("kpm", element=name)) for name in ("fig1", "fig2")]

    before = digests()
    script = tmp_path / "workflow/scripts/kpm/fig1.py"
    script.write_text(script.read_text() + "\nlimit = 1\n")
    after = digests()
    assert before[0] != after[0] and before[1] == after[1] != before[0]


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


@pytest.mark.parametrize("paper", sorted({*provenance.PAPERS} - {"tsparse"}))
@pytest.mark.parametrize("run", ["paper", "quick"])
def test_only_sparse_products_are_of_matrices_of_the_collection(paper, run):
    """A name in the column of matrices is a model's elsewhere, which no rule fetches."""
    made = plan.Plan(configured(run=run), ROOT)
    needed = {path for case in made.cases(paper) for path in made.inputs(named(paper, case=case))}
    assert not [path for path in needed if path.startswith("resources/receipts/")]


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


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("results/this/figures/kpm_fig11.svg", None),
        ("results/this/records/kpm/peaks.json", None),
        ("results/this/kpm.parquet", None),
        ("results/recorded/h200/kpm.zip", None),
        ("figures", None),
        ("results/this/figures/kpm_fig77.svg", "kpm has no element 'fig77': choose one of matrices, t1"),
        ("results/this/tables/kpm_fig11.html", "is not drawn: ask for results/this/figures/kpm_fig11.svg"),
        ("results/this/figures/foo_fig1.svg", "of the paper 'foo', which this run has not: papers are spamm, tsparse"),
        ("results/this/figures/evd_fig4.svg", r"which this run has not: add --config papers=\[evd\]"),
        ("results/h200/figures/kpm_fig11.svg", "machine 'h200'.*add --config source=recorded machine=h200"),
        ("results/box/kpm.parquet", "machine 'box'.*add --config machine=box"),
        ("results/this/records/kpm/peeks.json", "kpm has no case 'peeks': did you mean peaks?"),
        ("results/this/records/kpm/step_200x100x40_r32.json", "run 'paper'.*add --configfile config/paper.yaml"),
    ],
)
def test_files_that_this_run_does_not_make_are_refused(target, message):
    made = plan.Plan(configured(papers=["kpm", "spamm"]), ROOT)
    if message is None:
        made.check_targets([target])
        return
    with pytest.raises(SheetError, match=message):
        made.check_targets([target])


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("claims.tsv", lambda text: text.replace("\texact\t", "\texakt\t", 1), "has the kind 'exakt'"),
        ("claims.tsv", lambda text: text.replace("\t", "\t\t\t", 1), "claims.tsv"),
        ("matrices.tsv", lambda text: "abc", "has the columns"),
        ("kpm.tsv", lambda text: text.partition("\n")[0], "kpm.tsv holds no case"),
        ("kpm.tsv", lambda text: "", "kpm.tsv holds no case"),
        ("kpm.tsv", lambda text: None, "there is no sheet .*kpm.tsv"),
        ("kpm.tsv", lambda text: text.encode("utf-16"), "kpm.tsv is not text in UTF-8"),
        ("kpm.tsv", lambda text: text.replace("\tmachine\t", "\t\t", 1), "line 2 lacks 'study'"),
        ("kpm.tsv", lambda text: f"# a comment\n\n{text}x\n", r"line \d+ has more or fewer cells"),
        # As spreadsheets write it.
        ("kpm.tsv", lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"), None),
        ("kpm.tsv", lambda text: text.replace("\tt2,fig8\t", '\t"t2,fig8"\t'), None),
    ],
)
def test_tables_that_cannot_be_read_are_refused_before_anything_runs(tmp_path, name, edit, message):
    for part in ("config", "workflow"):
        shutil.copytree(ROOT / part, tmp_path / part)
    path = tmp_path / "config" / name
    text = path.read_text()
    edited = edit(text)
    path.unlink()
    if edited is not None:
        path.write_bytes(edited if isinstance(edited, bytes) else edited.encode())
    made = plan.Plan(configured(papers=["kpm"]), tmp_path)
    if message is None:
        made.check()
        assert made.cases("kpm") == plan.Plan(configured(papers=["kpm"]), ROOT).cases("kpm")
        return
    with pytest.raises(SheetError, match=message) as refused:
        made.check()
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_lines_of_a_sheet_are_counted_with_its_comments(tmp_path):
    text = (ROOT / "config/kpm.tsv").read_text()
    (tmp_path / "kpm.tsv").write_text(f"# a comment\n\n{text}x\n")
    with pytest.raises(SheetError, match=f"line {len(text.splitlines()) + 3} has more or fewer cells"):
        sheets.read_sheet(tmp_path / "kpm.tsv", ROOT / "workflow/schemas/kpm.schema.yaml")


def test_gpus_are_asked_for_by_the_sheet_beside_the_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # results may lie elsewhere
    rows = sheets.read_sheet(ROOT / "config/spamm.tsv", ROOT / "workflow/schemas/spamm.schema.yaml")
    case = next(case for case, row in rows.items() if row["gpus"] == 8)
    assert sheets.gres(named("spamm", case=case), "gpu:h200") == "gpu:h200:8"
