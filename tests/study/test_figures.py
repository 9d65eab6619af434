"""The shared look of figures and tables: names, numbers, and slots that cannot be filled."""

import re
from pathlib import Path

import pandas
import pytest

from spectile_study.bench.claims import printed
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.palette import look
from spectile_study.figures.tables import Table

from .recorded import frame, of


def words(figure):
    from matplotlib.text import Text

    return {text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_text()}


def rows(**columns):
    return pandas.DataFrame({"record": "r", "paper": "kpm", "case": "c", "method": "spectile"} | columns)


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("spectile", "spectile"),
        ("cusparse_float32", "cuSPARSE float32"),
        ("cusolver_two_stage", "cuSOLVER, two stages"),
        ("aug_spmmv", "aug_spmmv()"),
        ("some_method", "some method"),
    ],
)
def test_methods_are_called_as_people_call_them(method, label):
    assert look(method).label == label


def test_only_listed_numbers_are_the_papers(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert printed("spamm_t1_1024_30") == 1.434815
    with pytest.raises(KeyError, match="list it first"):
        printed("spamm_t1_1024_31")


def test_empty_slots_say_why_and_take_little_room(tmp_path):
    drawing = Drawing("Figure 1: test", 1, 2)
    filled, empty = drawing.axes[0]
    drawing.empty(empty, "the device is not at hand")
    drawing.slot(filled, 0, "first: absent")
    drawing.slot(filled, 1, "second: absent")
    drawing.slot(filled, 2, "not measured on this device")
    drawing.slot(filled, 3, "third: MemoryError: 9 bytes")
    drawing.save(tmp_path / "a.svg")
    assert words(drawing.figure) >= {
        "the device is not at hand",
        "hatched: first, second (absent); not measured on this device; third (MemoryError: 9 bytes)",
    }
    assert empty.get_position().width < 0.6 * filled.get_position().width
    assert (tmp_path / "a.svg").stat().st_size > 100


def test_a_figure_without_any_mark_is_low():
    drawing = Drawing("Figure 1: test", 2, 2, size=(10, 7))
    for ax in drawing.axes.flat:
        drawing.empty(ax, "this run holds no such case")
    assert drawing.finish("a").get_figheight() < 3.5


def test_the_names_of_axes_stay_inside_a_figure_of_empty_panels():
    drawing = Drawing("Figure 1: test", 1, 2)
    for ax in drawing.axes.flat:
        drawing.empty(ax, "this run holds no such case")
        ax.set_ylabel("longitudinal conductivity, e²/h")
    figure = drawing.finish("a")
    figure.canvas.draw()
    for ax in drawing.axes.flat:
        named = ax.yaxis.label.get_window_extent()
        assert named.y0 >= 0 and named.y1 <= figure.bbox.y1


def test_a_blank_panel_is_refused(tmp_path):
    drawing = Drawing("Figure 1: test", 1, 2)
    drawing.marks(drawing.ax, rows(x=[1], y=[1.0]), "x", "y")
    with pytest.raises(ValueError, match=r"panel 1 of a.svg is blank"):
        drawing.save(tmp_path / "a.svg")


def test_notes_stand_below_the_figure(tmp_path):
    drawing = Drawing("Figure 1: test")
    drawing.slot(drawing.ax, 0, "first: absent")
    drawing.note("CPU: this run holds no record.")
    drawing.save(tmp_path / "a.svg")
    assert "hatched: first (absent) CPU: this run holds no record." in words(drawing.figure)


def test_an_empty_panel_leaves_the_ticks_of_its_row():
    drawing = Drawing("Figure 1: test", 1, 2, share_y=True)
    filled, empty = drawing.axes[0]
    drawing.marks(filled, rows(x=[1, 2], y=[1.0, 30.0]), "x", "y")
    drawing.empty(empty, "the device is not at hand")
    assert len(filled.get_yticks()) > 2
    assert not any(tick.label1.get_visible() for tick in empty.yaxis.get_major_ticks())


def test_an_empty_first_panel_hands_its_axis_on(tmp_path):
    drawing = Drawing("Figure 1: test", 1, 2, share_y=True)
    empty, filled = drawing.axes[0]
    empty.set(ylabel="seconds", title="a long title of a narrow panel")
    drawing.empty(empty, "not at hand")
    drawing.marks(filled, rows(x=[1, 2], y=[1.0, 30.0]), "x", "y")
    drawing.save(tmp_path / "a.svg")
    assert (empty.get_ylabel(), filled.get_ylabel()) == ("", "seconds")
    assert any(tick.label1.get_visible() for tick in filled.yaxis.get_major_ticks())
    assert "a long title of a narrow panel  not at hand" in words(drawing.figure)


def test_marks_are_noted_and_models_told_apart(tmp_path):
    drawing = Drawing("Figure 1: test")
    drawing.marks(drawing.ax, rows(x=[2048, 1024], y=[1.0, 3.0]), "x", "y")
    for label in ("R = 1", "R = 8"):
        drawing.model_line(drawing.ax, [1024, 2048], [1, 1], label)
    drawing.ax.set_xscale("log", base=2)
    drawing.save(tmp_path / "a.svg")
    notes = pandas.read_csv(tmp_path / "a.marks.tsv", sep="\t")
    assert list(notes["x"]) == [1024, 2048] and list(notes["y"]) == [3.0, 1.0]
    assert {"1,024", "2,048"} <= words(drawing.figure)
    lines = {line.get_label(): line for line in drawing.ax.get_lines()}
    assert lines["R = 1"].get_linestyle() != lines["R = 8"].get_linestyle()


def test_whiskers_reach_from_one_end_to_the_other():
    drawing = Drawing("Figure 1: test")
    data = rows(x=[1, 2], y=[2.0, 3.0], y_lo=[1.5, 2.0], y_hi=[4.0, 3.0])
    drawing.marks(drawing.ax, data, "x", "y")
    (whiskers,) = drawing.ax.collections
    assert [list(segment[:, 1]) for segment in whiskers.get_segments()] == [[1.5, 4.0], [2.0, 3.0]]


def test_the_same_data_give_the_same_file(tmp_path):
    for folder in ("one", "other"):
        drawing = Drawing("Figure 1: test")
        drawing.marks(drawing.ax, rows(x=[1, 2], y=[1.0, 30.0]), "x", "y")
        drawing.slot(drawing.ax, 3, "third: absent")
        drawing.save(tmp_path / folder / "a.svg")
    one, other = ((tmp_path / folder / "a.svg").read_bytes() for folder in ("one", "other"))
    assert one == other and b"<dc:date>" not in one


def test_ticks_of_narrow_axes_are_one_two_five(tmp_path):
    drawing = Drawing("Figure 1: test")
    drawing.marks(drawing.ax, rows(x=[1, 2], y=[1.0, 30.0]), "x", "y")
    drawing.ax.set_yscale("log")
    drawing.save(tmp_path / "a.svg")
    low, high = drawing.ax.get_ylim()
    assert [tick for tick in drawing.ax.get_yticks() if low <= tick <= high] == [1, 2, 5, 10, 20]


def test_cells_are_readable_and_empty_ones_worded(tmp_path):
    data = {"method": ["<ours>", None], "TB/s": [33170.4, 0.12345], "n": [65536, 1], "TB/s (paper)": [None, 1.5]}
    table = Table("Table 1: test", pandas.DataFrame(data), notes=["why"]).cite(rows(y=[33170.4]), "y")
    table.save(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    for cell in ("&lt;ours&gt;", "33,170", "0.1235", "65,536", "not printed</span>", "not measured</span>", "why"):
        assert cell in text, cell
    assert pandas.read_csv(tmp_path / "a.marks.tsv", sep="\t")["y"].tolist() == [33170.4]


def test_words_stand_at_the_left_and_second_lines_are_small():
    data = {
        "matrix": ["cage12", "2cubes"],
        "speed-up": ["2.34\nof 3.3; paper 1.1", "fails"],
        "tau": [1e-7, 8.0],
        "paper": [11.57, 4.0],
    }
    text = Table("Table 1: test", pandas.DataFrame(data), ["a < b"], {"tau": "{:.0e}"}).to_html()
    assert re.findall(r"<th[^>]*>(.*?)</th>", text) == list(data)
    cells = re.findall(r'<td class="data row(\d) col(\d)\s*" >(.*?)</td>', text)
    assert [words for row, _, words in cells if row == "0"] == [
        "cage12", "2.34<br><small>of 3.3; paper 1.1</small>", "1e-07", "11.57",
    ]  # fmt: skip
    assert [words for row, _, words in cells if row == "1"][1:] == ['<span class="none">fails</span>', "8e+00", "4"]
    left = re.findall(r"#T_ \.(col\d) {\s*text-align: left", text)
    assert left == ["col0"] and "a &lt; b" in text


def test_two_series_of_the_papers_in_a_panel_can_be_told_apart(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    drawing = Drawing("Figure 1: test")
    for n in (1024, 2048):
        drawing.paper_marks(drawing.ax, [1], [f"spamm_t1_{n}_30"], f"paper, N = {n}")
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawing.ax.lines}) == 2
    drawing.paper_marks(drawing.ax, [1], ["spamm_t1_1024_30"], joined=False)
    assert drawing.ax.lines[-1].get_linestyle() == "None" and drawing.ax.lines[-1].get_marker() != "None"


def test_one_number_of_gpus_is_no_scaling(tmp_path):
    of_kpm = frame("kpm")
    drawing = of("kpm")["fig12"].draw(of_kpm[~(of_kpm["p_gpus"].astype(float) > 1)])
    drawing.save(tmp_path / "a.svg")
    told = [text for text in words(drawing.figure) if "one number of GPUs only" in text]
    assert len(told) == 2 and not any("100%" in text for text in words(drawing.figure))
