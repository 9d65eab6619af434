"""A draw measured on the CPU: a right result has a row with its numbers, a wrong one has none."""

import dataclasses
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from spectile_study.bench.case import Method
from spectile_study.bench.sheets import SheetError
from spectile_study.bench.timing import Plan
from spectile_study.everyday import drawing, evd, frame, kpm, measure, outputs, problem, run, spamm, tsparse
from spectile_study.everyday.measure import Limits
from spectile_study.everyday.problem import RATES, Place
from spectile_study.everyday.settings import settings

ROOT = Path(__file__).parents[3]
HERE = Place("cpu", 2**30, RATES["cpu"])
SMALL = {
    "spamm": {"m": 96, "k": 80, "n": 64, "dtype": "float32", "kind": "exponential", "dimensions": 2, "decay": 2.0,
              "rtol": 1e-3},
    "tsparse": {"rows": 600, "entries": 4.0, "kind": "power law", "product": "A A", "dtype": "float64",
                "exponent": 1.5},
    "evd": {"form": "vectors", "dtype": "float64", "kind": "random", "n": 24, "with_vectors": True},
    "kpm": {"rows": 500, "entries": 5, "kind": "random", "dtype": "float64", "vectors": 3, "moments": 20},
}  # fmt: skip


def measured(monkeypatch, system, **more):
    params = SMALL[system] | more.pop("params", {})
    monkeypatch.setattr(measure.SYSTEMS[system], "draw", lambda strata: dict(params))
    options = {"plan": Plan(3, 1, 0.05)} | more
    return measure.measure(system, 0, 7, options.pop("place", HERE), options.pop("limits", Limits(60.0)), **options)


@pytest.mark.parametrize("system", SMALL)
def test_a_draw_of_each_system_has_a_checked_row(system, monkeypatch):
    row = measured(monkeypatch, system)
    assert (row["status"], row["check"]) == ("ok", "residuals" if system == "evd" else "exact"), row.get("reason")
    assert 0 <= row["error_found"] <= row["error_limit"] and row["error_asked"] <= row["error_limit"]
    assert len(row["samples_s"]) == 3 and row["seconds"] == np.median(row["samples_s"])
    assert row["rival"] and row["rival_s"] == min(
        value for name, value in row.items() if name in {f"s_{each}" for each in RIVALS[system]}
    )
    assert row["ratio_lo"] <= row["ratio"] <= row["ratio_hi"]
    assert row["device_share"] is None and row["method"]
    # Of a small Hamiltonian the call with two moments may take as long as the whole.
    assert system == "kpm" or (row["allowed_share"] is not None) == (system == "spamm")


RIVALS = {
    "spamm": ("dense",),
    "tsparse": ("scipy", "mkl", "graphblas"),
    "evd": ("scipy_evd", "scipy_evr", "scipy_ev", "scipy_evx"),
    "kpm": ("scipy", "mkl"),
}


@pytest.mark.parametrize("product", ["A Aᵀ", "Galerkin", "tall"])
@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_products_of_other_kinds_pass_their_check(product, dtype, monkeypatch):
    monkeypatch.setattr(tsparse, "WHOLE", 100)  # rows are drawn, and the whole acts on a vector
    row = measured(monkeypatch, "tsparse", params={"product": product, "dtype": dtype, "slim": 4.0})
    assert row["status"] == "ok" and row["rival"] in ("scipy", "mkl", "graphblas"), row.get("reason")


@pytest.mark.parametrize(
    "params",
    [
        {"form": "values", "with_vectors": False},
        {"form": "part", "part": "lowest", "wanted": 3},
        {"form": "part", "part": "middle", "wanted": 3, "with_vectors": False},
        {"form": "part", "part": "by value", "wanted": 6},
        {"form": "generalized"},
        {"form": "generalized", "with_vectors": False, "kind": "clustered"},
        {"form": "batch", "count": 3, "n": 9},
    ],
    ids=lambda params: "-".join(map(str, params.values())),
)
def test_eigenproblems_of_every_form_pass_their_check(params, monkeypatch):
    row = measured(monkeypatch, "evd", params=params)
    assert row["status"] == "ok" and row["rival"], row


def test_large_products_are_checked_by_probes(monkeypatch):
    monkeypatch.setitem(spamm.EXACT, "cpu", 0)
    row = measured(monkeypatch, "spamm")
    assert (row["status"], row["check"], row["error_limit"]) == ("ok", "probes", 2e-3)


def spoiled_spamm(result):
    result.c[3, 5] += 10
    return result


def spoiled_values(result):
    result.data[len(result.data) // 2] *= 1 + 1e-6
    return result


def one_entry_less(result):
    result.indptr[-1:] -= 1
    return type(result)((result.data[:-1], result.indices[:-1], result.indptr), shape=result.shape)


def unsorted(result):
    first, last = next(pair for pair in zip(result.indptr, result.indptr[1:], strict=False) if pair[1] - pair[0] > 1)
    for part in (result.data, result.indices):
        part[first:last] = part[first:last][::-1].copy()
    return type(result)((result.data, result.indices, result.indptr), shape=result.shape)


def with_nan(result):
    result.data[0] = np.nan
    return result


def turned_vector(result):
    vectors = result.eigenvectors.copy()
    vectors[:, 3] = vectors[:, 4]
    return result.eigenvalues, vectors


def other_moments(result):
    moments = result.moments.copy()
    moments[-1] += 1e-6 * moments[0]
    return SimpleNamespace(moments=moments, bounds=result.bounds)


WRONG = [
    ("spamm", spamm, "spamm", spoiled_spamm),
    ("tsparse", tsparse, "spgemm", spoiled_values),
    ("tsparse", tsparse, "spgemm", one_entry_less),
    ("tsparse", tsparse, "spgemm", unsorted),
    ("tsparse", tsparse, "spgemm", with_nan),
    ("evd", evd, "eigh", turned_vector),
    ("evd", evd, "eigh", lambda result: (result.eigenvalues + 1e-9, result.eigenvectors)),
    ("kpm", kpm, "kpm_dos", other_moments),
]


@pytest.mark.parametrize(("system", "module", "name", "spoil"), WRONG)
def test_a_wrong_result_has_no_time(system, module, name, spoil, monkeypatch):
    true = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: spoil(true(*args, **kwargs)))
    row = measured(monkeypatch, system)
    assert row["status"] == "failed" and "wrong result" in row["reason"]
    assert "seconds" not in row and "ratio" not in row


@pytest.mark.parametrize(("system", "module", "name", "spoil"), [WRONG[0], WRONG[1], WRONG[5], WRONG[7]])
def test_a_result_that_turns_wrong_later_has_no_time(system, module, name, spoil, monkeypatch):
    true, calls = getattr(module, name), []

    def later(*args, **kwargs):
        calls.append(1)
        result = true(*args, **kwargs)
        return spoil(result) if len(calls) > 2 else result

    monkeypatch.setattr(module, name, later)
    row = measured(monkeypatch, system)
    assert row["status"] == "failed" and row["reason"].startswith("after the timed calls"), row
    assert "seconds" not in row


def test_what_fails_while_it_is_timed_is_told(monkeypatch):
    for name, status in (("spectile", "failed"), ("dense", "ok")):
        true, begun = measure.interleave, []

        def failing(methods, plan, announce, name=name, true=true, begun=begun):
            if not begun:
                begun.append(announce(name))
                raise RuntimeError("no more")
            return true(methods, plan, announce)

        with monkeypatch.context() as patch:
            patch.setattr(measure, "interleave", failing)
            row = measured(monkeypatch, "spamm")
        assert row["status"] == status and "RuntimeError: no more" in (row.get("reason") or row["missing"])


def test_a_rival_that_is_wrong_is_none(monkeypatch):
    monkeypatch.setattr(spamm, "_dense", lambda a, b, place: lambda: np.zeros((a.shape[0], b.shape[1])))
    row = measured(monkeypatch, "spamm")
    assert row["status"] == "ok" and "rival" not in row and "ratio" not in row
    assert "dense: wrong result" in row["missing"]


@pytest.mark.parametrize("system", SMALL)
def test_what_is_beyond_the_limits_says_so_and_is_not_made(system, monkeypatch):
    monkeypatch.setattr(measure.SYSTEMS[system], "build", lambda *args: pytest.fail("made"))
    tight = dataclasses.replace(HERE, memory_bytes=100)
    for options in ({"place": tight}, {"limits": Limits(1e-12)}):
        row = measured(monkeypatch, system, **options)
        assert row["status"] == "skipped" and "more than the limit" in row["reason"]


def test_memory_that_a_result_may_be_given_is_poisoned():
    asked = []

    class Library:
        uint8 = np.uint8

        @staticmethod
        def empty(size, dtype):
            asked.append(np.zeros(size, dtype))
            return asked[-1]

    measure.poisoned(64, SimpleNamespace(xp=Library))
    assert all(np.isnan(block.view(np.float32)).all() for block in asked) and asked


def test_of_spans_that_overlap_each_moment_counts_once():
    assert measure.busy([(3.0, 4.0), (0.0, 2.0), (1.0, 1.5)]) == 3.0


ROW = {
    "system": "evd", "seed": 7, "machine": "box", "device": "a CPU", "draw": "one", "call": "eigh(a)", "status": "ok",
    "check": "residuals", "error_asked": 1.0, "error_limit": 1.0, "error_found": 0.1, "seconds": 2e-3,
    "samples_s": [1e-3, 2e-3, 3e-3], "commit": "c", "dirty": None, "p_n": 8, "run_host": "h",
}  # fmt: skip


def rows(count=3):
    return [ROW | {"index": index, "ratio": 0.5 + index} for index in range(count)]


def test_a_frame_is_read_as_it_was_written(tmp_path):
    made = frame.made([*rows(), {**rows(1)[0], "index": 9, "status": "skipped", "reason": "large", "seconds": None}])
    frame.write(made, tmp_path / "everyday.parquet")
    found = frame.read(tmp_path / "everyday.parquet")
    assert found["draw"].tolist() == made["draw"].tolist() and found["ratio"].tolist() == made["ratio"].tolist()
    assert found["samples_s"].tolist()[0] == [1e-3, 2e-3, 3e-3] and found["status"].tolist() == ["ok"] * 3 + ["skipped"]
    frame.write(found, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "everyday.parquet").read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"error_found": 2.0}, "above"),
        ({"error_found": None}, "above"),
        ({"error_found": float("nan")}, "above"),
        ({"seconds": 1e-3}, "not the median"),
        ({"samples_s": None}, "no samples"),
        ({"status": "failed", "reason": "wrong"}, "has a time"),
        ({"status": "failed", "seconds": None}, "no reason"),
        ({"machine": "other"}, "several machines"),
        ({"seed": 8}, "several machines or seeds of a system"),
        ({"index": 0}, "twice"),
        ({"unheard": 1}, "unheard"),
        ({"rival_s": 1.0, "rival_samples_s": [2.0, 2.0]}, "rival_s"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes, said, tmp_path):
    listed = rows()
    listed[1] = listed[1] | changes
    with pytest.raises(frame.FrameError, match=said):
        frame.made(listed)


SETTINGS = run.Settings(("evd",), 1, 5.0, 1e-3, 0.1, 1, 2, 1, 0.02, 11)


def test_a_recording_writes_its_frame_and_goes_on_with_it(tmp_path):
    out, said = tmp_path / "everyday.parquet", []
    run.record("box", "cpu", SETTINGS, out, said.append)
    first = frame.read(out)
    assert (first["status"] == "ok").sum() == 1 and set(first["seed"]) == {11} and set(first["machine"]) == {"box"}
    made = first[first["status"] == "ok"]
    assert made["run_libraries"].str.contains("scipy=").all() and made["run_measured_at"].notna().all()
    assert len(said) == len(first)
    run.record("box", "cpu", SETTINGS, out, said.append)
    assert len(said) == len(first)  # there are enough
    with pytest.raises(ValueError, match="name another file"):
        run.record("box", "cpu", dataclasses.replace(SETTINGS, seed=12), out)


def test_gpus_of_a_host_share_the_draws_of_a_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5,7")
    asked, meeting = {}, threading.Barrier(3)

    def measure(self, system, index, seed):
        assert asked.setdefault((system, index), self.gpu) == self.gpu and seed == 11
        if index < 3:
            meeting.wait(20)  # three are at work at the same time
        return ROW | {"system": system, "index": index, "seed": seed, "status": "skipped" if index == 1 else "ok"} | (
            {"seconds": None, "reason": "too large"} if index == 1 else {})  # fmt: skip

    monkeypatch.setattr(run.Worker, "measure", measure)
    out = tmp_path / "everyday.parquet"
    settings = dataclasses.replace(SETTINGS, systems=("evd", "kpm"), draws=5)
    run.record("box", "cuda", settings, out, lambda line: None)
    made = frame.read(out)
    assert set(asked.values()) == {"2", "GPU-5", "7"}
    for system in settings.systems:
        assert list(made[made["system"] == system]["index"]) == list(range(6))  # 5 measured, one skipped
    run.record("box", "cuda", dataclasses.replace(settings, draws=7), out, lambda line: None)
    assert list(frame.read(out).groupby("system")["index"].max()) == [7, 7]


def test_an_error_of_one_gpu_ends_the_recording_and_keeps_what_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    def measure(self, system, index, seed):
        if index == 1:
            time.sleep(0.2)
            raise OSError("no memory to start it")
        return ROW | {"system": system, "index": index, "seed": seed}

    monkeypatch.setattr(run.Worker, "measure", measure)
    out = tmp_path / "everyday.parquet"
    with pytest.raises(OSError, match="no memory"):
        run.record("box", "cuda", dataclasses.replace(SETTINGS, draws=10**6), out, lambda line: None)
    assert 0 in set(frame.read(out)["index"]) and 1 not in set(frame.read(out)["index"])


class Answers(run.Worker):
    """A worker whose process answers as the test says."""

    def __init__(self, answers):
        super().__init__("cpu", SETTINGS)
        self.answers, self.asked = list(answers), []

    def _ask(self, *order):
        self.asked.append(dict(order[3]))
        return self.answers.pop(0)


def test_a_rival_that_ends_the_process_is_left_out_and_ours_fails_by_it():
    worker = Answers([("scipy_evx", "ran longer than 3 s"), ("spectile", {"status": "ok"})])
    assert worker.measure("evd", 0, 7) == {"status": "ok"}
    assert worker.asked == [{}, {"scipy_evx": "ran longer than 3 s"}]
    row = Answers([("spectile", "ended its process with SIGSEGV")]).measure("evd", 0, 7)
    assert row["status"] == "failed" and row["reason"] == "ours ended its process with SIGSEGV" and row["draw"]
    row = Answers([("", "ran longer than 3 s")]).measure("evd", 0, 7)
    assert row["reason"] == "making the problem ran longer than 3 s"


def test_what_was_left_out_is_told(monkeypatch):
    row = measured(monkeypatch, "evd", left_out={"scipy_evd": "ran longer than 3 s"})
    assert row["status"] == "ok" and "scipy_evd: ran longer than 3 s" in row["missing"] and "s_scipy_evd" not in row


def test_libraries_that_are_not_installed_are_skipped_with_their_name(monkeypatch):
    monkeypatch.setattr(tsparse, "version", lambda name: None)
    row = measured(monkeypatch, "tsparse")
    assert row["missing"] == "mkl: sparse-dot-mkl is not installed; graphblas: python-graphblas is not installed"


def test_a_limit_of_probes_is_told_beside_the_error_that_was_asked():
    made = problem.method("spectile", lambda: None, lambda result: {"error": 0.0}, 2.0)
    assert isinstance(made, Method) and made.limits == {"error": 2.0}


def test_a_frame_is_drawn_with_its_worst_draws_and_what_is_left_out(tmp_path):
    listed = [
        ROW | {"system": system, "index": index, "ratio": 0.5 + index, "ratio_lo": 0.4, "ratio_hi": 90.0, "rival": "r",
               "rival_s": 1e-3, "rival_samples_s": [1e-3], "p_kind": "k", "p_form": "f", "draw": f"{system} {index}",
               "p_dtype": "float32", **SMALL_WORK[system]}
        for system in SMALL_WORK
        for index in range(21)
    ]  # fmt: skip
    listed.append(
        ROW | {"index": 99, "status": "failed", "reason": "wrong result", "seconds": None, "draw": "the last"}
    )
    frame.write(frame.made(listed), tmp_path / "everyday.parquet")
    drawing.draw(tmp_path / "everyday.parquet", tmp_path)
    assert all((tmp_path / path).stat().st_size for path in outputs.outputs())
    table = pandas.read_csv(tmp_path / "everyday/distribution.tsv", sep="\t").set_index("call")
    assert table.loc["eigh", ["draws", "5 %", "median", "95 %", "least", "draws below 1"]].tolist() == [
        21, 1.5, 10.5, 19.5, 0.5, 1
    ]  # fmt: skip
    worst = pandas.read_csv(tmp_path / "everyday/worst.tsv", sep="\t")
    assert worst["draw"].tolist()[-10:] == [f"kpm {index}" for index in range(10)] and len(worst) == 40
    predicted = pandas.read_csv(tmp_path / "everyday/predicted.tsv", sep="\t")
    assert set(predicted["system"]) == {"spamm", "tsparse", "kpm"} and (predicted["predicted s"] > 0).all()
    assert "last (wrong result)" in (tmp_path / "everyday/distribution.html").read_text()


def test_draws_of_several_commits_are_one_distribution_which_names_them():
    listed = [
        ROW | {"system": "kpm", "index": index, "ratio": 0.5 + index, "ratio_lo": 0.4, "ratio_hi": 90.0, "rival": "r",
               "p_kind": "k", "p_dtype": "float32", "commit": "ab"[index % 2] * 40, **SMALL_WORK["kpm"]}
        for index in range(5)
    ]  # fmt: skip
    made = frame.made(listed)
    left = drawing.figure(made, "kpm").axes[0, 0]
    assert max(len(line.get_xdata()) for line in left.lines) == 5
    assert "By commits: 3 draws at aaaaaaa, 2 draws at bbbbbbb." in drawing.sentences(made)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"device_share": 0.2, "s_setup": 0.9}, "the host, 80% of the call"),
        ({"device_share": 0.8, "s_setup": 0.9}, "the preparation, 90% of the call"),
        ({"device_share": 0.8}, "the kernels, 80% of the call"),
        ({"device_share": None, "s_setup": 0.9}, "the preparation, 90% of the call"),
        ({"device_share": None, "s_setup": 0.1}, "the recurrence, 90% of the call"),
        ({"device_share": None, "allowed_share": 0.7}, "all but the product, 30% of the call"),
        ({"device_share": None}, ""),
    ],
)
def test_a_row_tells_what_its_call_is_bound_by(columns, told):
    empty = {"system": "spamm", "seconds": 1.0, "s_setup": None, "allowed_share": None}
    frame = pandas.DataFrame([empty | columns]).astype(
        {"device_share": float, "s_setup": float, "allowed_share": float}
    )
    assert drawing.bound_by(frame.iloc[0]) == told


SMALL_WORK = {
    "spamm": {"p_m": 900, "p_k": 900, "p_n": 900, "p_rtol": 1e-4, "w_share": 0.1},
    "tsparse": {"w_rows": 1e4, "w_factors": 2e5, "w_products": 1e6, "w_nnz": 9e5},
    "evd": {"p_n": 300},
    "kpm": {"w_rows": 1e4, "w_nnz": 9e4, "w_longest": 9.0, "w_slots": 9e4, "p_vectors": 4, "p_moments": 64},
}


def test_settings_are_those_of_the_file_with_changes_and_checked():
    assert settings(ROOT).seed is None and settings(ROOT).draws >= 200
    assert settings(ROOT, {"minutes": 2, "seed": 5}).seeded() == 5
    assert settings(ROOT).seeded() >= 20250101  # a date
    assert settings(ROOT, {"minutes": "2.5"}).minutes == 2.5  # as Snakemake's command line has it
    for changes in ({"minute": 2}, {"systems": ["spgemm"]}, {"draws": 0}):
        with pytest.raises(SheetError, match="everyday draws"):
            settings(ROOT, changes)
