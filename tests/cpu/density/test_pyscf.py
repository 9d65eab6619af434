"""A self-consistent field of PySCF whose density comes from `density_matrix`, as the page shows it."""

import re
from pathlib import Path

import pytest

gto = pytest.importorskip("pyscf.gto")

PAGE = Path(__file__).parents[3] / "docs/density-matrices.md"


def test_the_field_of_the_page_has_the_energy_of_pyscf():
    (block,) = re.findall(r"```python requires=pyscf\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict = {}
    exec(block, names)
    field, p = names["field"], names["p"]
    field.conv_tol = 1e-10
    field.kernel()
    assert abs(names["energy"] - field.e_tot) < 1e-6 and names["cycle"] < 40
    occupied = names["mol"].nelectron // 2
    assert p.error <= 1e-4 and abs(p.electrons - occupied) == 0
    assert p.homo[0] - 1e-4 <= field.mo_energy[occupied - 1] <= p.homo[1] + 1e-4
    assert p.lumo[0] - 1e-4 <= field.mo_energy[occupied] <= p.lumo[1] + 1e-4
