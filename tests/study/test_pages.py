"""The pages of docs/: their tables are those of the records."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from spectile_study.papers import PAPERS
from tests.modules import module_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables():
    return module_at(ROOT / "docs/tables.py")


MADE = [
    "README.md",
    "docs/records.md",
    *(f"docs/performance/{system}.md" for system in ("evd", "kpm", "spamm", "tsparse")),
]


@pytest.mark.parametrize("page", MADE)
def test_pages_made_from_records_are_those_of_the_records(tables, page, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = ROOT / page
    assert path.read_text() == tables.written(path), "make pages writes it anew"


def test_calls_of_kpm_stand_beside_the_device_where_they_are_recorded(tables, monkeypatch):
    recorded = tables._frame

    def with_calls(machine, paper):
        frame = recorded(machine, paper)
        if paper != "kpm":
            return frame
        frame = frame[~frame["method"].str.startswith("as_called_")]
        # A call of 256 moments as slow as 160 steps, and one of two as slow as 12.
        device = frame[(frame["case"] == "step_200x100x40_r32") & (frame["method"] == "blocked")]
        for part, steps, time in (("", 128, 160), ("_setup", 1, 12)):
            call = device.assign(method=f"as_called_free{part}", flops=device["flops"] * steps / 4)
            call["time_s"] *= time / 4
            call["samples_s"] = call["samples_s"].map(lambda each, time=time: [time / 4 * one for one in each])
            frame = pandas.concat([frame, call], ignore_index=True)
        return frame

    def line(text, head):
        (found,) = [each for each in text.splitlines() if each.startswith(f"| {head}")]
        return [cell.strip() for cell in found.strip("|").split("|")]

    monkeypatch.setattr(tables, "_frame", with_calls)
    frame = recorded("h200", "kpm")
    step = frame[(frame["case"] == "step_200x100x40_r32") & (frame["method"] == "blocked")]["time_s"].iloc[0] / 4
    cells = line(tables.kpm_calls("h200", "step_200x100x40"), "matrix-free")[1:]
    assert cells[2] == f"{tables._duration(160 * step)}, of it {tables._duration(12 * step)}"
    assert set(cells[:2] + cells[3:]) == {"not recorded"}
    call, device = line(tables.summary("h200"), "KPM, a step of 32 vectors, the lattice")[-2:]
    assert float(call) == pytest.approx(float(device) * 128 / 160, abs=0.01)


def test_tables_are_written_whatever_failed_is_absent_or_was_not_recorded(tables, monkeypatch):
    recorded, rng = tables._frame, np.random.default_rng(3)
    whole = {(machine, paper): recorded(machine, paper) for machine in ("h200", "h100") for paper in PAPERS}

    def some(machine, paper):
        frame = whole[machine, paper].copy() if (machine, paper) in whole else recorded(machine, paper)
        cases = [case for case in frame["case"].unique() if rng.random() < 0.7]
        methods = [method for method in frame["method"].unique() if rng.random() < 0.2]
        failed = frame["method"].isin(methods) | (rng.random(len(frame)) < 0.3)
        frame.loc[failed, ["status", "reason"]] = ["failed", "wrong result: told"]
        frame.loc[failed, "time_s"] = np.nan
        return frame[frame["case"].isin(cases)]

    monkeypatch.setattr(tables, "_frame", some)
    for name in sorted(set(tables.TABLES) - {"undated", "readme claims"}):
        assert tables.TABLES[name]().startswith(("| ", "Not recorded yet.")), name
    monkeypatch.setattr(tables, "_frame", lambda machine, paper: recorded(machine, paper).iloc[:0])
    for name in sorted(set(tables.TABLES) - {"undated", "readme claims"}):
        assert tables.TABLES[name]().startswith(("| ", "Not recorded yet.")), name
