"""Fetch and build the rivals of tSparse that compile for today's devices, each as a library with one interface.

``python -m spectile_study rivals --into FOLDER`` clones each repository at the recorded commit, repairs what today's
CUDA does not take (``recipes.py`` says what), and compiles it with the interface of ``rival.h``; it prints the
environment variables that the study finds the libraries by.  Git and CUDA's ``nvcc`` are needed, no device is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from spectile_study.cases.tsparse.rivals.recipes import RECIPES, Recipe

_HERE = Path(__file__).parent


def fetch(recipe: Recipe, folder: Path) -> None:
    """Clone a repository into `folder`, unless it is there, and check its recorded commit out, without changes."""
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", recipe.url, str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", "--force", recipe.commit], check=True)


def repair(recipe: Recipe, folder: Path) -> None:
    """Make the recipe's replacements in the source in `folder`.

    Raises
    ------
    ValueError
        If what is to be replaced does not stand in its file exactly once.
    """
    for each in recipe.repairs:
        path = folder / each.file
        text = path.read_text(errors="surrogateescape")
        if (count := text.count(each.old)) != 1:
            raise ValueError(f"{each.old!r} stands {count} times in {each.file}, not once: fetch the source anew")
        path.write_text(text.replace(each.old, each.new), errors="surrogateescape")


def command(name: str, folder: Path, library: Path, arch: str) -> list[str]:
    """Return the call of ``nvcc`` that builds `library` from the source in `folder`.

    Each library keeps its static variables to itself (``-fno-gnu-unique``), as several are loaded in one process.
    """
    recipe = RECIPES[name]
    folders = [str(folder / include) for include in recipe.includes]
    return [
        *("nvcc", f"-arch={arch}", "-O3", "-std=c++17", "-w", "-shared", "-Xcompiler", "-fPIC,-fno-gnu-unique"),
        *("-Xlinker", "--wrap=cudaMalloc,--wrap=cudaFree"),  # counted in rival.h
        *recipe.flags,
        *(f"-I{each}" for each in (_HERE, _HERE / "shims", *folders)),
        str(_HERE / f"{name}.cu"),
        *(str(folder / source) for source in recipe.sources),
        *("-o", str(library)),
    ]


def build(names: Iterable[str], into: Path, arch: str) -> dict[str, str]:
    """Fetch and build `names` below the folder `into`; return why it failed, or nothing, for each."""
    into.mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in names:
        source = into / f"{name}-source"
        try:
            fetch(RECIPES[name], source)
            repair(RECIPES[name], source)
            subprocess.run(command(name, source, into / f"{name}.so", arch), check=True)
            failed[name] = ""
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            failed[name] = str(error)
    return failed


def main(into: Path, names: Iterable[str], arch: str) -> int:
    """Build, and print what to set; 1 where one failed."""
    results = build(names, into, arch)
    for name, error in results.items():
        if error:
            print(f"# {RECIPES[name].title} was not built: {error}")
        else:
            print(f"export SPECTILE_{name.upper()}={(into / name).resolve()}.so")
    return int(any(results.values()))
