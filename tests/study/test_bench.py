"""Statistics, sheets, records, claims, digests: the pieces that every number passes through."""

import gc
import hashlib
import itertools
import json
import math
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from spectile.core.atomic_file import atomic_write
from spectile_study.__main__ import main
from spectile_study.bench import archive, provenance, record, sheets, sources, stats
from spectile_study.bench.case import InputAbsent, Method
from spectile_study.bench.compare import compare, report
from spectile_study.bench.measure import Job, measure_case
from spectile_study.bench.measure.checks import check_method
from spectile_study.bench.timing import SHORTEST_SAMPLE_S, Plan, interleave
from spectile_study.inputs.suitesparse import MissingMatrix

ROOT = Path(__file__).parents[2]
CLAIMS = str(ROOT / "config/claims.tsv")
positive = st.floats(1e-6, 1e3)


@given(st.lists(positive, min_size=1, max_size=40))
def test_interval_holds_the_median(samples):
    median, lo, hi = stats.median_interval(samples)
    assert min(samples) <= lo <= median <= hi <= max(samples)
    assert median == np.median(samples)


def test_interval_covers_as_promised():
    rng = np.random.default_rng(0)
    intervals = [stats.median_interval(rng.exponential(size=15)) for _ in range(2000)]
    covered = np.mean([lo <= math.log(2) <= hi for _, lo, hi in intervals])
    assert covered >= 0.94


def test_interval_is_made_of_order_statistics():
    assert stats.median_interval(range(1, 16)) == (8, 4, 12)  # P(4 <= Binomial(15, 1/2) <= 11) = 0.965
    assert stats.median_interval(range(1, 6)) == (3, 1, 5)


def test_interval_needs_finite_samples():
    with pytest.raises(ValueError, match="at least one sample"):
        stats.median_interval([])
    with pytest.raises(ValueError, match="finite"):
        stats.median_interval([1.0, float("nan")])


@pytest.mark.parametrize(
    ("lo", "hi", "word"),
    [(1.1, 1.3, "faster"), (0.5, 0.9, "slower"), (0.99, 1.01, "same"), (0.9, 1.2, "unclear"), (0.97, 1.1, "unclear")],
)
def test_verdicts(lo, hi, word):
    assert stats.verdict(lo, hi) == word


def test_paired_ratio_cancels_drift():
    drift = np.linspace(1, 2, 15)
    ratio = stats.paired_ratio(3 * drift, drift)
    assert ratio.median == pytest.approx(3) and ratio.verdict == "faster"
    assert ratio.hi - ratio.lo < 1e-12


def test_interleave_rotates_and_stops_slow_methods():
    calls = []
    methods = [
        Method(name, lambda name=name: calls.append(name), lambda result: {}, {}, prepare=lambda: None)
        for name in "abc"
    ]
    samples = interleave(methods, Plan(rounds=4, warmup=1, budget_s=10))
    assert {name: len(times) for name, times in samples.items()} == {"a": 4, "b": 4, "c": 4}
    assert calls[3:] == list("abcbcacababc")
    external = Method("slow", lambda: (None, 30.0), lambda result: {}, {}, clock="external")
    assert interleave([external], Plan(rounds=9, warmup=1, budget_s=10)) == {"slow": [30.0, 30.0]}


def test_a_method_waits_until_the_threads_of_the_one_before_rest():
    workers, alive, data = [], [], bytes(10_000_000)

    def leave_a_thread_at_work():
        workers.append(threading.Thread(target=lambda: hashlib.sha256(data)))
        workers[-1].start()

    methods = [
        Method("works", leave_a_thread_at_work, lambda result: {}, {}, prepare=lambda: None),
        Method(
            "next", lambda: alive.append(any(each.is_alive() for each in workers)), lambda result: {}, {},
            prepare=lambda: None
        ),
    ]  # fmt: skip
    interleave(methods, Plan(rounds=3, warmup=1, budget_s=10))
    assert len(workers) == 4 and alive == [False] * 4


def test_ratio_of_separate_runs_is_a_speed():
    ratio = stats.unpaired_ratio([3.0, 3.3, 3.6], [1.0, 1.1, 1.2])
    assert ratio.median == pytest.approx(3) and ratio.verdict == "faster"
    assert (ratio.lo, ratio.hi) == pytest.approx((2.5, 3.6))


def test_a_method_that_stopped_early_is_paired_as_far_as_it_goes():
    assert stats.paired_ratio([2.0, 4.0, 100.0], [1.0, 2.0])[:3] == (2.0, 2.0, 2.0)


def test_rounds_end_with_the_budget_but_not_before_three():
    method = Method("slow", lambda: time.sleep(0.01), lambda result: {}, {}, prepare=lambda: None)
    for budget, rounds in ((1e-9, {3}), (0.1, range(3, 12))):
        (samples,) = interleave([method], Plan(rounds=50, warmup=0, budget_s=budget)).values()
        assert len(samples) in rounds and min(samples) >= 0.01


def test_garbage_is_collected_again_after_timing():
    failing = Method("fails", lambda: 1 / 0, lambda result: {}, {}, prepare=lambda: None)
    with pytest.raises(ZeroDivisionError):
        interleave([failing], Plan(rounds=3, warmup=0, budget_s=1), checked={"fails": 5.0})
    assert gc.isenabled()


def test_a_sample_of_a_short_call_is_a_mean_over_many():
    calls = []

    def run():
        calls.append(time.perf_counter())
        while time.perf_counter() < calls[-1] + 2e-5:
            pass

    (samples,) = interleave(
        [Method("short", run, lambda result: {}, {})], Plan(rounds=4, warmup=1, budget_s=1)
    ).values()
    # The calls of a sample take two milliseconds together, so that less is no sum of them; a busy machine adds to each.
    assert len(calls) > 100 and 2e-5 <= min(samples) < SHORTEST_SAMPLE_S


def test_a_sample_holds_what_its_call_left_to_the_device(monkeypatch):
    """A call that returns before the device is done is neither fast, nor is its rest the next one's time."""
    pending = []

    def synchronize():
        time.sleep(sum(pending))
        pending.clear()

    runtime = SimpleNamespace(deviceSynchronize=synchronize)
    cuda = SimpleNamespace(is_available=lambda: True, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    enqueues = Method("enqueues", lambda: pending.append(0.02), lambda result: {}, {}, prepare=lambda: None)
    waits = Method("waits", synchronize, lambda result: {}, {}, prepare=lambda: None)
    samples = interleave([enqueues, waits], Plan(rounds=3, warmup=1, budget_s=1))
    assert min(samples["enqueues"]) >= 0.02 > max(samples["waits"])


@pytest.mark.parametrize(("warmup", "seconds", "calls"), [(0, 5.0, 3), (0, 0.5, 4), (1, 5.0, 4)])
def test_long_check_stands_for_the_first_call(warmup, seconds, calls):
    called = []
    method = Method("long", lambda: (called.append(1), 2.0), lambda result: {}, {}, clock="external")
    interleave([method], Plan(rounds=3, warmup=warmup, budget_s=10), checked={"long": seconds})
    assert len(called) == calls


def test_a_method_that_is_called_once_is_timed_by_its_check():
    called = []
    methods = [
        Method(name, lambda name=name: called.append(name), lambda result: {}, {}, once=name == "long")
        for name in ("short", "long")
    ]
    samples = interleave(methods, Plan(rounds=3, warmup=1, budget_s=10), checked={"short": 1.0, "long": 25.0})
    assert samples["long"] == [25.0] and len(samples["short"]) == 3 and set(called) == {"short"}


SCHEMA = """
type: object
additionalProperties: false
required: [case, run]
properties:
  case: {type: string, pattern: "^[a-z0-9_]+$", description: name of the case}
  run: {type: string, description: comma list}
  n: {type: integer, minimum: 1, description: "number of rows, at least 1"}
  tau: {type: number, description: threshold}
  gpus: {type: integer, default: 0, description: GPUs}
  once: {type: boolean, description: whether it runs once}
"""


def sheet(tmp_path, text):
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "sheet.tsv").write_text(text)
    return sheets.read_sheet(tmp_path / "sheet.tsv", tmp_path / "schema.yaml", "quick")


def test_sheet_is_typed(tmp_path):
    lines = (
        "case\trun\tn\ttau\tonce",
        "a\tquick\t3\t0.5\tfalse",
        "b\tpaper\t4\t1\t",
        "c\tquick,paper\t\t\ttrue",
        "d\tquicker\t\t\t",
        "",
    )
    rows = sheet(tmp_path, "\n".join(lines))
    assert rows["a"] == {"case": "a", "run": "quick", "n": 3, "tau": 0.5, "gpus": 0, "once": False}
    assert list(rows) == ["a", "c"] and rows["c"]["n"] is None and rows["c"]["once"] is True


def test_row_digest_tells_rows_apart_and_not_the_order_of_columns():
    row = {"case": "a", "n": 3}
    assert sheets.row_digest(row) == sheets.row_digest({"n": 3, "case": "a"}) != sheets.row_digest(row | {"n": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("case\trun\tn\na\tquick\t1\nb\tquick\tthree\n", "line 3, column 'n': 'three' is not a number; number of rows"),
        ("case\trun\tn\na\tquick\t0\n", "it is: number of rows, at least 1"),
        ("case\trun\tonce\na\tquick\tyes\n", "'yes' is neither true nor false"),
        ("case\trun\tm\na\tquick\t3\n", "unknown key 'm'"),
        ("case\trun\tn\na\tquick\t3\nb\tquick\t3\nb\tquick\t4\n", "'b' stands twice"),
        ("case\trun\tn\na\tquick\n", "more or fewer cells"),
        ("run\tn\nquick\t3\n", "lacks 'case'"),
    ],
)
def test_bad_sheets_are_worded(tmp_path, text, message):
    with pytest.raises(sheets.SheetError, match=message):
        sheet(tmp_path, text)


def example(**changes):
    method = {"method": "spectile", "status": "ok", "reason": None, "clock": "wall", "samples_s": [1.0, 2.0, 3.0]}
    method |= {"errors": {"error_fro_rel": 1e-16}, "limits": {"error_fro_rel": 1e-12}}
    origin = {"commit": "0" * 40, "dirty": False, "digest": "0" * 64, "seed": 1, "threads": 1, "python": "3.12"}
    origin |= {"cpu": "any", "libraries": {}}
    stored = {"paper": "spamm", "case": "a", "machine": "test", "device": "any", "status": "ok", "reason": None}
    stored |= {"params": {"n": 4}, "values": {"ratio": np.float64(0.5)}, "inputs": {}, "provenance": origin}
    return stored | {"methods": [method], "measured_at": "2026-01-01T00:00:00+00:00"} | changes


def test_record_round_trip(tmp_path):
    record.write(example(), tmp_path / "deep/a.json")
    table = record.frame([record.read(tmp_path / "deep/a.json")])
    row = table.iloc[0]
    assert (row["time_s"], row["p_n"], row["v_ratio"]) == (2.0, 4, 0.5)
    record.write_frame(table, tmp_path / "f.parquet")
    assert record.read_frame(tmp_path / "f.parquet")["record"].iloc[0] == row["record"]


def test_a_record_is_known_by_its_content(tmp_path):
    made = example()
    assert (
        record.record_id(made) == record.record_id(dict(reversed(made.items()))) != record.record_id(example(case="b"))
    )
    record.write(made, tmp_path / "records/kpm/a.json")
    (tmp_path / "machine.json").write_text("{}")
    assert record.files(tmp_path) == [tmp_path / "records/kpm/a.json"]


def test_numbers_that_json_lacks_become_text(tmp_path):
    record.write(example(values={"curve": [1.0, float("nan")], "largest": np.float64("inf")}), tmp_path / "a.json")
    assert record.read(tmp_path / "a.json")["values"] == {"curve": [1.0, "nan"], "largest": "inf"}


def test_frames_keep_types_and_write_mixed_ones_as_text(tmp_path):
    kinds = {
        "mixed": (1, "one"),
        "number": (1, 2.5),
        "text": ("a", "b"),
        "curve": ([1.0], [2.0, 3.0]),
        "some": (1.5, None),
    }
    made = [example(case=str(n), values={name: pair[n] for name, pair in kinds.items()}) for n in range(2)]
    record.write_frame(record.frame(made), tmp_path / "f.parquet")
    found = record.read_frame(tmp_path / "f.parquet")
    assert list(found["v_mixed"]) == ["1", "one"] and list(found["v_text"]) == ["a", "b"]
    assert list(found["v_number"]) == [1, 2.5] and found["v_number"].dtype == float
    assert [list(curve) for curve in found["v_curve"]] == [[1.0], [2.0, 3.0]]
    assert found["v_some"].dtype == float and found["v_some"].isna().tolist() == [False, True]


def test_rates_are_in_tflops():
    assert list(stats.rates(pandas.DataFrame({"flops": [6e12, 1e12], "time_s": [2.0, 4.0]}))) == [3.0, 0.25]


def test_a_failed_method_has_no_time():
    method = example()["methods"][0] | {"status": "failed", "reason": "wrong result"}
    table = record.frame([example(methods=[method, *example()["methods"]])])
    assert list(table["time_s"].isna()) == [True, False]


def test_only_methods_that_passed_have_a_speedup():
    base, fast = example()["methods"][0], example()["methods"][0] | {"method": "fast", "samples_s": [0.5, 1.0, 1.5]}
    for status, found in (("ok", [2.0]), ("failed", [])):
        table = record.frame([example(methods=[base, fast | {"status": status, "reason": "wrong result"}])])
        assert list(stats.speedups(table, "fast", "spectile")["speedup"]) == found
        assert len(stats.speedups(table, "spectile", "fast")) == len(found)


def test_files_are_whole_or_as_they_were(tmp_path):
    path = tmp_path / "deep/a"
    with atomic_write(path) as partial:
        partial.write_text("first")
    with pytest.raises(KeyError), atomic_write(path) as partial:
        partial.write_text("half")
        raise KeyError
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


def test_compare_gives_a_verdict_a_case(tmp_path):
    fast = example()["methods"][0] | {"samples_s": [0.1, 0.2, 0.3]}
    broken = example()["methods"][0] | {"status": "failed", "reason": "wrong result"}
    runs = {"a": [example(), example(case="b"), example(case="c")]}
    runs["b"] = [example(methods=[fast]), example(case="b", methods=[broken]), example(case="d")]
    for name, records in runs.items():
        for made in records:
            record.write(made, tmp_path / name / f"{made['case']}.json")
    table = compare(tmp_path / "a", tmp_path / "b").set_index("case")
    assert list(table["verdict"]) == ["faster", "failed in B", "only in A", "only in B"]
    assert table.loc["a", "speedup"] == pytest.approx(10)
    lines = report(table.reset_index()).splitlines()
    assert len(lines) == 4 and "10.000" in lines[1] and "failed in B" in lines[2]
    assert lines[-1].startswith("speed of B relative to A: 1 ") and "1 only in A" in lines[-1]
    assert report(table.reset_index().iloc[2:]).startswith("the runs share no measured case")
    with pytest.raises(FileNotFoundError, match="neither records nor frames"):
        compare(tmp_path / "a", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gather", "--records", "nothing", "--out", "f.parquet"], "nothing holds no record"),
        (["gather", "--records", ".", "--out", "f.parquet"], ". holds no record"),
        (["compare", "nothing", "nothing"], "neither records nor frames"),
        (["compare", str(ROOT / "config/kpm.tsv"), "nothing"], "kpm.tsv is neither a frame nor a record: name"),
        (["compare", str(ROOT / "results/recorded/h200/none.zip"), "nothing"], "neither records nor frames"),
        (
            ["draw", "--paper", "kpm", "--from", "no.parquet", "--results", ".", "--study", str(ROOT)],
            "there is no frame no.parquet: name",
        ),
        (
            ["claims", "--frames", "no.parquet", "--out", "c.html", "--claims", CLAIMS],
            "there is no frame no.parquet: name",
        ),
        (["claims", "--out", "c.html"], "there is no table of claims config/claims.tsv: work in a checkout"),
        (["gather", "--records", "nothing", "--out", "f.parquet", "--onto", "no.parquet"], "nothing holds no record"),
        (["unpack", "--recorded", "nothing"], "nothing holds no zip of records"),
        (["measure", "--paper", "kpm", "--machine", "m", "--element", "fig99"], "no case for this choice"),
        (["measure", "--paper", "kpm", "--machine", "m", "--case", "none"], "has no case 'none'"),
    ],
)
def test_commands_that_find_nothing_say_so(tmp_path, monkeypatch, capsys, arguments, message):
    root = Path(__file__).parents[2]
    for part in ("config", "workflow"):
        (tmp_path / part).symlink_to(root / part)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if arguments[0] != "measure" else tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    for case in map(str, range(1000)):
        record.write(example(case=case), tmp_path / "a" / f"{case}.json")
    command = f"{shlex.quote(sys.executable)} -m spectile_study compare {tmp_path}/a {tmp_path}/a | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.startswith("paper")


def test_gather_keeps_what_is_not_measured_anew(tmp_path):
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    record.write_frame(record.frame([example(), example(case="b")]), old)
    record.write(example(measured_at="2026-02-02T00:00:00+00:00"), tmp_path / "records/a.json")
    assert main(["gather", "--records", f"{tmp_path}/records", "--onto", str(old), "--out", str(new)]) == 0
    before, after = (record.read_frame(path).set_index("case")["record"] for path in (old, new))
    assert list(after.index) == ["a", "b"]
    assert after["a"] != before["a"] and after["b"] == before["b"]


METHOD = Method("ours", lambda: 1.0, lambda result: {"error_fro_rel": 0.0}, {"error_fro_rel": 1e-12})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"run": lambda: (1.0, 0.5), "check": lambda result: {"error_fro_rel": result - 1}, "clock": "external"}, None),
        ({"check": lambda result: {"error_fro_rel": 1e-3}}, "error_fro_rel = 0.001 (allowed 1e-12)"),
        ({"check": lambda result: {"error_fro_rel": math.nan}}, "error_fro_rel is not a number"),
        ({"check": lambda result: {"error_max": 0.0}}, "no error_fro_rel was computed"),
        ({"check": lambda result: {}, "limits": {}}, "no error was computed"),
        ({"prepare": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"values": lambda result: {"sum": result.sum()}}, "AttributeError"),
    ],
)
def test_a_method_is_checked_before_it_is_timed(changes, reason):
    row, _ = check_method(replace(METHOD, **changes), "cpu")
    assert row["status"] == ("ok" if reason is None else "failed")
    assert row["reason"] is None if reason is None else reason in row["reason"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(MissingMatrix("absent"), "skipped"), (FileNotFoundError("no file"), "skipped"), (ValueError("n = 0"), "failed")],
)
def test_a_case_that_cannot_be_built_is_a_result(tmp_path, monkeypatch, error, status):
    def build(row, context):
        raise error

    monkeypatch.setitem(sys.modules, "spectile_study.cases.kpm.build", SimpleNamespace(build=build))
    job = Job("kpm", {"case": "a"}, "test", "cpu", "", str(tmp_path), 1, 1, 3, 0, 1.0)
    made = measure_case(job, {}, lambda name, limit: None)
    assert made["status"] == status and str(error) in made["reason"]
    record.check(made, "the record")


def test_a_record_can_be_written_after_a_matrixmarket_file_was_read(tmp_path):
    """SciPy registers its reader with threadpoolctl, whose pools a record lists."""
    path = tmp_path / "one.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n")
    assert scipy.io.mmread(path).sum() == 2
    facts = provenance.provenance({"digest": "0" * 64}, "cpu", 1, 1, {})
    assert json.loads(json.dumps(facts))["blas"] == facts["blas"] != []


def test_what_needs_no_input_is_told_of_a_case_without_it(tmp_path, monkeypatch):
    told = replace(METHOD, name="index", run=lambda: 5, check=lambda found: {"error_max": float(found - 5)})
    told = replace(told, limits={"error_max": 0.0}, prepare=None, clock="none", values=lambda found: {"nnz": found})

    def build(row, context):
        raise InputAbsent("the matrix is absent", [told])

    monkeypatch.setitem(sys.modules, "spectile_study.cases.kpm.build", SimpleNamespace(build=build))
    job = Job("kpm", {"case": "a"}, "test", "cpu", "", str(tmp_path), 1, 1, 3, 0, 1.0)
    made = measure_case(job, {}, lambda name, limit: None)
    record.check(made, "the record")
    rows = record.frame([made]).set_index("method")
    assert dict(rows["status"]) == {"index": "ok", "-": "skipped"}
    assert rows["v_nnz"]["index"] == 5 and rows["reason"]["-"] == "the matrix is absent"


def test_every_field_of_a_record_is_explained():
    def unexplained(schema, place):
        for key, item in schema.get("properties", {}).items():
            yield from [] if "description" in item or "properties" in item or "items" in item else [f"{place}.{key}"]
            yield from unexplained(item, f"{place}.{key}")
            yield from unexplained(item.get("items", {}), f"{place}.{key}")

    assert list(unexplained(record._validator().schema, "record")) == []


@pytest.mark.parametrize("missing", ["provenance", "methods", "device"])
def test_no_provenance_no_record(tmp_path, missing):
    broken = example()
    del broken[missing]
    with pytest.raises(record.RecordError, match="remove it and measure the case again"):
        record.write(broken, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_failed_method_needs_a_reason(tmp_path):
    with pytest.raises(record.RecordError):
        record.write(example(methods=[{"method": "spectile", "status": "failed"}]), tmp_path / "a.json")


def test_a_copy_without_a_repository_is_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SOURCES", tmp_path)
    for named, commit in (("f" * 40, "f" * 40), ("main", "unknown")):
        monkeypatch.setenv("SPECTILE_COMMIT", named)
        assert provenance.commit() == (commit, None)


def test_digest_array_depends_on_dtype_shape_and_content():
    a = np.arange(6.0)
    digests = {provenance.digest_array(x) for x in (a, a.reshape(2, 3), a.astype(np.float32), a + 1, a.reshape(3, 2).T)}
    assert len(digests) == 5
    assert provenance.digest_array(a) == provenance.digest_array(np.arange(12.0)[::2] / 2)


def test_comparing_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nowhere\.parquet, neither records nor frames: name"):
        compare(tmp_path / "nowhere.parquet", tmp_path)
    recorded = ROOT / "results/recorded/epyc2"
    with pytest.raises(ValueError, match=r"holds evd and .* holds kpm: name two runs of the same paper"):
        compare(recorded / "evd.parquet", recorded / "kpm.parquet")


def test_runs_are_compared_in_every_form_that_is_kept(tmp_path):
    records = [example(), example(case="b")]
    for made in records:
        record.write(made, tmp_path / "folder" / f"{made['case']}.json")
    archive.pack(records, tmp_path / "run.zip")
    record.write_frame(record.frame(records), tmp_path / "run.parquet")
    forms = [tmp_path / name for name in ("folder", "run.zip", "run.parquet")]
    for one, other in itertools.combinations(forms, 2):
        table = compare(one, other)
        assert list(table["case"]) == ["a", "b"] and set(table["speedup"]) == {1.0}


def test_a_damaged_frame_is_named(tmp_path):
    record.write_frame(record.frame([example()]), tmp_path / "run.parquet")
    whole = (tmp_path / "run.parquet").read_bytes()
    (tmp_path / "run.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(record.RecordError, match=r"run\.parquet is no whole frame"):
        archive.read_frame(tmp_path / "run.parquet")


def test_one_frame_holds_one_paper_of_one_machine(tmp_path, capsys):
    others = {"paper": example(paper="evd"), "machine": example(machine="other")}
    for column, other in others.items():
        archive.pack([example(case="b")], tmp_path / "one.zip")
        archive.pack([other], tmp_path / "other.zip")
        arguments = ["--records", str(tmp_path / "one.zip"), str(tmp_path / "other.zip")]
        assert main(["gather", *arguments, "--out", str(tmp_path / "f.parquet")]) == 2
        assert f"records of several {column}s" in capsys.readouterr().err
        assert not (tmp_path / "f.parquet").exists()


def test_frames_say_what_made_each_row():
    stored = example()
    stored["provenance"] |= {"rounds": 9, "host": "node7", "gpu": {"driver": "580.1", "cublas": "130100", "count": 1}}
    row = record.frame([stored]).iloc[0]
    assert (row["run_rounds"], row["run_host"], row["run_driver"], row["run_cublas"]) == (9, "node7", "580.1", "130100")
    assert row["run_seed"] == stored["provenance"]["seed"]
    assert pandas.isna(row["run_power_limit_w"]) and record.columns("kpm")["run_power_limit_w"] == "number"


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_recorded_columns_are_listed_by_their_kind(paper):
    for path in ROOT.glob(f"results/recorded/*/{paper}.parquet"):
        frame, listed = pandas.read_parquet(path), record.columns(paper)
        filled = [name for name in frame if frame[name].notna().any() and name not in record.LEADING_COLUMNS]
        assert set(filled) <= set(listed), f"{path}: add the columns to bench/columns.yaml"
        for name in filled:
            value = frame[name].dropna().iloc[0]
            kind = (
                "flag" if isinstance(value, bool | np.bool_) or str(value) in ("True", "False")
                else "text" if isinstance(value, str) else "number" if np.isscalar(value) else "list"
            )  # fmt: skip
            assert listed[name] == kind, f"{name} holds a {kind}"


def test_frames_join_as_if_gathered_together(tmp_path):
    records = []
    for case, params, curve in (("a", {"n": 8}, [1, 2]), ("b", {"n": 16, "tau": 0.5}, None), ("c", {"n": 32}, None)):
        made = example(case=case, params=params)
        made["methods"][0] |= {"values": {"curve": curve} if curve else {}}
        records.append(made)
    stale = {**records[1], "params": {"n": 1, "gone": "x"}}
    record.write_frame(record.frame([records[0], stale]), tmp_path / "earlier.parquet")
    joined = record.join(record.read_frame(tmp_path / "earlier.parquet"), record.frame(records[1:]))
    record.write_frame(joined, tmp_path / "joined.parquet")
    record.write_frame(record.frame(records), tmp_path / "together.parquet")
    joined, together = (record.read_frame(tmp_path / f"{name}.parquet") for name in ("joined", "together"))
    assert sorted(joined) == sorted(together)
    for column in together:
        assert [str(value) for value in joined[column]] == [str(value) for value in together[column]], column
    with pytest.raises(ValueError, match="machine"):
        record.join(joined.assign(machine="elsewhere"), together)
