"""What is drawn follows the records: an edited sample redraws its figure, frame and zip, and measures nothing."""

import json

import numpy as np
import pandas
import pytest

from spectile_study.bench import archive, record

from .faulty import workflow as faulty

ALL = ("--cores", "2", "--set-threads", "measure_case=1")


def drawn(folder):
    return pandas.read_csv(folder / "results/this/figures/kpm_fig1.marks.tsv", sep="\t").set_index(["case", "method"])[
        "y"
    ]


def test_an_edited_median_is_drawn_again(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "copy", {"case": "one"}, {"case": "two"})
    wanted = ("results/this/figures/kpm_fig1.svg", "results/this/kpm.parquet", *ALL)
    faulty.run(folder, *wanted)
    before = drawn(folder)
    path = folder / "results/this/records/kpm/two.json"
    content = json.loads(path.read_text())
    (method,) = [each for each in content["methods"] if each["method"] == "good"]
    method["samples_s"] = [10 * sample for sample in method["samples_s"]]
    path.write_text(json.dumps(content))
    _, printed = faulty.run(folder, *wanted)
    assert "Measuring" not in printed and printed.count("Drawing the figure") == 1
    after = drawn(folder)
    assert after["two", "good"] == pytest.approx(10 * before["two", "good"])
    assert after["two", "good"] == pytest.approx(np.median(method["samples_s"]))
    unchanged = [key for key in before.index if key != ("two", "good")]
    assert len(unchanged) == 3 and (after[unchanged] == before[unchanged]).all()
    frame = record.read_frame(folder / "results/this/kpm.parquet").set_index(["case", "method"])
    assert frame.loc[("two", "good"), "time_s"] == after["two", "good"]
    assert archive.load(folder / "results/this/kpm.zip")["two"] == content
