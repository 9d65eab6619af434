"""The command line: each command shows what it does, an example, its defaults; no wrong use ends in a traceback."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from spectile.__main__ import main as library
from spectile_study.__main__ import _parser, main

ROOT = Path(__file__).parents[2]
(COMMANDS,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
#: Those that other programs call are not told.
SHOWN = {action.dest: COMMANDS.choices[action.dest] for action in COMMANDS._choices_actions}


@pytest.mark.parametrize("name", SHOWN)
def test_help_has_a_description_an_example_that_parses_and_defaults(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0 and SHOWN[name].description in told
    program, *arguments = shlex.split(re.fullmatch(r"example:\s+(.*)", SHOWN[name].epilog).group(1))
    assert program == "spectile-study" and arguments[0] == name
    assert _parser().parse_args(arguments).command.__module__ == "spectile_study.__main__"
    for action in SHOWN[name]._actions:
        if isinstance(action.default, str | int | float | Path) and action.default and action.option_strings[0] != "-h":
            assert f"(default: {action.default})" in told or "default" in (action.help or "")


def values(folder):
    """Paths and numbers of which no command can make anything."""
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    for name, held in {
        "empty": b"", "garbage": b"\xff\x00 nonsense", "garbage.parquet": b"PAR1 nonsense",
        "garbage.zip": b"PK\x03\x04 nonsense", "list.json": b"[1, 2]", "number.json": b"3",
    }.items():  # fmt: skip
        (folder / name).write_bytes(held)
    names = [path.name for path in sorted(folder.iterdir())]
    return [*names, "missing", "", "x" * 300, "a\0b", "nan", "-1", "1e400"]


USES = {
    "fetch": "--matrix nonesuch --base-url file:///nowhere",
    "measure": "--paper kpm --case nonesuch --machine m --device cpu --sheet s --schema s --out-dir d --input i",
    "make-input": "--kind decay --name nonesuch --resources r --receipt r.json --seed 1",
    "gather": "--records missing --onto missing --out o.parquet --zip z.zip",
    "keep": "--records missing --into rec/m",
    "unpack": "--recorded missing",
    "draw": "--paper kpm --element nonesuch --from missing --results r",
    "claims": "--frames missing --claims missing --out o.html",
    "machines": "--machine m --frames missing --claims missing --out o",
    "everyday": "--machine m --device cpu --system nonesuch --set {} --out o",
    "draw-everyday": "--from missing --results r",
    "export": "--machine m --out o",
    "compare": "missing missing",
}


def refused(program, arguments, capsys):
    """Check that a use ends in a sentence on standard error and status 2."""
    try:
        status = program(arguments)
    except SystemExit as left:
        status = left.code
    told = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and told and "Traceback" not in told[0], arguments
    assert len(told[-1]) > 30 and "[Errno" not in told[-1] and "invalid literal" not in told[-1], (arguments, told[-1])


@pytest.mark.parametrize("name", SHOWN)
def test_a_wrong_use_is_one_sentence(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    usual = [name, *shlex.split(USES[name])]
    if hasattr(SHOWN[name].parse_args(usual[1:]), "study"):
        usual += ["--study", str(ROOT)]
    refused(main, [name, "--nonesuch"], capsys)
    refused(main, usual, capsys)
    for value in values(tmp_path):
        for place in range(1, len(usual)):
            if not usual[place].startswith("--") and usual[place - 1] not in ("--machine", "--study"):
                refused(main, [*usual[:place], value, *usual[place + 1 :]], capsys)


@pytest.mark.parametrize(
    "arguments", [[], ["frobnicate"], ["compile"], ["compile", "--arch", "sm_1"], ["probe", "--of"]], ids=" ".join
)
def test_a_wrong_use_of_the_library_is_one_sentence(arguments, capsys):
    refused(library, arguments, capsys)
