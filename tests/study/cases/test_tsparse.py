"""tSparse's cases: the sheet is whole, Table 1's compiled counts are the reference's."""

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile.tsparse.types import PRECISIONS
from spectile_study.__main__ import main
from spectile_study.bench import record, sheets
from spectile_study.bench.case import Context, InputAbsent, Method, Skipped
from spectile_study.bench.measure.checks import check_method
from spectile_study.cases.tsparse import build as cases
from spectile_study.cases.tsparse import called, capabilities, checks
from spectile_study.cases.tsparse.tiles import reference
from spectile_study.inputs import families, suitesparse

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def sheet():
    return sheets.read_sheet(ROOT / "config/tsparse.tsv", ROOT / "workflow/schemas/tsparse.schema.yaml")


def test_sheet_names_the_sixteen_matrices_and_generated_quick_ones(sheet):
    assert sum(row["part"] == "literature" for row in sheet.values()) == 8
    assert sum(row["part"] == "criteria" for row in sheet.values()) == 8
    for row in sheet.values():
        if row["run"] == "quick" and row.get("matrix"):
            assert families.is_family(row["matrix"])


def test_recorded_results_hold_every_row_of_the_sheet(sheet):
    """Measured, or skipped because the matrix is absent; the counts of Table 1 are those of today's code."""
    frame = record.read_frame(ROOT / "results/recorded/h200/tsparse.parquet")
    table = suitesparse.read_table(ROOT / "config/matrices.tsv")
    names = {pinned.name: pinned for pinned in table.values()}
    for case, row in sheet.items():
        if "paper" not in row["run"].split(",") or row.get("product") or row["part"] in capabilities.CAPABILITIES:
            continue
        rows = frame[(frame["case"] == case) & (frame["status"] != "beside")]
        short = row["matrix"].rpartition("/")[2]
        if short in names and names[short].source == "absent":
            assert rows.loc[rows["method"] != "index", "reason"].str.contains("absent from the mirror").all()
            continue
        status = dict(zip(rows["method"], rows["status"], strict=True))
        assert status["spectile_float64"] == status["spectile_float32"] == "ok", case
        assert status["cusparse_float32"] == status["cusparse_float64"], case
        assert set(status) >= {"cusp", "rmerge2", "nsparse", "speck"}, case
        assert any(set(status) >= {f"{kind}_{p}" for p in PRECISIONS} for kind in ("tasks", "tiles")), case
    for name in ("lock1074", "wiki_vote", "web_notredame"):
        row = frame[(frame["case"] == name) & (frame["method"] == "spectile_float64")].iloc[0]
        assert row["v_products"] == {"lock1074": 2752056, "wiki_vote": 4542805, "web_notredame": 64593748}[name]


@pytest.mark.parametrize(("nnz", "status"), [(3105536, "ok"), (3105537, "failed")])
def test_a_matrix_that_is_not_at_hand_is_told_of_by_the_index(tmp_path, monkeypatch, nnz, status):
    monkeypatch.chdir(ROOT)
    row, context = {"matrix": "webbase-1M", "product": None}, Context("cpu", tmp_path, 1, 1)
    with pytest.raises(suitesparse.MissingMatrix, match="absent from the mirror"):
        cases.build(row, context)
    index = tmp_path / "suitesparse/index/a.csv"
    index.parent.mkdir(parents=True)
    index.write_text(f"1\n08-Oct-2020 17:09:58\nWilliams,webbase-1M,1000005,1000005,{nnz},1,0,0,0,1,1,graph,{nnz}\n")
    with pytest.raises(InputAbsent, match="absent from the mirror") as absent:
        cases.build(row, context)
    (method,) = absent.value.methods
    found, _ = check_method(method, "cpu")
    assert found["status"] == status
    assert found["values"] == {"n": 1000005, "nnz": nnz}


def test_matrices_are_held_against_their_table_from_any_folder(tmp_path, monkeypatch, capsys):
    """A workflow may work in another folder than the study's."""
    index = tmp_path / "resources/suitesparse/index/a.csv"
    index.parent.mkdir(parents=True)
    index.write_text("1\n08-Oct-2020 17:09:58\nVLSI,other,9,9,9,1,0,0,0,1,1,graph,9\n"
                     "Williams,webbase-1M,1000005,1000005,3105536,1,0,0,0,1,1,graph,3105536\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    choice = ["--paper", "tsparse", "--case", "webbase_1m", "--run", "paper", "--machine", "m", "--device", "cpu"]
    assert main(["measure", *choice, "--study", str(ROOT)]) == 0
    assert "skipped" in capsys.readouterr().out
    made = json.loads(Path("results/m/records/tsparse/webbase_1m.json").read_text())
    assert "absent from the mirror" in made["reason"]
    assert [(told["method"], told["status"]) for told in made["methods"]] == [("index", "ok")]


@pytest.mark.parametrize("name", ["cage6", "mc2depi_16x24", "banded_200_9", "rmat_7_6", "elasticity2d_9x7"])
def test_compiled_counts_are_those_of_the_reference(name):
    A = families.generate(name)
    counts = cases.table1(A)
    expected = reference.table1(A)
    assert {key: counts[key] for key in expected} == pytest.approx(expected)


def test_quick_case_checks_every_method(tmp_path):
    row = {"case": "q", "matrix": "cage6", "part": "family", "empty_pool": False}
    problem = cases.build(row, Context("cpu", tmp_path, 1, 2))
    ran = [method for method in problem.methods if isinstance(method, Method)]
    named = {"spectile_float64", "spectile_float16", "spectile_float64_one_thread", "scipy_float64"}
    assert named <= {method.name for method in ran}
    for method in ran:
        result = method.run()
        errors = method.check(result)
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
        assert method.values(result)["precision"] in method.name
    reasons = {m.name: m.reason for m in problem.methods if isinstance(m, Skipped)}
    assert "not installed" in reasons["speck"]
    assert "CUDA" in reasons["cusparse_float32"]


def test_wrong_product_is_noticed(tmp_path):
    A = families.generate("cage6")
    check = checks.Check(A, cases.table1(A)["nnz_c"], seed=1)
    C = A @ A
    C.data[5] *= 1.001
    assert check("x", "float64", C)["error_bound_ratio"] > 1
    assert check("x", "float64", A.tocsr())["error_pattern"] == 1


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_inputs_that_round_twice_are_no_error(precision):
    """Just below a tie: float32 rounds it to the tie, which then rounds up, where float64 would have rounded down."""
    x = 1 + 2.0**-10 + 2.0**-11 - 2.0**-40
    A = sp.csr_array(np.diag([x, 1.0]))
    C = spgemm(A.astype(np.float32), A.astype(np.float32), precision=precision, backend="cpu")
    assert C.data[0] == (1 + 2.0**-9) ** 2
    check = checks.Check(A, 2, seed=1)
    assert check("spectile", precision, C)["error_bound_ratio"] <= 1
    C.data[0] = np.nextafter((1 + 2.0**-8) ** 2, 2)
    assert check("spectile", precision, C)["error_bound_ratio"] > 1


def test_a_product_of_two_factors_is_checked():
    A, B = sp.csr_array([[1.0, 2.0, 0.0]]), sp.csr_array([[1.0, 0.0], [3.0, 1.0], [0.0, 1.0]])
    check = checks.Check(A, 2, seed=1, B=B)
    C = spgemm(A, B, backend="cpu")
    assert check("x", "float64", C)["error_bound_ratio"] <= 1
    C.data[1] += 1e-12
    assert check("x", "float64", C)["error_bound_ratio"] > 1


@pytest.mark.parametrize("name", ["scipy_float64", "tasks_float64", "cusp"])
def test_entries_that_a_method_leaves_out_count_as_zeros(name):
    A = sp.csr_array(np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 3.0], [-1.0, 5.0, 1.0]]))
    check = checks.Check(A, cases.table1(A)["nnz_c"], seed=1)
    C = spgemm(A, A, backend="cpu")
    left_out = C.copy()
    left_out.eliminate_zeros()
    assert left_out.nnz < C.nnz
    assert check(name, "float64", left_out)["error_bound_ratio"] <= 1
    for strict in ("spectile_float64", "cusparse_float64"):
        assert check(strict, "float64", left_out)["error_pattern"] == 1
    wrong = sp.csr_array(A.shape)
    assert check(name, "float64", wrong)["error_bound_ratio"] > 1


def test_calls_are_checked_as_the_measuring_loop_hands_them_on(monkeypatch):
    """One call with a wait, and many with one: the loop gives a result and its seconds, the check sees the result."""
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream)))
    A = sp.csr_array(families.generate("cage6"))
    counts = cases.table1(A)
    check = checks.Check(A, counts["nnz_c"], seed=1)
    wrong = A @ A
    wrong.data[7] *= 2
    for product, status in ((lambda: spgemm(A, A, backend="cpu"), "ok"), (lambda: wrong, "failed")):
        both = called._both("spectile_float64", "float64", product, counts, check, lambda C: sp.csr_array(C))
        assert [method.name.rpartition("_float64_")[2] for method in both] == ["as_called", "throughput"]
        for method in both:
            assert check_method(method, "cpu")[0]["status"] == status, method.name
    assert 0 < both[1].run()[1] < 1


def test_what_large_products_keep_is_made_untimed_and_one_at_a_time():
    alive, most = set(), []

    class Large:
        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    def method(name):
        return Method(name, run=lambda: None, check=lambda result: {}, limits={})

    for one_at_a_time in (True, False):
        alive.clear()
        most.clear()
        kept = called.Kept(one_at_a_time)
        first, second = lambda: Large(), lambda: Large()
        known = kept.ready([method("numeric"), method("numeric_as_called")], first)
        known += kept.ready([method("reuse")], second)
        found = []
        own = dataclasses.replace(method("rival"), prepare=lambda found=found: found.append(len(alive)))
        others = [method("spgemm"), own, Skipped("tasks", "too large")]
        kept.absent([*others, *known])
        if not one_at_a_time:
            assert all(each.prepare is None for each in (*known, others[0]))
            assert kept(first) is kept(first) is not kept(second)
            continue
        known[0].prepare()
        before = kept(first)
        known[1].prepare()
        assert kept(first) is before
        del before
        known[2].prepare()
        assert len(alive) == 1 and max(most) == 1
        others[0].prepare()
        assert not alive
        known[2].prepare()
        own.prepare()
        assert found == [0], "a rival's own preparation comes after nothing is kept"
