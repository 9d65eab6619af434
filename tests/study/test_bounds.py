"""No share of a bound is above 1: what a table sets a speed-up beside is what no kernel here can pass."""

from pathlib import Path

import pandas
import pytest

from spectile_study.bench import record
from spectile_study.figures.elements import elements
from spectile_study.figures.tables import Cell

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "results/recorded").glob("h*/spamm.parquet"))


def tables(path, name):
    (element,) = [element for element in elements("spamm", ROOT / "workflow/scripts") if element.name == name]
    return element.draw(record.read_frame(path))


def cells(table, part):
    """Return row, column and the value of `part` of each cell that has one."""
    for _, row in table.data.iterrows():
        for column in table.data:
            if isinstance(row[column], Cell) and pandas.notna(row[column].below.get(part)):
                yield (row["precision"], str(row["valid ratio"]), column), row[column].below[part]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("part", ["share", "share by bytes"])
def test_no_share_of_a_bound_is_above_one(path, part, monkeypatch):
    monkeypatch.chdir(ROOT)
    shares = dict(cells(tables(path, "speed"), part))
    assert part != "share" or shares
    assert {key: share for key, share in shares.items() if share > 1} == {}


def test_a_table_says_whose_flops_stand_beside_sgemm(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("t2", "speed"):
        notes = " ".join(tables(RECORDED[0], name).notes)
        assert "over SGEMM" in notes or "beside SGEMM" in notes
        assert "2N³ flops run on float32 units" in notes and "TF32 products" in notes and "tensor cores" in notes
