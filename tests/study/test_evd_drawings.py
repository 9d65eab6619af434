"""EVD's drawings of what a run may hold or lack: MAGMA, the device's own time, other problems, drivers."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from spectile_study.bench import record
from spectile_study.figures.elements import elements

ROOT = Path(__file__).parents[2]
ELEMENTS = {element.name: element for element in elements("evd", ROOT / "workflow/scripts")}


@pytest.fixture(scope="module")
def recorded():
    return record.read_frame(ROOT / "results/recorded/h200/evd.parquet", whole=True)


def relabelled(rows, method, factor):
    """Return `rows` as another method's, `factor` times as slow."""
    rows = rows[rows["time_s"].notna()].copy()
    rows["samples_s"] = [[factor * each for each in samples] for samples in rows["samples_s"]]
    for column in ("time_s", "time_s_lo", "time_s_hi"):
        rows[column] *= factor
    return rows.assign(method=method)


def without(frame, *methods):
    return frame[~frame["method"].isin(methods)]


def test_magma_is_drawn_where_it_was_measured(recorded, monkeypatch):
    monkeypatch.chdir(ROOT)
    ours = recorded[recorded["method"] == "spectile"]
    frame = pandas.concat(
        [without(recorded, "magma", "magma_chasing"), relabelled(ours, "magma", 5.0),
         relabelled(recorded[recorded["method"] == "spectile_chasing"], "magma_chasing", 20.0)]
    )  # fmt: skip
    for name in ("fig4", "fig9", "fig10", "fig11"):
        notes = pandas.DataFrame(ELEMENTS[name].draw(frame).notes)
        times = notes[(notes["method"] == "magma") & (notes["y_column"] == "time_s")]
        assert len(times), name
        for mark in times.itertuples():
            case = ours[ours["case"] == mark.case]
            assert mark.y == pytest.approx(5 * float(np.median(case["samples_s"].iloc[0])))
    chased = pandas.DataFrame(ELEMENTS["fig4"].draw(frame).notes)
    assert set(chased.loc[chased["method"] == "magma_chasing", "panel"]) == {1}
    data = ELEMENTS["t2"].draw(frame).values()
    assert data["seconds"].str.startswith("MAGMA, n = ").sum() >= 3


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_the_legend_of_figure_8_hides_no_mark(recorded, factor):
    ours = relabelled(recorded[recorded["method"] == "spectile"], "spectile", factor)
    drawing = ELEMENTS["fig8"].draw(pandas.concat([without(recorded, "spectile"), ours]))
    drawing.finish("a").canvas.draw()
    for ax in drawing.axes.flat:
        hidden = ax.get_legend().get_window_extent()
        for line in ax.lines:
            assert not any(hidden.contains(*mark) for mark in ax.transData.transform(line.get_xydata()))


def test_without_magma_each_figure_says_why(recorded):
    frame = without(recorded, "magma", "magma_chasing")
    drawing = ELEMENTS["fig4"].draw(frame)
    assert "no record of MAGMA" in drawing._empty[drawing.axes[0, 1]]
    for name in ("fig10", "fig11"):
        assert any("MAGMA has no mark: no record of MAGMA" in note for note in ELEMENTS[name].draw(frame)._notes)


def test_the_devices_own_time_is_a_paler_mark_beside_what_a_user_gets(recorded):
    ours = recorded[(recorded["method"] == "spectile") & recorded["p_study"].isin(["evd", "tridiagonal"])]
    frame = pandas.concat([without(recorded, "spectile_device"), relabelled(ours, "spectile_device", 0.9)])
    for name in ("fig10", "fig11"):
        notes = pandas.DataFrame(ELEMENTS[name].draw(frame).notes)
        drawn = notes[notes["y_column"] == "time_s"].groupby("method")["y"].count()
        assert drawn["spectile_device"] == drawn["spectile"] > 5


def rows_of(study, case, seconds, **parameters):
    """Return rows of a study with one method for each of `seconds`."""
    return [
        {"record": case, "paper": "evd", "case": case, "method": method, "status": "ok", "reason": None,
         "device": "a GPU", "time_s": float(np.median(samples)), "samples_s": samples, "p_study": study,
         **{f"p_{name}": value for name, value in parameters.items()}}
        for method, samples in seconds.items()
    ]  # fmt: skip


def test_other_problems_are_held_against_their_rivals():
    common = {"k": None, "bandwidth": None, "batch": 1, "precision": "float64", "vectors": True}
    frame = pandas.DataFrame(
        [
            *rows_of("problems", "tri", {"spectile": [1.0, 2.0, 3.0], "scipy": [4.0, 6.0, 3.0]},
                     **common | {"problem": "tridiagonal", "n": 2000, "vectors": False}),
            *rows_of("problems", "part",
                     {"spectile": [2.0], "spectile_values": [1.0], "spectile_back": [0.6], "cusolver": [8.0]},
                     **common | {"problem": "partial", "n": 4096, "k": 10}),
        ]
    )  # fmt: skip
    data = ELEMENTS["problems"].draw(frame).values()
    assert data["problem"].tolist() == ["partial", "tridiagonal"]
    assert data["what"].tolist() == ["n = 4,096, 10 lowest pairs", "n = 2,000, values"]
    assert data["spectile: s"].tolist() == [2.0, 2.0]
    assert data["over rival 1"].tolist() == [4.0, 3.0]  # the median of the rounds' ratios 4, 3 and 1
    assert data["over rival 1: rival"].tolist() == ["cuSOLVER's syevdx", "SciPy's eigh_tridiagonal, host"]
    assert data["time of ours"].tolist() == [
        "2.00 of all values; 1.25 of all values and the way back of these vectors", "-"
    ]  # fmt: skip


def test_the_host_is_held_against_the_fastest_driver():
    seconds = {"spectile": [2.0, 2.0], "scipy_evd": [4.0, 4.0], "scipy_evr": [1.0, 1.0]}
    data = ELEMENTS["drivers"].draw(pandas.DataFrame(rows_of("drivers", "d", seconds, n=8, vectors=True))).values()
    assert data["time of ours, best driver = 1"].tolist() == [2.0] and data["best driver"].tolist() == ["evr"]
    assert data["SciPy, evd"].tolist() == [4.0] and data["SciPy, ev"].isna().all()
