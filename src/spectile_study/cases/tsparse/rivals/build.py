"""Fetch and build the rivals of tSparse that compile for today's devices, each as a library with one interface.

``python -m spectile_study rivals --into FOLDER`` clones each repository at the recorded commit and compiles it with the
interface of ``rival.h``; it prints the environment variables that the study finds the libraries by.  Git and CUDA's
``nvcc`` are needed, no device is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """Where a rival's source is, and how it is built.

    Attributes
    ----------
    title, url, commit, licence : str
        How it is called, its repository, the commit that is built, and its licence.
    includes, sources : tuple of str
        Folders of headers and further sources, in the repository.
    flags : tuple of str
        Further flags of ``nvcc``.
    """

    title: str
    url: str
    commit: str
    licence: str
    includes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    flags: tuple[str, ...] = field(default=())


RECIPES = {
    "nsparse": Recipe(
        "Nsparse",
        "https://github.com/EBD-CREST/nsparse",
        "070065c516e025a00cbdbe1b479d5144c2109a22",
        "MIT",
        ("cuda-cpp/inc",),
    ),
    "speck": Recipe(
        "spECK",
        "https://github.com/GPUPeople/spECK",
        "2f84623087d536b5ae6e71d08db754941f60667a",
        "MIT",
        ("include",),
        (
            "source/GPU/Multiply.cu",
            "source/GPU/memory.cpp",
            *(f"source/{name}.cpp" for name in ("dCSR", "CSR", "COO", "Config")),
        ),
        (
            *("--expt-extended-lambda", "--expt-relaxed-constexpr", "-D_FORCE_INLINES"),
            *("-include", "cub/iterator/transform_input_iterator.cuh"),  # cub::Min and cub::Max, before all else
        ),
    ),
    "opsparse": Recipe(
        "OpSparse",
        "https://github.com/lorentzbf/OpSparse",
        "0134b0c5b4e20cde1956850aa22b8793ae9c14e8",
        "MIT",
        ("OpSparse", "OpSparse/inc"),
        tuple(f"OpSparse/src/{name}.cu" for name in ("Meta", "CSR", "Timings")),
        ("-Xcompiler", "-fopenmp"),
    ),
}


def fetch(recipe: Recipe, folder: Path) -> None:
    """Clone a repository into `folder`, unless it is there, and check its recorded commit out."""
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", recipe.url, str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", recipe.commit], check=True)


def command(name: str, folder: Path, library: Path, arch: str) -> list[str]:
    """Return the call of ``nvcc`` that builds `library` from the source in `folder`."""
    recipe = RECIPES[name]
    folders = [str(folder / include) for include in recipe.includes]
    return [
        *("nvcc", f"-arch={arch}", "-O3", "-std=c++17", "-w", "-shared", "-Xcompiler", "-fPIC"),
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
        try:
            fetch(RECIPES[name], into / f"{name}-source")
            subprocess.run(command(name, into / f"{name}-source", into / f"{name}.so", arch), check=True)
            failed[name] = ""
        except (OSError, subprocess.CalledProcessError) as error:
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
