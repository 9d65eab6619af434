"""Rivals of tSparse: where their sources are, how they are repaired and built, and what is said where that fails."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spectile_study.cases.tsparse import comparators
from spectile_study.cases.tsparse.rivals import build
from spectile_study.cases.tsparse.rivals.library import Library
from spectile_study.cases.tsparse.rivals.recipes import Repair


@pytest.mark.parametrize("name", build.RECIPES)
def test_recipe_is_whole(name):
    recipe = build.RECIPES[name]
    assert name in comparators.NAMES and recipe.title == comparators.NAMES[name]
    assert re.fullmatch("[0-9a-f]{40}", recipe.commit) and recipe.licence
    call = build.command(name, Path("source"), Path("made.so"), "sm_90")
    interface = next(word for word in call if word.endswith(f"rivals/{name}.cu"))
    text = Path(interface).read_text()
    assert "rival_guarded" in text and "rival_value_bytes" in text
    folders = {f"-I{Path('source') / folder}" for folder in recipe.includes}
    assert folders <= set(call) and set(recipe.flags) <= set(call)
    assert call[-2:] == ["-o", "made.so"] and "-arch=sm_90" in call


def test_every_rival_of_the_paper_has_a_recipe():
    assert set(build.RECIPES) == set(comparators.NAMES)


@pytest.mark.parametrize("name", [name for name, recipe in build.RECIPES.items() if recipe.repairs])
def test_repairs_take_their_places(name, tmp_path):
    repairs = build.RECIPES[name].repairs
    whole = {}
    for each in repairs:
        assert each.new != each.old and not Path(each.file).is_absolute()
        whole.setdefault(each.file, []).append(each)
    for file, parts in whole.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["// before", *(each.old for each in parts), "// after"]))
    build.repair(build.RECIPES[name], tmp_path)
    for file, parts in whole.items():
        expected = "\n".join(["// before", *(each.new for each in parts), "// after"])
        assert (tmp_path / file).read_text() == expected


@pytest.mark.parametrize("text", ["", "old old"])
def test_another_source_is_not_repaired(text, tmp_path):
    (tmp_path / "file").write_text(text)
    recipe = replace(build.RECIPES["nsparse"], repairs=(Repair("file", "old", "new"),))
    with pytest.raises(ValueError, match=f"'old' stands {text.count('old')} times in file"):
        build.repair(recipe, tmp_path)
    assert (tmp_path / "file").read_text() == text


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
    for _ in range(2):  # a second call finds the clone, repaired
        build.fetch(recipe, tmp_path / "clone")
        assert (tmp_path / "clone/file").read_text() == "first"
        (tmp_path / "clone/file").write_text("repaired")


def test_what_was_not_built_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(build.RECIPES, "speck", replace(build.RECIPES["speck"], url=str(tmp_path / "absent")))
    assert build.main(tmp_path / "into", ["speck"], "sm_90") == 1
    assert "spECK was not built" in capsys.readouterr().out


def test_missing_compiler_is_named(tmp_path, monkeypatch, capsys):
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    git(origin, "commit", "-qm", "empty", "--allow-empty")
    recipe = replace(build.RECIPES["nsparse"], url=str(origin), commit=git(origin, "rev-parse", "HEAD").strip())
    monkeypatch.setitem(build.RECIPES, "nsparse", recipe)
    monkeypatch.setattr(build, "command", lambda *_: [str(tmp_path / "absent/nvcc")])
    assert build.main(tmp_path / "into", ["nsparse"], "sm_90") == 1
    assert re.search("Nsparse was not built: .*nvcc", capsys.readouterr().out)


def test_library_is_not_called_as_an_executable(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTILE_NSPARSE", str(tmp_path / "nsparse.so"))
    monkeypatch.delenv("SPECTILE_SPECK", raising=False)
    names = {method.name for method in comparators.methods(None, 0)}
    assert "nsparse" not in names and {"speck", "opsparse", "bhsparse"} <= names
    assert comparators.library_of("nsparse") and not comparators.library_of("speck")


#: The calls of CUDA's runtime that a rival makes, on the host.
RUNTIME = """
#include <cstddef>
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation = 2 };
extern "C" cudaError_t cudaMalloc(void** address, size_t size);
extern "C" cudaError_t cudaFree(void* address);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
"""
ALLOCATOR = """
#include <cstdlib>
#include "cuda_runtime.h"
cudaError_t cudaMalloc(void** address, size_t size) {
    return size < 1u << 30 && (*address = malloc(size)) ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* address) { free(address); return cudaSuccess; }
"""
#: Holds 1,536 bytes at most, asks for more than there is, and keeps 5,120 bytes and its result of 512.
RIVAL = """
#include "rival.h"
static void* get(size_t size) { void* made = nullptr; cudaMalloc(&made, size); return made; }
static void square(const Rival* a, Rival* c) {
    static void* kept = get(5000);
    void *first = get(1000), *second = get(100), *none = get(1u << 31);
    cudaFree(first);
    *c = {kept != none, 0, (int*)get(512), nullptr, nullptr};
    cudaFree(second), cudaFree(none);
}
extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }
"""


def test_memory_of_a_call_is_counted(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    for name, text in (("cuda_runtime.h", RUNTIME), ("allocator.cpp", ALLOCATOR), ("rival.cpp", RIVAL)):
        (tmp_path / name).write_text(text)
    call = build.command("nsparse", Path("source"), Path("made.so"), "sm_90")
    wrapped = call[call.index("-Xlinker") + 1]
    folders = (f"-I{tmp_path}", f"-I{Path(build.__file__).parent}")
    flags = ("-std=c++17", "-shared", "-fPIC", "-Xlinker", *wrapped.split(",", 1)[:1])
    more = [word for part in wrapped.split(",")[1:] for word in ("-Xlinker", part)]
    sources = (str(tmp_path / "rival.cpp"), str(tmp_path / "allocator.cpp"))
    subprocess.run(["g++", *flags, *more, *folders, *sources, "-o", str(tmp_path / "rival.so")], check=True)
    rival = ctypes.CDLL(str(tmp_path / "rival.so"))
    rival.rival_most_bytes.restype = ctypes.c_longlong
    buffers = [ctypes.create_string_buffer(64) for _ in range(3)]
    for kept, c in zip((5120, 0, 0), buffers, strict=True):
        assert rival.rival_square(None, c) == 0
        assert rival.rival_most_bytes() == kept + 1024 + 512
    rival.rival_release(buffers[0])
    assert rival.rival_square(None, buffers[0]) == 0
    assert rival.rival_most_bytes() == 1024 + 512


def test_library_without_the_count_has_no_memory(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    functions = ("int rival_square() { return 0; }", "void rival_release() {}", "int rival_value_bytes() { return 4; }")
    (tmp_path / "old.cpp").write_text("\n".join(f'extern "C" {one}' for one in functions))
    subprocess.run(["g++", "-shared", "-fPIC", "old.cpp", "-o", "old.so"], cwd=tmp_path, check=True)
    assert Library(tmp_path / "old.so").most_bytes is None
