"""Several machines side by side: every cell is that of its own machine's records."""

from pathlib import Path

import numpy as np
import pytest

from spectile_study.bench import claims, record
from spectile_study.figures import judged, machines

ROOT = Path(__file__).parents[2]
H200, EPYC2 = "h200 (NVIDIA H200)", "epyc2 (AMD EPYC)"


@pytest.fixture(scope="module")
def recorded():
    """Return SpAMM's and tSparse's frames of the two machines that are recorded."""
    paths = [ROOT / f"results/recorded/{machine}/{paper}.parquet" for machine in ("h200", "epyc2")
             for paper in ("spamm", "tsparse")]  # fmt: skip
    return [record.read_frame(path, whole=True) for path in paths]


def table_of(paper):
    listed = claims.read_claims(ROOT / "config/claims.tsv")
    return listed[listed["paper"] == paper].reset_index(drop=True)


def test_times_are_ratios_of_medians_of_the_same_cases(recorded):
    table = machines.times_table(machines.by_machine("h200", recorded)).values()
    assert EPYC2 in table and f"{EPYC2}: cases" in table
    line = table[(table["system"] == "tSparse") & (table["method"] == "spectile_float64")].iloc[0]
    ratios = []
    of_method = [
        frame[frame["method"] == "spectile_float64"] for frame in recorded if set(frame["paper"]) == {"tsparse"}
    ]
    ours, theirs = (rows[rows["status"] == "ok"].set_index("case")["samples_s"] for rows in of_method)
    for case in set(ours.index) & set(theirs.index):
        ratios.append(np.median(ours[case]) / np.median(theirs[case]))
    assert line[f"{EPYC2}: cases"] == len(ratios) > 20
    assert line[EPYC2] == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert (line[f"{EPYC2}: least"], line[f"{EPYC2}: most"]) == pytest.approx((min(ratios), max(ratios)))
    # From the other side it is the inverse.
    other = machines.times_table(machines.by_machine("epyc2", recorded)).values()
    assert other.loc[other["method"] == "spectile_float64", H200].iloc[0] == pytest.approx(1 / line[EPYC2])


def test_claims_stand_beside_each_other_with_their_own_verdicts(recorded):
    whole = machines.by_machine("epyc2", recorded)
    table = machines.claims_table(table_of("tsparse"), whole).values()
    assert list(table)[4] == EPYC2  # the machine of the run comes first
    found = {name: judged.evaluate(table_of("tsparse"), whole[name]) for name in ("epyc2", "h200")}
    judged_by = {name: rows["verdict"].isin(claims.VERDICTS) for name, rows in found.items()}
    for name, column in (("h200", H200), ("epyc2", EPYC2)):
        # What the machine of the run judged comes first.
        ordered = judged_by["epyc2"].sort_values(ascending=False, kind="stable").index
        own = found[name].loc[ordered][judged_by[name][ordered]]
        told = table.dropna(subset=f"{column}: verdict")
        assert list(told["claim"]) == list(own["statement"]) and len(told) > 20
        assert list(told[f"{column}: verdict"]) == list(own["verdict"])
        assert list(told[f"{column}: records"]) == list(own["records"])
        assert told[column].to_list() == pytest.approx(own["measured"].to_list())


def test_one_machine_alone_says_so(recorded, tmp_path):
    machines.write("h200", recorded[:1], ROOT / "config/claims.tsv", tmp_path)
    for name in ("claims", "times"):
        assert machines.ALONE in (tmp_path / f"{name}.html").read_text()
    assert "reproduced" in (tmp_path / "claims.html").read_text()


def test_a_run_without_records_stands_beside_the_others(recorded, tmp_path):
    machines.write("box", recorded[2:], ROOT / "config/claims.tsv", tmp_path)
    page = (tmp_path / "claims.html").read_text()
    assert "on box and epyc2" in page and "not measured" in page
    assert "How many times as fast as box" in (tmp_path / "times.html").read_text()


def test_what_the_run_itself_measured_comes_first_and_strangers_are_left_out():
    frames = {
        (name, paper): record.read_frame(ROOT / f"results/recorded/{name}/{paper}.parquet")
        for name, paper in (("h200", "spamm"), ("h200", "evd"), ("epyc2", "evd"), ("h100", "spamm"), ("h100", "evd"))
    }
    known = machines.by_machine("h100", frames.values())
    own = machines.claims_table(claims.read_claims(ROOT / "config/claims.tsv"), known).data.iloc[:, 4].notna()
    assert own.any() and not own.all() and own.is_monotonic_decreasing
    assert [head.partition(" ")[0] for head in machines.times_table(known).data.columns[2:]] == ["h200"]
    apart = machines.times_table(machines.by_machine("epyc2", [frames["epyc2", "evd"], frames["h100", "spamm"]]))
    assert apart.data.empty and machines.APART in apart.notes


def test_rows_that_do_not_say_what_made_them_are_counted(recorded):
    rows = [np.arange(len(frame)) % 3 > 0 for frame in recorded]
    silenced = [
        frame.assign(run_measured_at=frame["run_measured_at"].where(kept))
        for frame, kept in zip(recorded, rows, strict=True)
    ]
    known = machines.by_machine("h200", silenced)
    for table in (machines.claims_table(table_of("spamm"), known), machines.times_table(known)):
        told = {note.partition(":")[0]: note for note in table.notes if "rows do not say" in note}
        for name, frames in known.items():
            silent = sum(int(frame["run_measured_at"].isna().sum()) for frame in frames)
            assert silent and f" {silent} of {sum(map(len, frames))} rows" in told[name]
    whole = [frame.assign(run_measured_at="2026-11-23") for frame in recorded]
    table = machines.times_table(machines.by_machine("h200", whole))
    assert not any("rows do not say" in note for note in table.notes)
