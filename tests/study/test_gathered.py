"""Records that are gathered are judged again by what they hold: none that contradicts itself enters a frame."""

import json
import zipfile

import pytest

from spectile_study.__main__ import main
from spectile_study.bench import record

from .test_archive import stored

WHOLE = stored("a")


def method(**changes):
    return [WHOLE["methods"][0] | changes]


CONTRADICTIONS = {
    "above its limit": ({"methods": method(errors={"error_fro_rel": 2e-9})}, "error_fro_rel = 2e-09 (allowed 1e-12)"),
    "not a number": ({"methods": method(errors={"error_fro_rel": "nan"})}, "error_fro_rel"),
    "another is not a number": (
        {"methods": method(errors={"error_fro_rel": 0.0, "error_max": "nan"})},
        "error_max is not a number",
    ),
    "no error": ({"methods": method(errors={}, limits={})}, "no error was computed"),
    "an error lacks": ({"methods": method(errors={"error_max": 0.0})}, "no error_fro_rel was computed"),
    "no samples": ({"methods": method(samples_s=[])}, "clock wall and 0 samples"),
    "samples without a clock": ({"methods": method(clock="none")}, "clock none and 2 samples"),
    "a method twice": ({"methods": method() + method(samples_s=[3.0])}, "the method spmv stands 2 times"),
    "a negative sample": ({"methods": method(samples_s=[-1.0])}, "samples_s"),
    "another case": ({"case": "b"}, "holds the case 'b'"),
    "another paper": ({"paper": "evd"}, "holds the paper 'evd'"),
}
TEXTS = {
    "a NaN sample": ("1.0,", "NaN,", "NaN is no finite number"),
    "an infinite sample": ("1.0,", "1e999,", "1e999 is no finite number"),
    "a key twice": ('"case": "a"', '"case": "a", "case": "a"', "the key 'case' stands twice"),
    "a key of a method twice": ('"clock":', '"clock": "none", "clock":', "the key 'clock' stands twice"),
    "half of it": ('"methods"', "", "is not a whole record"),
}
BROKEN = [json.dumps(WHOLE | changes) for changes, _ in CONTRADICTIONS.values()]
BROKEN += [
    json.dumps(WHOLE).replace(old, new) if new else json.dumps(WHOLE).partition(old)[0]
    for old, new, _ in TEXTS.values()
]
SAID = [said for *_, said in (*CONTRADICTIONS.values(), *TEXTS.values())]


@pytest.mark.parametrize(("text", "said"), list(zip(BROKEN, SAID, strict=True)), ids=[*CONTRADICTIONS, *TEXTS])
@pytest.mark.parametrize("zipped", [False, True], ids=["file", "zip"])
def test_what_contradicts_itself_is_refused_by_name(tmp_path, capsys, text, said, zipped):
    folder = tmp_path / "records/kpm"
    record.write(stored("whole"), folder / "whole.json")
    place = folder / "a.json"
    place.write_text(text)
    if zipped:
        place.unlink()
        place = tmp_path / "kpm.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("a.json", text)
    out = tmp_path / "kpm.parquet"
    assert main(["gather", "--records", str(place if zipped else folder), "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert "a.json" in printed and str(tmp_path) in printed and said in printed, printed
    assert printed.count("\n") == 1 and not out.exists()
    assert main(["gather", "--records", str(folder / "whole.json"), "--out", str(out)]) == 0
    assert record.read_frame(out)["case"].tolist() == ["whole"]


def test_a_record_that_contradicts_itself_is_never_written(tmp_path):
    with pytest.raises(record.RecordError, match="its result is wrong"):
        record.write(WHOLE | {"methods": method(errors={"error_fro_rel": 1.0})}, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_a_case_comes_from_one_place(tmp_path, capsys):
    for folder in ("one", "two"):
        record.write(WHOLE, tmp_path / folder / "a.json")
    places = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["gather", "--records", *places, "--out", str(tmp_path / "f.parquet")]) == 2
    assert "the case a comes from several" in capsys.readouterr().err
    assert not (tmp_path / "f.parquet").exists()
