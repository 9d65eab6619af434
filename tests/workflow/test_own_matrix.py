"""CONTRIBUTING's steps for a matrix of one's own, run as they stand, for each kind of file."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.io
import scipy.sparse
import yaml

from spectile_study import make_inputs
from spectile_study.bench import record, sheets
from spectile_study.inputs import own, suitesparse
from spectile_study.plan import Plan

from .conftest import ROOT

FUNCTION = """
import scipy.sparse


def matrix():
    return scipy.sparse.diags([1.0, 4.0, 1.0], [-1, 0, 1], shape=(60, 60))
"""


def bridge():
    return scipy.sparse.csr_array(scipy.sparse.random(60, 60, 0.1, random_state=1))


def write(path):
    """Write a small matrix as the ending of `path` says."""
    if path.suffix == ".mtx":
        scipy.io.mmwrite(path, bridge(), precision=17)
    elif path.suffix == ".mat":  # as the SuiteSparse collection's files are
        scipy.io.savemat(path, {"Problem": {"name": "bridge", "A": scipy.sparse.csc_matrix(bridge())}})
    elif path.suffix == ".npz":
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(bridge()))
    else:
        path.write_text(FUNCTION)


def steps():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"  ```console\n(.*?)  ```", text.partition("*A matrix of your own*")[2], re.DOTALL)[1]
    copy, add, run = re.findall(r"^  \$ (.*)$", block, re.MULTILINE)
    return copy, add, run


def shell(line, folder, home):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(home), "PATH": path}
    return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)


def test_steps_of_contributing_for_every_kind_of_file(workflow_copy, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    copy, add, run = steps()
    for ending in own.ENDINGS:
        write(home / f"bridge{ending}")
        for line in (copy, add):
            line = line.replace("bridge.mtx", f"bridge{ending}").replace("'bridge", f"'bridge_{ending[1:]}")
            done = shell(line, workflow_copy, home)
            assert done.returncode == 0, done.stderr
    cases = [f"bridge_{ending[1:]}" for ending in own.ENDINGS]
    targets = " ".join(run.split()[-1].replace("bridge", case) for case in cases)
    run = " ".join([*run.split()[:-1], targets])
    done = shell(run, workflow_copy, home)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = {case: record.read(workflow_copy / f"results/this/records/tsparse/{case}.json") for case in cases}
    contents = set()
    for case, ending in zip(cases, own.ENDINGS, strict=True):
        each = stored[case]
        assert each["status"] == "ok" and any(method.get("samples_s") for method in each["methods"]), each["reason"]
        receipt = json.loads((workflow_copy / f"resources/inputs/own/bridge{ending}.json").read_text())
        assert each["inputs"][f"own_bridge{ending}"] == receipt["sha256"]
        assert receipt["source_sha256"] == hashlib.sha256((home / f"bridge{ending}").read_bytes()).hexdigest()
        contents.add(receipt["sha256"])
    assert len(contents) == 2  # three files of one matrix, and the function's
    assert stored["bridge_py"]["values"]["nnz"] == 178

    # Another content is measured again, the same under a new time is not.
    os.utime(workflow_copy / "own/bridge.npz")
    scipy.io.mmwrite(workflow_copy / "own/bridge.mtx", 2 * bridge())
    assert shell(run, workflow_copy, home).returncode == 0
    after = {case: record.read(workflow_copy / f"results/this/records/tsparse/{case}.json") for case in cases}
    assert {case for case in cases if after[case] != stored[case]} == {"bridge_mtx"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("own/nowhere.mtx", "is not there: put the file into the folder own"), ("own/bridge.txt", "use letters")],
)
def test_a_row_that_names_no_matrix_is_refused_in_one_sentence(workflow_copy, monkeypatch, name, words):
    monkeypatch.chdir(workflow_copy)
    sheet = workflow_copy / "config/tsparse.tsv"
    sheet.write_text(sheet.read_text() + f"bridge\tquick\tmatrices\t\t1\t1\t{name}\town\t\t\n")
    with pytest.raises(sheets.SheetError, match=f"config/tsparse.tsv: the matrix {name} of the case bridge.*{words}"):
        Plan(yaml.safe_load((ROOT / "config/config.yaml").read_text()), workflow_copy).check()


@pytest.mark.parametrize(
    ("ending", "content", "words"),
    [
        (".mtx", b"nothing of the kind", "cannot be read as a matrix"),
        (".npz", b"PK", "cannot be read as a matrix"),
        (".py", b"matrix = 3", "cannot be read as a matrix"),
        (".py", b"def matrix(): return 3", "holds no sparse matrices"),
    ],
)
def test_what_is_no_matrix_is_named(tmp_path, ending, content, words):
    path = tmp_path / f"bridge{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"bridge\{ending}.* {words}.*give a file with one real sparse matrix"):
        own.read(path)


def test_own_matrices_are_read_where_a_rule_took_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(suitesparse.MissingMatrix, match=r"own/bridge\.npz has not been taken"):
        suitesparse.matrix("own/bridge.npz", tmp_path / "resources")
    (tmp_path / "own").mkdir()
    write(tmp_path / "own/bridge.npz")
    receipt = make_inputs.make("own", "bridge.npz", tmp_path / "resources", 1)
    assert receipt["status"] == "ok" and receipt["parameters"]["rows"] == 60
    taken = suitesparse.matrix("own/bridge.npz", tmp_path / "resources")
    assert abs(taken - bridge()).max() == 0
