"""Nothing from outside is run: no pickles, no shell holes through configuration or names, checked downloads alone."""

import ast
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from snakemake.utils import format as fill

from spectile_study.bench import sheets
from spectile_study.bench.measure import processes
from spectile_study.inputs import suitesparse

from .conftest import ROOT, snakemake

SCHEMA = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
DEFAULTS = yaml.safe_load((ROOT / "config/config.yaml").read_text())
RULES = sorted(ROOT.glob("workflow/rules/*.smk"))
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/scripts/**/*.py")])
HOSTILE = [
    "a b",
    "a'b",
    'a"b',
    "$(touch hole)",
    "`touch hole`",
    "a;touch hole",
    "a\ntouch hole",
    "a\\",
    "../a",
    "-a",
    "{a}",
]
# What reaches a shell unquoted is a closed set (papers, cases, backends) or a number.
CLOSED = {"wildcards.paper", "wildcards.case", "wildcards.element", "params.options", "threads", "output", "log"}
# Compiled code of the CPU is loaded from a folder that only this user can write (tests/cpu/core/test_jit.py).
UNPICKLES = {ROOT / "src/spectile/core/jit.py"}
letters = st.characters(exclude_characters="\0", codec="utf-8")
hostile_text = st.one_of(st.sampled_from(HOSTILE), st.text(letters, min_size=1, max_size=30))


def calls(path):
    """Return each call in a source with the dotted name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: word.value for word in node.keywords}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_load_no_code_and_start_no_shell(path):
    text = path.read_text()
    loads = re.search(r"^\s*(import|from) (pickle|cPickle|marshal|shelve|dill|joblib|cloudpickle)\b", text, re.M)
    assert bool(loads) == (path in UNPICKLES)
    for name, keywords in calls(path):
        last = name.rpartition(".")[2]
        assert name not in {"eval", "exec", "os.system", "os.popen", "yaml.load", "torch.load"}
        assert last not in {"extractall", "urlopen", "urlretrieve", "read_pickle", "unpack_archive"}
        shell, pickles = keywords.get("shell"), keywords.get("allow_pickle")
        assert shell is None or ast.unparse(shell) == "False"
        assert pickles is None or ast.unparse(pickles) == "False"
        # One place downloads, and it checks addresses, sizes and digests.
        assert not name.startswith("requests.") or path.name == "download.py"


def shells():
    """Return the shell commands of all rules, as Snakemake sees them."""
    for path in RULES:
        for block in re.findall(r"^ +shell:\n((?: +f?\".*\n)+)", path.read_text(), re.M):
            yield path.name, ast.literal_eval("(" + block + ")")


def test_rules_quote_what_is_not_a_closed_set():
    found = list(shells())
    assert len(found) == sum(path.read_text().count("    shell:") for path in RULES) >= 3
    for name, command in found:
        for field in re.findall(r"{([^{}]*)}", command):
            assert field.endswith(":q") or field in CLOSED - {"output", "log"}, f"{name}: {{{field}}} is not quoted"


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Return a folder whose ``python`` writes its arguments to the file that ECHO names."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "$ECHO"\n')
    (folder / "python").chmod(0o755)
    return folder


@settings(max_examples=60)
@given(matrix=hostile_text, url=hostile_text)
@example(matrix="$(touch hole)", url="'; touch hole; '")
def test_fetch_command_hands_over_what_it_was_given(echo, matrix, url):
    command = next(command for name, command in shells() if name == "inputs.smk")

    wildcards, params = type("W", (), {"matrix": matrix}), type("P", (), {"base_url": url, "study": "."})
    line = fill(command, wildcards=wildcards, params=params, output=str(echo / "out"), log=str(echo / "log"))
    environment = {"PATH": f"{echo}:/usr/bin:/bin", "ECHO": str(echo / "arguments")}
    subprocess.run(["bash", "-c", line], cwd=echo, env=environment, check=True)
    given_ = (echo / "arguments").read_bytes().decode().split("\0")
    assert given_[given_.index("--matrix") + 1] == matrix
    assert given_[given_.index("--base-url") + 1] == url
    assert not (echo / "hole").exists()


@given(value=hostile_text)
@example(value="this\n")
@example(value="a/../../b")
def test_machine_names_that_are_accepted_are_names(value):
    try:
        sheets.validate(DEFAULTS | {"machine": value}, SCHEMA, "test")
    except sheets.SheetError:
        return
    assert re.fullmatch(r"[A-Za-z0-9_-]+", value)


@settings(max_examples=200)
@given(start=st.sampled_from(("https://", "file://", "http://127.0.0.1", "http://", "ftp://", "")), value=hostile_text)
@example(start="https://", value="host/$(touch hole)")
@example(start="http://127.0.0.1", value=".example.org/")
@example(start="https://", value="host\n")
def test_addresses_that_are_accepted_hold_nothing_for_a_shell(start, value):
    try:
        sheets.validate(DEFAULTS | {"suitesparse_url": start + value}, SCHEMA, "test")
    except sheets.SheetError:
        return
    assert re.fullmatch(r"(https://|file:///|http://127\.0\.0\.1[:/]).*", start + value)
    assert not set(start + value) & set("\"'`$\\|<>(){}*! \t\n")


@given(key=hostile_text, value=hostile_text)
def test_no_other_text_passes_the_configuration(key, value):
    with pytest.raises(sheets.SheetError):
        sheets.validate(DEFAULTS | {key: value}, SCHEMA, "test")
    for name, item in SCHEMA["properties"].items():
        if "enum" in item or item["type"] in {"integer", "number", "array"}:
            with pytest.raises(sheets.SheetError):
                sheets.validate(DEFAULTS | {name: value}, SCHEMA, "test")


@settings(max_examples=100)
@given(name=hostile_text)
@example(name="../../hole")
@example(name="a/../../hole")
@example(name="/tmp/hole/x")
def test_matrix_names_stay_in_their_folder(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "names"
    folder.mkdir(exist_ok=True)
    with pytest.raises(ValueError):
        suitesparse.fetch(name, (folder / "mirror").as_uri(), folder / "resources")
    assert {path.name for path in folder.iterdir()} <= {"resources"}


@pytest.mark.parametrize("hostile", ["machine=a$(touch hole)", "suitesparse_url=https://x/$(touch hole)"])
def test_snakemake_refuses_hostile_values(workflow_copy, hostile):
    done = snakemake(workflow_copy, "--cores", "1", "smoke", "--config", hostile, check=False)
    assert done.returncode != 0
    assert "the configuration" in done.stderr
    assert not list(workflow_copy.rglob("hole"))


@pytest.mark.parametrize("paper", [path.name.split(".")[0] for path in ROOT.glob("workflow/schemas/*.schema.yaml")])
def test_sheets_take_only_safe_cases(paper):
    schema = yaml.safe_load((ROOT / f"workflow/schemas/{paper}.schema.yaml").read_text())
    assert schema["additionalProperties"] is False
    if paper not in ("config", "everyday"):  # which are no sheets
        assert schema["properties"]["case"]["pattern"] == "^[a-z0-9_]+$"


def test_compiled_kernels_come_from_our_own_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    (folder,) = processes.kernel_cache().values()
    assert Path(folder).parent == tmp_path and Path(folder).stat().st_mode & 0o777 == 0o700
    os.chmod(folder, 0o777)
    assert processes.kernel_cache() == {}
    Path(folder).rmdir()
    Path(folder).symlink_to(tmp_path / "elsewhere")
    assert processes.kernel_cache() == {}
    monkeypatch.setenv("CUPY_CACHE_DIR", "chosen")
    assert processes.kernel_cache() == {}
