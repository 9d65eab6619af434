"""`spectile-study judge-density` on a packed Hartree-Fock calculation of a few molecules, and on one that is spoilt."""

import numpy as np
import pytest

pytest.importorskip("pyscf")

from spectile_study import judge_density
from spectile_study.__main__ import main
from spectile_study.inputs import hartree_fock, water


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resources")
    (folder / "water").mkdir()
    water.write_xyz(water.generated_cluster(4), folder / "water/h2o_569.xyz")
    cluster = water.water_cluster(4, folder)
    hartree_fock.pack(hartree_fock.solve(cluster).matrix, cluster, folder / "water/fock_4.npz")
    return folder


@pytest.mark.parametrize("molecules", [3, 4])
def test_what_is_asked_is_kept(resources, molecules):
    given = judge_density.matrices(resources, 4, molecules)
    verdict = judge_density.judge(given, 1e-4)
    assert verdict.kept and verdict.n == 24 * molecules
    assert verdict.found <= verdict.bound <= verdict.asked and verdict.energy_found <= verdict.energy_bound + 1e-9
    assert 0.1 < verdict.gap_bound <= verdict.gap + 1e-9 and 0 < verdict.fill <= 1 and verdict.products > 0
    # A density matrix that is none is noticed.
    assert not judge_density.judge(given._replace(exact=given.exact * (1 + 1e-3)), 1e-4).kept
    assert not judge_density.judge(given._replace(energy=given.energy + 1e-3), 1e-4).kept


def test_the_command_writes_a_table_and_its_status_is_the_verdict(resources, tmp_path, capsys, monkeypatch):
    words = ["judge-density", "--resources", str(resources), "--whole", "4", "--molecules", "2", "--device", "cpu"]
    out = tmp_path / "table.tsv"
    assert main([*words, "--error", "1e-2", "--error", "1e-4", "--out", str(out)]) == 0
    head, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert head == list(judge_density.Verdict._fields) and [float(row[head.index("asked")]) for row in rows] == [
        1e-2,
        1e-4,
    ]
    assert capsys.readouterr().out == out.read_text()
    for molecules in ("0", "5"):
        assert main([*words[:-3], molecules, "--device", "cpu"]) == 2
    judged = judge_density.judge
    monkeypatch.setattr(judge_density, "judge", lambda *given: judged(*given)._replace(kept=False))
    assert main([*words, "--error", "1e-2"]) == 1


def test_a_part_is_the_molecules_nearest_the_centre(resources):
    whole, part = (judge_density.matrices(resources, 4, molecules) for molecules in (4, 2))
    values = np.sort(np.diag(whole.fock))
    assert all(np.abs(values - value).min() < 1e-12 for value in np.diag(part.fock))
    assert np.allclose(part.overlap, part.overlap.T) and np.allclose(np.diag(part.overlap), 1)
