"""The package as a user meets it: light to import, its public names where they should be."""

import doctest
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import scipy.sparse
import yaml

import spectile


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_nothing_is_kept_that_git_ignores():
    """What tools write beside the sources, as coverage does, names machines and goes stale."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        pytest.skip("no repository")
    listed = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert not subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout


def test_example_of_the_readme_prints_what_it_shows_and_keeps_its_promise():
    text = (Path(__file__).parents[3] / "README.md").read_text()
    lines = run(text.partition("```python\n")[2].partition("```")[0])
    assert lines == text.partition("```text\n")[2].partition("```")[0]
    error, guaranteed = map(float, re.search(r"error (\S+), guaranteed (\S+)", lines).groups())
    assert 0 < error <= guaranteed <= 1e-6


def test_examples_of_the_guide_run():
    text = (Path(__file__).parents[3] / "docs/guide.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    lines = run("\n".join(blocks)).splitlines()
    for line, rtol in zip(lines, (1e-3, 1e-6, 1e-9), strict=False):
        error, bound = map(float, re.search(r"error (\S+) of (\S+)$", line).groups())
        assert line.startswith(f"{rtol:g}: tau ") and error <= bound
    tau, valid_ratio = map(float, lines[3].split())  # spamm_threshold
    assert f"tau {tau:.3g}, {valid_ratio:.1%} valid" in lines[1]
    assert float(lines[4].split()[1]) < 1e-12  # spgemm
    assert lines[5] == "True" and float(lines[6]) < 1e-12  # its bound in float16, and a kept pattern
    assert float(lines[7]) < 1e-12  # its values alone
    assert float(lines[8]) < 1e-13 and lines[9] == "(10,) (600, 10) True"  # eigh
    assert float(lines.pop(10)) < 1e-10 and float(lines.pop(10)) < 1e-12 and lines.pop(10) == "(2, 20)"  # and relatives
    assert abs(float(lines[10].split()[1]) - 7200) < 1e-6  # kpm_dos
    assert abs(float(lines[11].split()[0]) - 3600) < 40
    assert lines[12].startswith("(256, 2) [1.") and lines[13] == "1000" and len(lines) == 14


def test_import_is_light():
    heavy = "('numba', 'cupy', 'pandas', 'matplotlib', 'scipy')"
    assert run(f"import sys, spectile; print([m for m in {heavy} if m in sys.modules])").strip() == "[]"


@pytest.mark.parametrize("name", spectile.__all__)
def test_public_names_are_documented(name):
    assert getattr(spectile, name).__doc__


PUBLIC = {
    f"{package}.{name}": value
    for package in ("nearsparse", "tsparse", "evd", "kpm", "tiles", "density")
    for name in getattr(spectile, package).__all__
    if callable(value := getattr(getattr(spectile, package), name))
}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_of_docstrings_run(name):
    said = []
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs={}):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def test_packages_need_no_import_of_their_own():
    code = "import spectile; print(spectile.tsparse.error_bound.__name__, spectile.kpm.ldos.__name__, *dir(spectile))"
    error_bound, ldos, *names = run(code).split()
    assert (error_bound, ldos) == ("error_bound", "ldos")
    assert {"spamm", "kpm_dos", "kpm", "tsparse", "nearsparse", "__version__"} <= set(names)
    assert not {"importlib", "Any", "TYPE_CHECKING"} & set(names)


def test_version_is_the_same_everywhere():
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    study = tomllib.loads((root / "src/spectile_study/pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    cubins = tomllib.loads((root / "src/spectile_cubins/pyproject.toml").read_text())["project"]
    assert cubins["version"] == project["version"] and cubins["dependencies"] == study["dependencies"][:1]
    assert project["optional-dependencies"]["hopper"] == [f"spectile-cubins=={spectile.__version__}"]
    assert project["version"] == study["version"] == citation["version"] == spectile.__version__
    assert f"spectile=={spectile.__version__}" in study["dependencies"]
    assert study["requires-python"] == project["requires-python"] and study["license"] == project["license"]
    assert citation["license"] == project["license"] and len(citation["references"]) == 4
    shown = subprocess.run([sys.executable, "-m", "spectile", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"spectile {spectile.__version__}\n"


def test_one_command_writes_the_address_wherever_metadata_have_a_place_for_it(tmp_path):
    root = Path(__file__).parents[3]
    projects = ["pyproject.toml", "src/spectile_study/pyproject.toml", "src/spectile_cubins/pyproject.toml"]
    names = ["docs/address.py", "README.md", *projects, "CITATION.cff", "codemeta.json", "envs/conda/recipe.yaml"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((root / name).read_text())
    for code, site in (("https://one.example/g/spectile", "https://one.example/s"), ("https://two.example/x", None)):
        written = subprocess.run(
            [sys.executable, "docs/address.py", code, *filter(None, [site])], cwd=tmp_path, check=True, text=True,
            capture_output=True,
        ).stdout.split()  # fmt: skip
    assert sorted(written) == sorted(names[2:])
    texts = {name: (tmp_path / name).read_text() for name in written}
    assert not any("one.example" in text for text in texts.values())
    for name, text in texts.items():
        old = set((root / name).read_text().splitlines())
        assert all("two.example" in line for line in text.splitlines() if line not in old), name
    urls = {"Repository", "Issues", "Changelog", "Documentation"}
    library, *others = (tomllib.loads(texts[name]) for name in projects)
    assert all(urls <= project["project"]["urls"].keys() for project in (library, *others))
    citation = yaml.safe_load(texts["CITATION.cff"])
    assert citation["repository-code"] == json.loads(texts["codemeta.json"])["codeRepository"] == code
    assert yaml.safe_load(texts["envs/conda/recipe.yaml"])["about"]["repository"] == code
    # What an index shows: every link and picture is found without a checkout.
    shown = library["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (page,) = shown["fragments"]
    text = (tmp_path / page["path"]).read_text().partition(page["end-before"])[0]
    assert "](docs/" in text
    for change in shown["substitutions"]:
        assert re.search(change["pattern"], text)
        text = re.sub(change["pattern"], change["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 5 and all(link.startswith("https://") for link in links)
    for link in links:
        if code in link:
            assert (root / re.sub(r".*/(blob|raw)/main/", "", link)).exists()
    assert "pip install spectile " in text


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        spectile.nothing  # noqa: B018


def test_spamm_is_a_function_whatever_was_imported_before():
    code = (
        "import spectile.nearsparse.api, spectile.core.device; from spectile import spamm; print(type(spamm).__name__)"
    )
    assert run(code).strip() == "function"


def test_the_configuration_is_printed_or_returned(capsys):
    assert spectile.show_config() is None
    printed = json.loads(capsys.readouterr().out)
    assert printed == spectile.show_config(mode="dicts")
    assert printed["backend"] == ("cpu" if "unavailable" in printed["cuda"] else "cuda")
    assert printed["spectile"] == spectile.__version__ and printed["libraries"].keys() >= {"numpy", "scipy", "numba"}
    with pytest.raises(ValueError, match="mode is 'text'; choose one of stdout, dicts"):
        spectile.show_config(mode="text")


def test_results_are_printed_with_their_numbers():
    from spectile.kpm.operators.lattices import graphene

    sample, unit = graphene(3, 4), scipy.sparse.eye_array(4, format="csr")
    for result, told in (
        (
            spectile.kpm_dos(sample, 64, 3, rng=1, backend="cpu"),
            r"24 states, 64 moments of 3 vectors, energies -3 to 3",
        ),
        (spectile.ldos(sample, [0, 1], 64, backend="cpu"), r"2 curves of 64 moments, energies -3 to 3"),
        (spectile.tsparse.symbolic(unit, unit, backend="cpu"), r"4x4, 4 entries, 4 products"),
    ):
        assert repr(result) == f"{type(result).__name__}({told})"


def test_what_is_compiled_is_logged_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = (
        "import logging, sys, numpy as np, spectile\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "spectile.nearsparse.norm_map(np.eye(64), 32)\n"
    )
    first, second = run(code), run(code)
    assert "spectile.compile" in first and second == ""
