"""Every piece of Python that a page shows is run: here, or by a test that looks at what it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: By page and first line of a block, the test that runs what begins so.
ELSEWHERE = {
    ("README.md", "python"): "tests/cpu/core/test_package.py",
    ("docs/guide.md", "python"): "tests/cpu/core/test_package.py",
    ("docs/guide.md", "python requires=pyscf"): "tests/cpu/evd/test_pyscf.py",
    ("docs/guide.md", "python requires=scalapack"): "tests/cpu/evd/test_distributed.py",
    ("docs/sparse.md", "python"): "tests/cpu/tsparse/test_page.py",
    ("docs/autodiff.md", "python"): "tests/cpu/autodiff/test_page.py",
    ("docs/density-matrices.md", "python requires=pyscf"): "tests/cpu/density/test_pyscf.py",
    ("docs/integrations.md", "python requires=sklearn"): "tests/cpu/evd/test_integrations.py",
    ("docs/integrations.md", "python requires=networkx"): "tests/cpu/evd/test_integrations.py",
    ("docs/spectral.md", "py"): "tests/cpu/kpm/test_ranks.py",
}
TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
}
PAGES = {
    name: blocks
    for name, text in TEXTS.items()
    if (name, "python") not in ELSEWHERE and (blocks := re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
}


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs(page):
    subprocess.run([sys.executable, "-c", "\n".join(PAGES[page])], cwd=ROOT, check=True)


def test_every_block_of_python_is_run_by_a_test():
    shown = {
        (name, first) for name, text in TEXTS.items() for first in re.findall(r"^ *```(py.*)$", text, re.MULTILINE)
    }
    assert shown == ELSEWHERE.keys() | {(name, "python") for name in PAGES}
    for (page, first), test in ELSEWHERE.items():
        source = (ROOT / test).read_text(encoding="utf-8")
        assert f"```{first}\\n" in source and Path(page).name in source
