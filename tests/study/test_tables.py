"""Cells of the tables, computed again from the raw samples of the recorded frames."""

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest

from spectile_study.bench import provenance, stats
from spectile_study.figures import overview
from spectile_study.figures.elements import elements
from spectile_study.figures.tables import Cell, Table

from .recorded import ROOT, drawing, frame, of


@pytest.fixture
def table():
    """Return ``table(stem)``: the cells of a table of one H200's records."""

    def values(stem):
        paper, _, name = stem.partition("_")
        return drawing(of(paper)[name]).values()

    return values


def row(paper, case, method):
    rows = frame(paper)
    of_run = rows[(rows["case"] == case) & (rows["method"] == method) & (rows["status"] != "beside")]
    (found,) = [row for _, row in of_run.iterrows()]
    return found


def seconds(paper, case, method):
    return float(np.median(row(paper, case, method)["samples_s"]))


def cell(data, column, **conditions):
    chosen = data
    for name, value in conditions.items():
        chosen = chosen[chosen[name.replace("_", " ")] == value]
    assert len(chosen) == 1
    return chosen[column].iloc[0]


def test_speedup_of_spamm_is_the_median_of_paired_rounds(table):
    def faster(*methods):
        samples = (row("spamm", "product_4096_fp32_gpus1", method)["samples_s"] for method in methods)
        return stats.paired_ratio(*samples).median

    data = table("spamm_t2")
    chosen = {"valid_ratio": 0.1, "precision": "fp32"}
    assert cell(data, "N = 4,096", whose="ours", **chosen) == pytest.approx(faster("called_dense", "called_10"))
    assert cell(data, "N = 4,096", whose="paper, V100", **chosen) == 2.6
    device = data[data["whose"].isna()]
    assert cell(device, "N = 4,096", **chosen) == pytest.approx(faster("cublas", "spectile_10"))
    assert cell(device, "N = 4,096: bound", **chosen) > 9


def test_what_a_threshold_leaves_out_stands_below_its_speedups(monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded = frame("spamm").copy()
    recorded.loc[:, recorded.columns.str.startswith("v_error_rel_")] = np.nan
    recorded.loc[recorded["case"] == "thresholds_4096", "v_error_rel_10"] = 0.875
    data = of("spamm")["t2"].draw(recorded).values()
    errors = data[data["whose"].fillna("").str.startswith("error")]
    assert len(errors) == 6 and cell(errors, "N = 4,096", valid_ratio=0.1) == 0.875
    assert errors["N = 4,096"].notna().sum() == 1


def test_milliseconds_of_a_matrix(table):
    data = table("tsparse_matrices")
    case = frame("tsparse").loc[frame("tsparse")["p_matrix"].astype(str).str.endswith("cage12"), "case"].iloc[0]
    for column, method in (("CSR to CSR, float64", "spectile_float64"), ("cuSPARSE float32", "cusparse_float32")):
        assert float(cell(data, column, matrix="cage12")) == pytest.approx(1e3 * seconds("tsparse", case, method))
    assert cell(data, "cuSPARSE float64", matrix="web-NotreDame") == "fails"


def test_stages_add_up_to_their_sum(table):
    data = table("evd_stages").set_index("stage")
    orders = [name for name in data if name.startswith("n = ")]
    apart = [name for name in data.index if "not in the sum" in name]
    assert orders and apart
    for order in orders:
        parts = data[order].drop(["sum", *apart]).astype(float)
        assert data[order]["sum"] == pytest.approx(parts.sum()) and (parts > 0).all()


def test_times_of_the_band_reduction_stand_under_their_block_and_bandwidth(table):
    rows = frame("evd")
    rows = rows[(rows["p_study"] == "reduction") & (rows["method"] == "spectile") & (rows["status"] == "ok")]
    data = table("evd_t2")
    shown_here = (rows["p_n"] >= 16384) & rows["p_bandwidth"].isin([16, 32, 64]) & (rows["p_block"] >= 128)
    assert (rows.loc[shown_here, "p_n"] == 65536).sum() == 18
    for _, found in rows[shown_here].iterrows():
        whose = "ours" if found["p_n"] == 65536 else f"ours, n = {found['p_n']:,.0f}"
        shown = cell(data, f"nb = {found['p_block']:,.0f}", b=int(found["p_bandwidth"]), seconds=whose)
        assert shown == pytest.approx(np.median(found["samples_s"]))
    assert cell(data, "nb = 512", b=32, seconds="paper, H100") == 16.4


def test_a_network_is_laid_out_as_in_the_paper_and_the_rest_below(table):
    data = table("spamm_t5")
    printed = data[data["whose"] == "paper"]
    assert printed["tau"].tolist() == ["0.1", "0.05", "2.5", "3.0", "4.5", "2.5", "3.5", "4.5", "5.5", "7.5"]
    assert printed["speed-up, 4 GPUs"].tolist()[-1] == 12.4
    case = row("spamm", "vgg_conv31_gpus1", "spectile_43p38")
    ours = data[(data["whose"] == "ours") & (data["layer"] == "conv31")].iloc[-1]
    assert ours["valid ratio"] == case["v_valid_ratio"] and ours["accuracy change"] == case["v_accuracy_change"]
    alone = data[
        (data["layer"] == "conv31") & (data["precision"] == "fp32") & (data["valid ratio"] == ours["valid ratio"])
    ]
    samples = (row("spamm", "vgg_conv31_gpus1", method)["samples_s"] for method in ("cublas", "spectile_43p38"))
    assert alone["the device alone, 1"].tolist() == pytest.approx([stats.paired_ratio(*samples).median])


def test_bandwidth_of_the_processor_is_the_best_measured(table):
    rows = frame("kpm")
    rows = rows[(rows["p_study"] == "machine") & rows["method"].isin(["triad", "copy"]) & (rows["status"] == "ok")]
    expected = max(each["bytes"] / np.median(each["samples_s"]) / 1e9 for _, each in rows.iterrows())
    found = cell(table("kpm_t2"), "b (GB/s)", processor="NVIDIA H200, measured")
    assert found == pytest.approx(expected, abs=0.1)


def test_calls_of_kpm_stand_before_the_devices_rate(monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded = frame("kpm")
    recorded = recorded[~recorded["method"].str.startswith("as_called_")]
    (element,) = [element for element in elements("kpm") if element.name == "fig11"]
    assert "kpm_dos as called: not recorded." in " ".join(element.draw(recorded)._notes)
    call = recorded[(recorded["case"] == "step_200x100x40_r32") & (recorded["method"] == "blocked")].copy()
    steps, slower = 128, 1.25
    call["method"], call["clock"], call["v_moments"] = "as_called_free", "wall", 2.0 * steps
    call["flops"] *= steps / 4
    for column in ("time_s", "time_s_lo", "time_s_hi"):
        call[column] *= slower * steps / 4
    drawing = element.draw(pandas.concat([recorded, call], ignore_index=True))
    assert "Narrow bars: kpm_dos as called, 256 moments" in " ".join(drawing._notes)
    marks = pandas.DataFrame(drawing.notes)
    marks = marks[marks["case"] == "step_200x100x40_r32"].set_index("method")["y"]
    assert marks["as_called_free"] == pytest.approx(marks["blocked"] / slower)
    small = overview.picture("kpm", pandas.concat([recorded, call], ignore_index=True))
    assert {"as_called_free", "blocked"} <= {source["method"] for source in small.notes}


def test_a_page_has_the_cells_of_the_report_without_its_markup():
    table = Table(
        "t", pandas.DataFrame({"n": [1024], "s < 1": [Cell(0.5, "{:.2f}", {"x": 3}, "of {x}")], "paper": [None]})
    )
    assert table.words() == [["n", "s < 1", "paper"], ["1,024", "0.50 of 3", "not printed"]]


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_every_table_tells_what_it_shows_of_a_single_sample(paper, monkeypatch):
    monkeypatch.chdir(ROOT)
    whole = frame(paper).set_index(["record", "case", "method"])["samples_s"].map(np.size)
    for element in elements(paper):
        if not isinstance(shown := element.draw(frame(paper)), Table):
            plt.close(shown.figure)
            continue
        timed = [each for each in shown.sources if each["y_column"] == "time_s"]
        once = any(whole[each["record"], each["case"], each["method"]] == 1 for each in timed)
        told = [each for each in shown.said() if each.startswith("A single sample")]
        assert bool(told) >= once, f"{paper} {element.name}"


def test_a_table_names_the_few_cases_of_a_single_sample():
    rows = pandas.DataFrame({"method": "cusolver_mg", "case": list("abcde"), "record": "r", "paper": "evd"})
    rows = rows.assign(time_s=1.0, time_s_lo=1.0, time_s_hi=[1.0, 1.0, 1.0, 1.0, 2.0])
    assert Table("T").cite(rows[3:], "time_s").said() == ["A single sample: cuSOLVERMg (d)."]
    assert Table("T").cite(rows, "time_s").said() == ["A single sample: cuSOLVERMg (4 cases)."]
    assert Table("T").cite(rows[4:], "time_s").said() == []


def test_reasons_of_a_table_name_whose_they_are(monkeypatch):
    monkeypatch.chdir(ROOT)
    notes = drawing(of("evd")["devices"]).notes
    assert notes and all(note.startswith(("cuSOLVERMg: ", "GPUs: 1: ")) for note in notes)
    assert not any(note.startswith("nan") for note in drawing(of("tsparse")["matrices"]).notes)
