"""Rivals of tSparse: where their sources are, how they are built, and what is said where that fails."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spectile_study.cases.tsparse import comparators
from spectile_study.cases.tsparse.rivals import build


@pytest.mark.parametrize("name", build.RECIPES)
def test_recipe_is_whole(name):
    recipe = build.RECIPES[name]
    assert name in comparators.NAMES and recipe.title == comparators.NAMES[name]
    assert re.fullmatch("[0-9a-f]{40}", recipe.commit) and recipe.licence == "MIT"
    call = build.command(name, Path("source"), Path("made.so"), "sm_90")
    interface = next(word for word in call if word.endswith(f"rivals/{name}.cu"))
    text = Path(interface).read_text()
    assert "rival_guarded" in text and "rival_value_bytes" in text
    assert {f"-Isource/{folder}" for folder in recipe.includes} <= set(call)
    assert call[-2:] == ["-o", "made.so"] and "-arch=sm_90" in call


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True, text=True).stdout


def test_recorded_commit_is_checked_out(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    for word in ("first", "second"):
        (origin / "file").write_text(word)
        git(origin, "add", "file")
        git(origin, "commit", "-qm", word)
    first = git(origin, "rev-list", "--max-parents=0", "HEAD").strip()
    recipe = replace(build.RECIPES["nsparse"], url=str(origin), commit=first)
    for _ in range(2):  # a second call finds the clone
        build.fetch(recipe, tmp_path / "clone")
        assert (tmp_path / "clone/file").read_text() == "first"


def test_what_was_not_built_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(build.RECIPES, "speck", replace(build.RECIPES["speck"], url=str(tmp_path / "absent")))
    assert build.main(tmp_path / "into", ["speck"], "sm_90") == 1
    assert "spECK was not built" in capsys.readouterr().out


def test_library_is_not_called_as_an_executable(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTILE_NSPARSE", str(tmp_path / "nsparse.so"))
    monkeypatch.delenv("SPECTILE_SPECK", raising=False)
    names = {method.name for method in comparators.methods(None, 0)}
    assert "nsparse" not in names and {"speck", "opsparse", "bhsparse"} <= names
    assert comparators.library_of("nsparse") and not comparators.library_of("speck")
