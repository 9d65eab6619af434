"""Python that the pages beside the guide and the README show runs; their own tests look at what those two print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = {
    str(page.relative_to(ROOT)): blocks
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.name != "guide.md"
    and (blocks := re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
}


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs(page):
    subprocess.run([sys.executable, "-c", "\n".join(PAGES[page])], cwd=ROOT, check=True)
