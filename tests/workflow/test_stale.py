"""Records that other software made are named, and measured again if the user asks for it."""

import json

import pytest

from spectile_study.bench import archive, provenance, stale

from ..study.inputs.test_suitesparse import TINY, Mirror, tar_gz
from ..study.test_archive import stored
from .faulty import workflow as faulty

ALL = ("--cores", "2", "--set-threads", "measure_case=1")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({}, {}),
        ({"edited": ["sources"]}, {"sources": "edited"}),
        ({"edited": ["kernel a/b.cu"]}, {"kernel a/b.cu": "edited"}),
        ({"software": {"driver": "590", "cublas": "130200"}}, {"driver": "580 -> 590"}),
        ({"software": {"driver": "580", "cusparse": "1"}}, {}),  # the record does not say which cuSPARSE it had
        ({"row": {"n": 2, "case": "a", "element": "fig2"}}, {"column n": "1 -> 2"}),
        ({"row": {"n": 1, "case": "a", "minutes": 9}}, {}),
    ],
)
def test_what_changed_is_named(edit, expected):
    record = stored("a") | {"backend": "cuda", "params": {"n": 1, "element": "fig1"}}
    now = {"row": record["params"], "edited": [], "software": provenance.software_of(record)} | edit
    assert stale.changes(record, **now) == expected


def test_versions_here_are_those_that_a_record_stores():
    facts = {"backend": "cpu", "provenance": provenance.provenance({"digest": "0" * 64}, "cpu", 1, 1, {})}
    assert provenance.software_of(facts) == provenance.software("cpu") == stale.installed("cpu")
    assert set(provenance.software("cpu")) == set(provenance.CPU_SOFTWARE)


def test_sentence_counts_cases():
    said = stale.told([{"driver": "1 -> 2"}, {"driver": "1 -> 2", "sources": "edited"}, {}])
    assert said == "2 records were measured with other software or rows: driver 1 -> 2 (2); sources edited (1)"


def test_stale_records_are_told_and_measured_again_on_request(tmp_path):
    folder = faulty.faulty_workflow(tmp_path / "copy", {"case": "one"}, {"case": "two"}, {"case": "three"})
    faulty.run(folder, "records", *ALL)
    # Kept by an earlier run: Snakemake knows nothing of these files, their content alone says what made them.
    archive.pack((content for content, _ in faulty.records(folder).values()), tmp_path / "kpm.zip")
    for path in folder.glob("results/this/records/kpm/*.json"):
        path.unlink()
    assert archive.unpack(tmp_path / "kpm.zip", folder / "results/this/records/kpm") == 3
    (folder / ".snakemake").rename(tmp_path / "forgotten")
    for case in ("one", "two"):
        path = folder / f"results/this/records/kpm/{case}.json"
        content = json.loads(path.read_text())
        content["provenance"]["libraries"]["numpy"] = "0.1"
        path.write_text(json.dumps(content))
    before = faulty.records(folder)

    _, printed = faulty.run(folder, "records", *ALL)
    assert "spectile: 2 records were measured with other software or rows: numpy 0.1 -> " in printed
    assert "they are kept, and --config remeasure=stale measures them again." in printed
    assert faulty.records(folder) == before

    _, printed = faulty.run(folder, "results/this/records/kpm/one.json", *ALL, "--config", "remeasure=stale")
    after = faulty.records(folder)
    assert {case for case in after if after[case] != before[case]} == {"one"}  # two is stale, and not asked for
    assert after["one"][0]["provenance"]["libraries"]["numpy"] != "0.1"

    faulty.run(folder, "records", *ALL, "--config", "remeasure=stale")
    last = faulty.records(folder)
    assert {case for case in last if last[case] != after[case]} == {"two"}
    _, printed = faulty.run(folder, "records", *ALL, "--config", "remeasure=stale")
    assert faulty.records(folder) == last and "other software" not in printed


def test_unpacked_records_stand_until_an_input_is_another(tmp_path):
    (tmp_path / "mirror").mkdir()
    mirror = Mirror(tmp_path / "mirror")
    mirror.add("Test", "tiny", tar_gz([("tiny/tiny.mtx", TINY.encode())]))
    rows = [{"case": case, "matrix": "tiny"} for case in ("one", "two")]
    folder = faulty.faulty_workflow(tmp_path / "copy", *rows)
    options = ("records", *ALL, "--config", f"suitesparse_url={mirror.url}")
    faulty.run(folder, *options)
    archive.pack((content for content, _ in faulty.records(folder).values()), tmp_path / "kpm.zip")

    # A fresh checkout that holds the record of one case, and no input: the other's is fetched, and that one stands.
    fresh = faulty.faulty_workflow(tmp_path / "fresh", *rows)
    archive.unpack(tmp_path / "kpm.zip", fresh / "results/this/records/kpm")
    (fresh / "results/this/records/kpm/two.json").unlink()
    before = faulty.records(fresh)
    faulty.run(fresh, *options)
    after = faulty.records(fresh)
    assert set(after) == {"one", "two"} and after["one"] == before["one"]
    _, printed = faulty.run(fresh, *options)
    assert "Nothing to be done" in printed

    # Another content of the matrix measures both.
    receipt = fresh / "resources/receipts/tiny.json"
    receipt.write_text(json.dumps(json.loads(receipt.read_text()) | {"sha256": "0" * 64}))
    _, printed = faulty.run(fresh, *options, "-n")
    assert {case for case in after if f"Measuring kpm/{case}" in printed} == {"one", "two"}
