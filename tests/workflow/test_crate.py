"""A finished run as a Workflow Run RO-Crate: whole, hashed, and following the profile."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile

import pytest

from spectile_study.bench import archive

from .faulty import workflow as faulty

pytest.importorskip("rocrate", reason="the rocrate library is not installed: pip install rocrate")


def export(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "spectile_study", "export", *options],
        cwd=folder,
        env=faulty.environment(folder),
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(finished_run, tmp_path_factory):
    return shutil.copytree(finished_run, tmp_path_factory.mktemp("crate") / "copy", symlinks=True)


def test_crate_follows_the_profile(finished):
    done = export(finished, "--out", "crate")
    assert done.returncode == 0, done.stderr
    graph = json.loads((finished / "crate/ro-crate-metadata.json").read_text())
    assert "https://w3id.org/ro/terms/workflow-run/context" in graph["@context"]
    entities = {entity["@id"]: entity for entity in graph["@graph"]}
    # The profiles build on RO-Crate 1.1, and their validator (roc-validator) takes no other.
    assert "https://w3id.org/ro/crate/1.1/context" in graph["@context"]
    assert {"@id": "https://w3id.org/ro/crate/1.1"} in entities["ro-crate-metadata.json"]["conformsTo"]
    root = entities["./"]
    assert {item["@id"].rsplit("/", 1)[0] for item in root["conformsTo"]} == {
        "https://w3id.org/ro/wfrun/process",
        "https://w3id.org/ro/wfrun/workflow",
        "https://w3id.org/workflowhub/workflow-ro-crate",
    }
    assert root["license"] and root["datePublished"] and root["name"] and root["description"]
    workflow = entities[root["mainEntity"]["@id"]]
    assert set(workflow["@type"]) == {"File", "SoftwareSourceCode", "ComputationalWorkflow"}
    assert "snakemake" in workflow["programmingLanguage"]["@id"].lower()
    parts = {item["@id"] for item in workflow["hasPart"]}
    assert {"workflow/Snakefile", "pyproject.toml", "src/spectile/__init__.py"} <= parts | {
        name for name in ("pyproject.toml", "src/spectile/__init__.py") if not (finished / name).exists()
    }
    (action,) = root["mentions"] if isinstance(root["mentions"], list) else [root["mentions"]]
    action = entities[action["@id"]]
    assert action["@type"] == "CreateAction" and action["instrument"]["@id"] == "Snakefile"
    assert action["startTime"] <= action["endTime"]
    made = {item["@id"] for item in action["result"]}
    assert {
        "results/this/records/kpm/one.json",
        "results/this/kpm.parquet",
        "results/this/figures/kpm_fig1.svg",
    } <= made
    assert {"config/kpm.tsv", "results/this/config.yaml"} <= {item["@id"] for item in action["object"]}
    for entity in entities.values():
        if "sha256" in entity:
            content = (finished / "crate" / entity["@id"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == entity["sha256"]
            assert len(content) == entity["contentSize"]
        elif entity["@type"] == "File":
            assert (finished / "crate" / entity["@id"]).exists()


def test_crate_as_one_file(finished):
    assert export(finished, "--out", "run.zip").returncode == 0
    with zipfile.ZipFile(finished / "run.zip") as packed:
        assert {"ro-crate-metadata.json", "Snakefile", "results/this/claims.html"} <= set(packed.namelist())


def test_recorded_measurements_as_a_crate(finished, tmp_path):
    folder = finished / "results/recorded/box"
    records = archive.load(finished / "results/this/kpm.zip")
    archive.pack([stored | {"machine": "box"} for stored in records.values()], tmp_path / "kpm.zip")
    archive.keep(tmp_path / "kpm.zip", folder)
    done = export(finished, "--machine", "box", "--recorded", "--out", "recorded.zip")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(finished / "recorded.zip") as packed:
        graph = {each["@id"]: each for each in json.loads(packed.read("ro-crate-metadata.json"))["@graph"]}
        kept = packed.read("results/recorded/box/kpm.zip")
    about = graph["results/recorded/box/kpm.zip"]
    assert about["sha256"] == hashlib.sha256(kept).hexdigest() and "2 cases" in about["description"]
    assert graph["#run"]["startTime"] == min(stored["measured_at"] for stored in records.values())
    done = export(finished, "--machine", "nobody", "--recorded", "--out", "other")
    assert done.returncode == 2 and "holds no zip of records" in done.stderr


def test_what_cannot_be_exported_is_worded(finished):
    (finished / "there").mkdir()
    done = export(finished, "--out", "there")
    assert done.returncode == 2 and "is there already" in done.stderr
    done = export(finished, "--machine", "nobody", "--out", "other")
    assert done.returncode == 2 and "holds no finished run" in done.stderr
