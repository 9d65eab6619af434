"""Records kept as one zip a paper and machine, and taken into the reviewed measurements."""

import json
import warnings
import zipfile
from pathlib import Path

import pytest

from spectile_study.__main__ import main
from spectile_study.bench import archive, record
from spectile_study.bench.rows import Rows
from spectile_study.bench.stats import speedups


def stored(case, samples=(1.0, 2.0), machine="box", paper="kpm"):
    origin = {"commit": "0" * 40, "dirty": False, "digest": "0" * 64, "seed": 1, "threads": 1, "python": "3.12"}
    return {
        "paper": paper, "case": case, "machine": machine, "device": "GPU", "status": "ok", "reason": None,
        "params": {}, "values": {}, "inputs": {}, "measured_at": "2026-01-01T00:00:00+00:00",
        "provenance": origin | {"cpu": "CPU", "libraries": {}, "gpu": {"driver": "580", "cublas": "130200"}},
        "methods": [
            {"method": "spmv", "status": "ok", "clock": "wall", "samples_s": list(samples),
             "errors": {"error_fro_rel": 0.0}, "limits": {"error_fro_rel": 1e-12}}
        ],
    }  # fmt: skip


def test_records_come_back_and_equal_records_make_equal_files(tmp_path):
    records = [stored("b"), stored("a")]
    archive.pack(records, tmp_path / "one.zip")
    archive.pack(records[::-1], tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert archive.load(tmp_path / "one.zip") == {"a": stored("a"), "b": stored("b")}


def test_a_wide_frame_is_in_one_piece(tmp_path):
    """Where each column is a piece, pandas warns of the next one, and every selection of rows copies so many."""
    values = {f"value_{number}": float(number) for number in range(150)}
    made = record.frame([stored("a") | {"values": values}])
    record.write_frame(made, tmp_path / "one.parquet")
    for frame in (made, record.read_frame(tmp_path / "one.parquet")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame["another"] = 1.0
        assert frame.loc[0, "v_value_149"] == 149.0 and frame.loc[0, "another"] == 1.0


def test_kept_records_replace_their_case_and_no_other(tmp_path):
    folder = tmp_path / "box"
    # A case that was recorded before its JSON was kept stands in the frame alone.
    folder.mkdir()
    record.write_frame(record.frame([stored("old", (9.0,))]), folder / "kpm.parquet")
    archive.pack([stored("a"), stored("b")], tmp_path / "first.zip")
    assert archive.keep(tmp_path / "first.zip", folder) == ["2 cases added, 0 replaced"]
    archive.pack([stored("b", (4.0,)), stored("c")], tmp_path / "second.zip")
    assert archive.keep(tmp_path / "second.zip", folder) == ["1 cases added, 1 replaced"]
    assert archive.load(folder / "kpm.zip") == {"a": stored("a"), "b": stored("b", (4.0,)), "c": stored("c")}
    frame = record.read_frame(folder / "kpm.parquet").set_index("case")
    assert frame["time_s"].to_dict() == {"a": 1.5, "b": 4.0, "c": 1.5, "old": 9.0}
    for case, kept in archive.load(folder / "kpm.zip").items():
        assert frame.loc[case, "record"] == record.record_id(kept)
    assert frame.loc["a", ["run_driver", "run_cublas"]].tolist() == ["580", "130200"]


def test_what_was_measured_is_not_lost_to_a_run_that_could_not(tmp_path):
    folder = tmp_path / "box"
    archive.pack([stored("a"), stored("b")], tmp_path / "first.zip")
    archive.keep(tmp_path / "first.zip", folder)
    skipped = stored("a") | {"status": "skipped", "reason": "no matrix", "methods": []}
    worse = stored("b")
    worse["methods"] = [{"method": "spmv", "status": "failed", "reason": "wrong result"}]
    archive.pack([skipped, worse, skipped | {"case": "c"}], tmp_path / "second.zip")
    assert archive.keep(tmp_path / "second.zip", folder) == [
        "1 cases added, 1 replaced",
        "a stays as it was: the new record is skipped (no matrix)",
        "b: spmv passed before and does not now",
    ]
    kept = archive.load(folder / "kpm.zip")
    assert kept["a"] == stored("a") and kept["b"] == worse and kept["c"]["status"] == "skipped"


def test_a_case_of_other_molecules_is_not_taken(tmp_path):
    folder = tmp_path / "box"
    of = {"file": "h2o.xyz sha256 1; F by A", "again": "h2o.xyz sha256 1; F by B", "other": "generated, seed 1"}
    waters = {name: stored("water", paper="spamm") | {"values": {"cluster": text}} for name, text in of.items()}
    for name, count in (("file", "1 cases added, 0 replaced"), ("other", "0 cases added, 0 replaced")):
        archive.pack([waters[name]], tmp_path / f"{name}.zip")
        assert (said := archive.keep(tmp_path / f"{name}.zip", folder))[0] == count
    assert "of h2o.xyz sha256 1, and those of the new record of generated, seed 1" in said[1]
    assert archive.load(folder / "spamm.zip")["water"] == waters["file"]
    archive.pack([waters["again"]], tmp_path / "again.zip")
    assert archive.keep(tmp_path / "again.zip", folder) == ["0 cases added, 1 replaced"]


@pytest.mark.parametrize("why", ["is not installed: name its library", "has no two-stage syevd: set its path"])
def test_what_is_not_installed_any_more_stays_with_what_it_was_compared_with(tmp_path, why):
    """A rival's ratio is of the run that had both; every other number is of the latest run."""
    folder = tmp_path / "box"

    def compared(ours, vendor, rival, at="2026-01-01"):
        made = stored("a") | {"measured_at": f"{at}T00:00:00+00:00"}
        method = made["methods"][0]
        made["methods"] = [
            method | {"method": name, "samples_s": [time] * 3} if time else
            {"method": name, "status": "skipped", "reason": f"{name} {why}"}
            for name, time in (("ours", ours), ("vendor", vendor), ("rival", rival))
        ]  # fmt: skip
        return made

    def kept(*records):
        archive.pack(records, tmp_path / "new.zip")
        said = archive.keep(tmp_path / "new.zip", folder)
        return said, record.read_frame(folder / "kpm.parquet")

    kept(compared(1.0, 2.0, 3.0), stored("b"))
    for ours in (0.5, 0.25):  # of two later runs, the second replaces the first
        said, frame = kept(compared(ours, 4.0, None, "2026-02-02"))
        assert said[0] == "0 cases added, 1 replaced" and "rival is not installed now" in said[1] and len(said) == 2
        here = frame[frame["case"] == "a"].set_index(["method", "status"])["time_s"].to_dict()
        beside = {("rival", "ok"): 3.0, ("ours", "beside"): 1.0, ("vendor", "beside"): 2.0}
        assert here == {("ours", "ok"): ours, ("vendor", "ok"): 4.0} | beside
        of = Rows(frame)
        for method, baseline, ratio in (
            ("ours", "rival", 3.0),
            ("ours", "vendor", 4.0 / ours),
            ("rival", "vendor", 2 / 3),
        ):
            assert speedups(frame, method, baseline)["speedup"].tolist() == [ratio]
            assert of.speedup(method, baseline).only().number == ratio
            assert of.over("time_s", baseline, method).only().number == pytest.approx(ratio)
        assert of.speedup("ours", "vendor", "rival").only().number == 3.0  # the faster one of both runs
        assert of.at(method="ours").column("time_s").only().number == ours
        assert record.dates(speedups(frame, "ours", "rival")) == ["2026-01-01 at 0000000"]
        assert not record.dates(speedups(frame, "ours", "vendor"))
        assert archive.load(folder / "earlier/kpm.zip") == {"a": compared(1.0, 2.0, 3.0)}
    _, frame = kept(compared(1.0, 2.0, 4.0, "2026-03-03"))
    assert set(frame["status"]) == {"ok"} and speedups(frame, "ours", "rival")["speedup"].tolist() == [4.0]
    assert not (folder / "earlier/kpm.zip").exists()


def test_cases_that_left_the_sheet_are_left_out(tmp_path):
    folder = tmp_path / "box"
    archive.pack([stored("a"), stored("old")], tmp_path / "first.zip")
    archive.keep(tmp_path / "first.zip", folder)
    archive.pack([stored("b")], tmp_path / "second.zip")
    said = archive.keep(tmp_path / "second.zip", folder, {"a", "b"})
    assert said == ["1 cases added, 0 replaced", "old is left out: no row of the sheet is called so"]
    assert set(archive.load(folder / "kpm.zip")) == {"a", "b"}
    assert set(record.read_frame(folder / "kpm.parquet")["case"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([stored("a", machine="other")], "on other"),
        ([stored("a"), stored("b", paper="evd")], "evd, kpm"),
    ],
)
def test_records_of_elsewhere_are_refused(tmp_path, records, words):
    archive.pack(records, tmp_path / "new.zip")
    with pytest.raises(ValueError, match=words):
        archive.keep(tmp_path / "new.zip", tmp_path / "box")
    assert not (tmp_path / "box").exists()


def test_unpacked_records_leave_those_that_are_there(tmp_path):
    archive.pack([stored("a"), stored("b")], tmp_path / "kpm.zip")
    record.write(stored("a", (7.0,)), tmp_path / "records/a.json")
    assert archive.unpack(tmp_path / "kpm.zip", tmp_path / "records") == 1
    assert archive.load(tmp_path / "records") == {"a": stored("a", (7.0,)), "b": stored("b")}


def test_damaged_zips_are_named(tmp_path):
    archive.pack([stored("a")], tmp_path / "kpm.zip")
    whole = (tmp_path / "kpm.zip").read_bytes()
    (tmp_path / "kpm.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(record.RecordError, match="no whole file of records"):
        archive.load(tmp_path / "kpm.zip")
    with zipfile.ZipFile(tmp_path / "kpm.zip", "w") as broken:
        broken.writestr("a.json", json.dumps(stored("a") | {"device": 1}))
    with pytest.raises(record.RecordError, match=r"a\.json in .* breaks the record schema"):
        archive.load(tmp_path / "kpm.zip")


def test_commands_keep_what_the_sheet_names_and_unpack_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    archive.pack([stored("peaks"), stored("left")], tmp_path / "kpm.zip")
    folder = ["--into", "results/recorded/box", "--study", str(Path(__file__).parents[2])]
    assert main(["keep", "--records", "kpm.zip", *folder]) == 0
    assert "left is left out: no row of the sheet is called so" in capsys.readouterr().out
    for written in (1, 0):  # what is there stays
        assert main(["unpack", "--recorded", "results/recorded/box"]) == 0
        assert f"{written} records written to results/box/records/kpm" in capsys.readouterr().out
    assert archive.load(tmp_path / "results/box/records/kpm") == {"peaks": stored("peaks")}
    assert main(["keep", "--records", "kpm.zip", "--into", "results/recorded/other", *folder[2:]]) == 2
    assert "takes one paper of other at a time" in capsys.readouterr().err
