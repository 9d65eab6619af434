"""What claims are made of: rows, quantities, and numbers that say what they are made of."""

import math

import numpy as np
import pandas
import pytest

from spectile_study.bench.names import ClaimError, Names
from spectile_study.bench.rows import Rows, at


def frame(values, **columns):
    """Return rows of one curve of SpAMM: ``v_tau`` at ``p_n`` = 1, 2, ..."""
    rows = {"status": "ok", "paper": "spamm", "p_n": range(1, len(values) + 1), "v_tau": values, "record": "r"}
    rows |= {
        "device": "d",
        "machine": "m",
        "method": "spectile",
        "reason": None,
        "memory_bytes": 1.0,
        "case": "c",
        "p_gpus": 1.0,
    }
    rows |= {"samples_s": None, "time_s": math.nan}
    return pandas.DataFrame(rows | columns)


def tau(values, **columns):
    return Rows(frame(values, **columns)).column("v_tau")


@pytest.mark.parametrize(
    ("shape", "values", "number"),
    [
        ("growth", [1.0, 2.0, 3.0], 1.5),
        ("growth", [1.0, 2.0, 1.0], 0.5),
        ("fall", [4.0, 2.0, 1.6], 1.25),
        ("last_step", [1.0, 2.0, 2.2], 1.1),
        ("spread", [1.0, 0.5, 2.0], 4.0),
        ("lowest", [1.0, 3.0, 0.5], 3.0),
        ("rank", [1.0, 3.0, 2.0], 0.5),
    ],
)
def test_shapes_are_numbers(shape, values, number):
    assert getattr(tau(values), shape)("p_n").number == pytest.approx(number)


def test_the_worst_curve_counts():
    rows = pandas.concat([frame([1.0, 2.0], case="a"), frame([1.0, 3.0], case="b"), frame([9.0], case="c")])
    assert Rows(rows).column("v_tau").growth("p_n", "case").number == 2.0
    assert not tau([1.0]).growth("p_n").is_known
    twice = tau([1.0, 2.0, 3.0], p_n=[1, 1, 2])  # rows at one place are averaged
    assert twice.growth("p_n").number == 2.0


@pytest.mark.parametrize(
    ("reduce", "number"),
    [("max", 4.0), ("min", 1.0), ("median", 2.0), ("mean", 7 / 3), ("geomean", 2.0)],
)
def test_many_rows_give_one_number(reduce, number):
    assert getattr(tau([1.0, 2.0, 4.0]), reduce)().number == pytest.approx(number)
    assert not getattr(tau([]), reduce)().is_known
    with pytest.raises(ClaimError, match="finds 3 rows"):
        tau([1.0, 2.0, 4.0]).only()


def test_conclusions_hold_or_do_not():
    two = tau([2.0]).only()
    assert [two.at_least(2).holds, two.at_least(2.1).holds] == [True, False]
    assert [two.at_most(2).holds, two.at_most(1.9).holds] == [True, False]
    assert [two.near(4, factor=2).holds, two.near(1, factor=2).holds, two.near(4.1, factor=2).holds] == [
        True, True, False,
    ]  # fmt: skip
    assert not tau([]).only().at_least(-1).holds and two.holds is None


def test_a_quotient_is_made_of_both():
    rows = Rows(frame([6.0, 2.0], case=["a", "b"]))
    quotient = rows.at(case="a").column("v_tau").only() / rows.at(case="b").column("v_tau").only()
    assert quotient.number == 3.0 and list(quotient.used["case"]) == ["a", "b"]
    lacking = rows.at(case="a").column("v_tau").only() / rows.at(case="c").column("v_tau").only()
    assert not lacking.is_known and lacking.reasons() == ["no finished case of this run on d holds it"]


def test_shares_are_of_the_devices_peak():
    rows = frame([1.0], device="NVIDIA H200", flops=6.7e12, time_s=1.0)
    assert Rows(rows).share_of("fp64").numbers.tolist() == pytest.approx([10.0])
    assert Rows(rows.assign(p_gpus=2)).share_of("fp64").map(lambda share: 2 * share).numbers.tolist() == pytest.approx(
        [10.0]
    )
    assert not len(Rows(rows.assign(device="another")).share_of("fp64").numbers)


def test_phases_are_shares_of_the_time():
    rows = frame([1.0, 1.0], paper="tsparse", v_phases=[["a", "b"], None], v_phases_s=[[1.0, 3.0], None])
    assert Rows(rows).phase("b").numbers.tolist() == [75.0]
    assert not len(Rows(rows[1:]).phase("b").numbers) and not len(Rows(rows[:0]).phase("b").numbers)


def test_criteria_are_scored():
    faster = tau([2.0, 0.5, 3.0, 0.9], p_n=[10, 10, 1, 1])
    assert faster.precision(faster["p_n"] > 5).number == 0.5
    assert faster.recall(faster["p_n"] > 5).number == 0.5
    few = faster.precision(faster["p_n"] < 5)  # a score is made of the rows that could be missed
    assert list(few.used["v_tau"]) == [3.0, 0.9] and list(faster.recall(faster["p_n"] < 5).used["v_tau"]) == [2.0, 3.0]
    assert faster.wins(of=16).number == 8


@pytest.mark.parametrize(
    ("values", "score", "met"), [([2.0, 3.0], "precision", [True, False]), ([2.0, 0.5], "recall", [True, True])]
)
def test_a_score_that_no_prediction_could_miss_is_none(values, score, met):
    ours = getattr(tau(values), score)(np.array(met))
    assert not ours.is_known and "says nothing" in ours.reasons()[0]


def timed(samples):
    """Return one case of several methods with their samples."""
    rows = frame([1.0] * len(samples), method=list(samples), samples_s=list(samples.values()))
    return rows.assign(time_s=[float(np.median(each)) if len(each) else math.nan for each in samples.values()])


def test_a_speedup_is_of_rounds_and_over_the_fastest_of_several():
    rows = Rows(timed({"fast": [1.0, 1.0, 2.0], "slow": [2.0, 4.0, 4.0], "slower": [9.0, 9.0, 9.0], "not": []}))
    assert rows.speedup("fast", "slow").only().number == 2.0
    assert rows.speedup("fast", "slower", "slow").only().number == 2.0
    assert rows.gain("fast", "slow").only().number == 100.0
    assert rows.speedup("slow*", "fast").numbers.tolist() == pytest.approx([0.5, 1 / 9])
    assert not rows.speedup("fast", "not").only().is_known
    assert rows.over("time_s", "slow", "fast", "slower").numbers.tolist() == pytest.approx([4.0, 4 / 9])


def test_a_time_of_the_device_over_that_of_a_call_is_told():
    both = timed({"spectile_05": [1.0], "latency_05": [2.0], "cublas": [3.0]}).assign(p_study="product")
    rows = Rows(both)
    assert rows.speedup("spectile_05", "cublas").only().time == "device"
    assert rows.speedup("spectile_05", "latency_05").only().time == "device over as called"
    assert rows.speedup("latency_05", "latency_05").only().time == "as called"
    assert rows.column("v_tau").max().time == ""


def test_single_samples_are_named():
    rows = Rows(timed({"fast": [1.0, 1.0, 2.0], "slow": [2.0]}))
    assert rows.speedup("fast", "slow").only().single == "slow"
    assert rows.at(method="fast").column("time_s").only().single == ""
    assert rows.at(method="slow").column("v_tau").only().single == ""  # no time


def test_what_did_not_pass_has_no_number():
    rows = Rows(frame([1.0, 2.0], status=["failed", "ok"], reason=["wrong", None], case=["a", "b"]))
    assert rows.column("v_tau").only().number == 2.0
    failed = rows.at(case="a").column("v_tau").only()
    assert not failed.is_known and failed.reasons()[0] == "wrong"


@pytest.mark.parametrize(
    ("conditions", "cases"),
    [
        ({"p_n": 4}, ["a", "b"]),
        ({"p_n": 4, "case": "a"}, ["a"]),
        ({"case": ("a", "c")}, ["a", "c"]),
        ({"p_tau": 1.434815}, ["a"]),
        ({"p_tau": 1.4348}, []),
        ({"p_tau": lambda tau: tau > 1.45}, ["c"]),
        ({}, ["a", "b", "c"]),
    ],
)
def test_conditions_keep_rows_that_meet_every_one(conditions, cases):
    columns = {"p_n": [4, 4, 8], "case": ["a", "b", "c"], "p_tau": [1.434815, None, 1.5]}
    rows = frame([1.0] * 3).assign(**columns)
    assert list(at(rows, **conditions)["case"]) == cases
    assert list(rows["case"].iloc[Rows(rows).at(**conditions).places]) == cases


@pytest.mark.parametrize("column", ["paper", "machine"])
def test_rows_of_two_machines_or_papers_are_refused(column):
    with pytest.raises(ClaimError, match=f"rows of several {column}s"):
        Rows(frame([1.0, 2.0]).assign(**{column: ["kpm", "spamm"]}))


NAMED = [
    (lambda rows: rows.at(p_stduy="product"), "'p_stduy', which no frame has: did you mean 'p_study'"),
    (lambda rows: rows.at(case="d"), "asks for case = 'd', which no record holds"),
    (lambda rows: rows.at(p_n=[1, 5]), "asks for p_n = 5"),
    (lambda rows: rows.column("tme_s"), "'tme_s', which no frame has: did you mean 'time_s'"),
    (lambda rows: rows.column("v_tau", per="p_nn"), "'p_nn'"),
    (lambda rows: rows.speedup("spectile", "cubla"), "method 'cubla', which no frame has: take one of spectile"),
    (lambda rows: rows.speedup("spectil?x", "spectile"), "method 'spectil?x'"),
    (lambda rows: rows.over("memory_byte", "spectile", "spectile"), "'memory_byte'"),
    (lambda rows: rows.phase("chasing"), "phase 'chasing'"),
    (lambda rows: rows.column("v_tau").growth("p_nn"), "'p_nn'"),
    (lambda rows: rows.column("v_tau")["p_nn"], "'p_nn'"),
]


@pytest.mark.parametrize(("take", "said"), NAMED, ids=[said for _, said in NAMED])
def test_names_that_nothing_holds_are_refused(take, said):
    rows = frame([1.0, 2.0])
    with pytest.raises(ClaimError) as error:
        take(Rows(rows, Names("spamm", [rows])))
    assert said in str(error.value)


def test_without_known_frames_columns_are_judged_alone():
    rows = Rows(frame([1.0]))
    assert not len(rows.at(case="another").speedup("a", "b").numbers)
    with pytest.raises(ClaimError, match="p_stduy"):
        rows.at(p_stduy="any")


SKIPPED = {
    "rival not installed": ("rival", "Rival is not installed: name its library in SPECTILE_RIVAL"),
    "input absent": ("-", "matrix A/b has not been fetched into /c; get it with: python -m spectile fetch"),
}


@pytest.mark.parametrize(("method", "reason"), SKIPPED.values(), ids=SKIPPED)
def test_the_rows_say_why_there_is_no_number(method, reason):
    rows = pandas.concat([
        frame([1.0], memory_bytes=1.0),
        frame([math.nan], method=method, status="skipped", reason=reason),
        frame([math.nan], method="another", status="skipped", reason="Another is not built: build it"),
        frame([math.nan], method="-", status="skipped", reason="of another case", p_n=2),
    ])  # fmt: skip
    ours = Rows(rows).at(p_n=1).over("memory_bytes", "spectile", "rival").only()
    assert not ours.is_known
    assert reason in ours.reasons() and not {"of another case"} & set(ours.reasons())


def test_more_gpus_than_any_case_of_the_run_used_are_asked_for():
    missing = Rows(frame([1.0])).at(p_gpus=4).column("v_tau").only()
    assert "4 GPUs" in missing.reasons()[0]
    missing = Rows(frame([math.nan], p_gpus=4)).at(p_gpus=4).column("v_tau").only()
    assert not any("GPUs" in reason for reason in missing.reasons())


def test_times_are_called_what_they_are():
    rows = timed({"spectile_float16": [1.0], "rows_float16": [1.0]}).assign(paper="tsparse")
    assert Rows(rows).column("time_s").mean().time == "as called and device"
    assert Rows(rows[:1]).column("time_s").only().time == "as called"
    assert Rows(rows).column("memory_bytes").mean().time == ""
    evd = timed({"spectile": [1.0], "cusolver": [2.0]}).assign(paper="evd", p_study="tridiagonal")
    assert Rows(evd).speedup("spectile", "cusolver").only().time == "as called"
    assert Rows(evd.assign(p_study="chasing")).speedup("spectile", "cusolver").only().time == "device"
