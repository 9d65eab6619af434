"""The measured cases of the eigensolver: every study builds, runs and passes its own check at a small order."""

from pathlib import Path

import numpy as np
import pytest

from spectile_study.bench import record
from spectile_study.bench.case import Context, Method, Skipped
from spectile_study.bench.sheets import read_sheet
from spectile_study.cases.evd import build as cases
from spectile_study.cases.evd import cpu, sequences
from spectile_study.cases.evd.cpu import STUDIES

ROOT = Path(__file__).parents[3]
SHEET, SCHEMA = ROOT / "config" / "evd.tsv", ROOT / "workflow" / "schemas" / "evd.schema.yaml"
SMALL = {
    "evd": [{"vectors": True}],
    "reduction": [{"bandwidth": 8, "block": 32}],
    "chasing": [{"bandwidth": 8}],
    "syr2k": [{"k": 5}],
    "drivers": [{"vectors": True}, {}],
    "problems": [
        {"problem": "generalized"},
        {"problem": "partial", "k": 9},
        {"problem": "batched", "batch": 3, "precision": "float32"},
        {"problem": "banded", "bandwidth": 6},
        {"problem": "banded", "bandwidth": 6, "vectors": True},
        {"problem": "tridiagonal"},
        {"problem": "tridiagonal", "vectors": True},
    ],
    "sequences": [{"n": 64}],
}


@pytest.mark.parametrize(
    ("study", "given"),
    [(study, given) for study in STUDIES for given in SMALL.get(study, [{"bandwidth": 4}])],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_study_passes_its_checks(study, given):
    defaults = {name: item.get("default") for name, item in _properties().items()}
    row = defaults | {"study": study, "n": 70} | given
    problem = cases.build(row, Context("cpu", Path("resources"), seed=1, threads=2))
    assert any(isinstance(method, Method) for method in problem.methods) == (study not in ("int8", "devices"))
    for method in problem.methods:
        if isinstance(method, Skipped):
            assert method.reason
            continue
        if method.prepare:
            method.prepare()
        errors = method.check(method.run())
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)


@pytest.mark.parametrize("given", [given for given in SMALL["problems"] if given["problem"] != "batched"])
def test_a_wrong_result_of_a_problem_fails_its_check(given):
    defaults = {name: item.get("default") for name, item in _properties().items()}
    row = defaults | {"study": "problems", "n": 70} | given
    ours = cases.build(row, Context("cpu", Path("resources"), seed=1, threads=2)).methods[0]
    result = ours.run()
    w, *vectors = result if isinstance(result, tuple) else (result,)
    w[-1] *= 1 + 1e-9
    errors = ours.check((w, *vectors) if vectors else w)
    assert any(errors[name] > limit for name, limit in ours.limits.items())


def _properties():
    import yaml

    return yaml.safe_load(SCHEMA.read_text())["properties"]


def test_the_sheet_holds_the_papers_elements():
    rows = read_sheet(SHEET, SCHEMA, "paper")
    elements = {part for row in rows.values() for part in row["element"].split(",")}
    # Those after Figure 11 are no elements of the paper.
    assert elements == {
        "t1",
        "t2",
        "fig3",
        "fig4",
        "fig8",
        "fig9",
        "fig10",
        "fig11",
        "stages",
        "types",
        "int8",
        "problems",
        "drivers",
        "devices",
        "gradients",
        "sequences",
    }
    quick = read_sheet(SHEET, SCHEMA, "quick")
    assert {part for row in quick.values() for part in row["element"].split(",")} == elements
    depths = {row["k"] for row in rows.values() if row["study"] == "syr2k"} - {None}
    assert depths == {16, 32, 64, 128, 256, 512, 1024, 2048, 4096}
    assert {row["bandwidth"] for row in rows.values() if "t2" in row["element"]} == {16, 32, 64}


def test_recorded_solver_is_ahead_of_both_algorithms_of_the_vendor():
    path = ROOT / "results/recorded/h200/evd.parquet"
    if not path.exists():
        pytest.skip("EVD's paper run is not recorded yet: python -m spectile_study measure --paper evd --run paper")
    frame = record.read_frame(path, whole=True)
    solved = frame[(frame["p_study"] == "evd") & (frame["p_n"] >= 4096) & (frame["status"] == "ok")]
    seconds = solved.pivot_table(index="case", columns="method", values="time_s")
    assert len(seconds) == 4 * 4 + 2 * 2 + 1  # four types at two orders, float64 at two more, and values at 65,536
    vendors = sorted({"cusolver_one_stage", "cusolver_two_stage"} & {*seconds.columns})
    assert vendors
    for vendor in vendors:
        measured = seconds[seconds[vendor].notna()]
        assert len(measured) and (measured["spectile"] < measured[vendor]).all()


def test_recorded_cpu_is_near_lapack():
    path = ROOT / "results/recorded/epyc2/evd.parquet"
    if not path.exists():
        pytest.skip(
            "not recorded yet: python -m spectile_study measure --paper evd --case evd_2000_vectors --device cpu"
        )
    rows = record.read_frame(path, whole=True).set_index(["case", "method"])
    for case in ("evd_2000_values", "evd_2000_vectors"):
        assert rows.loc[(case, "spectile"), "time_s"] < 3 * rows.loc[(case, "lapack"), "time_s"]


def test_a_chasing_on_the_host_is_called_once_or_left_out_by_prediction():
    def method(n, b):
        return cpu.chasing_method("spectile_cpu", n, b, 16, lambda: None, None, {})

    assert method(8192, 64).once is False and method(16_384, 64).once is True
    assert method(65_536, 32).reason == "left out of this row: its operations predict about 17 s a call"


def test_fewer_calls_of_drivers_that_fall_behind(tmp_path):
    row = {"study": "drivers", "n": 300, "vectors": True, "precision": "float64"}
    methods = cpu.drivers(row, Context("cpu", tmp_path, seed=1, threads=1)).methods
    assert [method.name for method in methods if method.once] == ["scipy_ev", "scipy_evx"]


def test_the_kinetic_energy_on_a_grid_is_that_of_an_oscillator_and_of_its_axes():
    at = (np.arange(16) - 7.5) * sequences.SPACING
    energies = np.linalg.eigvalsh(sequences.kinetic((16,)) + np.diag(at**2 / 2))
    np.testing.assert_allclose(energies[:3], [0.5, 1.5, 2.5], atol=1e-3)
    x, y, both = (np.linalg.eigvalsh(sequences.kinetic(shape)) for shape in ((2,), (4,), (2, 4)))
    np.testing.assert_allclose(both, np.sort(np.add.outer(x, y).ravel()), rtol=1e-12)
    assert sequences.grid(8192) == (16, 16, 32)
    with pytest.raises(ValueError, match="a grid of 70 points is not offered"):
        sequences.grid(70)
