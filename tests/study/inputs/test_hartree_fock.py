"""Hartree-Fock matrices of small clusters, and the packed Fock matrix: what is read is what was written, or refused."""

import hashlib
import io

import numpy as np
import pytest
import scipy.linalg

from spectile_study import make_inputs
from spectile_study.inputs import hartree_fock, water

pytest.importorskip("pyscf", reason="PySCF is not installed: pip install pyscf")


@pytest.fixture(autouse=True)
def _no_data_of_the_user(monkeypatch):
    monkeypatch.delenv("SPECTILE_WATER_XYZ", raising=False)


@pytest.fixture(scope="module")
def solved():
    """Two generated molecules with their Fock and overlap matrices, and the energy."""
    cluster = water.generated_cluster(2)
    found = hartree_fock.solve(cluster)
    return cluster, found.matrix, water.overlap(cluster), found.energy


def test_the_energy_is_that_of_the_density(solved):
    cluster, f, s, energy = solved
    d = hartree_fock.derived("density_scf", f, s, 10)
    of_electrons = 0.5 * np.vdot(d, water.core_hamiltonian(cluster) + f)
    assert of_electrons + water.molecule(cluster).energy_nuc() == pytest.approx(energy, abs=1e-5)
    assert abs(f @ d @ s - s @ d @ f).max() < 1e-5
    np.testing.assert_array_equal(f, f.T)


def test_operators_are_those_of_the_generalised_eigenproblem(solved):
    _, f, s, _ = solved
    energies, orbitals = scipy.linalg.eigh(f, s)
    d = hartree_fock.derived("density_scf", f, s, 10)
    np.testing.assert_allclose(d, 2 * orbitals[:, :10] @ orbitals[:, :10].T, atol=1e-9)
    orthogonal = hartree_fock.derived("fock_orthogonal", f, s, 10)
    np.testing.assert_allclose(np.linalg.eigvalsh(orthogonal), energies, atol=1e-9)
    projector = hartree_fock.derived("density_orthogonal", f, s, 10) / 2
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(orthogonal @ projector, projector @ orthogonal, atol=1e-9)
    root = scipy.linalg.sqrtm(s)
    np.testing.assert_allclose(root @ d @ root, 2 * projector, atol=1e-9)


def test_any_basis_is_calculated():
    found = hartree_fock.solve(water.generated_cluster(1), "sto-3g")
    assert found.matrix.shape == (7, 7) and -75.1 < found.energy < -74.8


def test_a_fock_matrix_of_other_molecules_is_noticed(solved):
    _, f, s, _ = solved
    turned = np.roll(f, (24, 24), (0, 1))
    assert hartree_fock.likeness(turned, s, 2) < hartree_fock._ALIKE < hartree_fock.likeness(f, s, 2) - 0.2
    with pytest.raises(np.linalg.LinAlgError, match="not of this cluster"):
        hartree_fock.derived("density_scf", s, s, 10)
    with pytest.raises(np.linalg.LinAlgError, match="dependent"):
        hartree_fock.derived("fock_orthogonal", f, s - np.eye(len(s)), 10)


def test_what_does_not_converge_is_refused(monkeypatch):
    from pyscf import scf

    monkeypatch.setattr(scf.hf.SCF, "max_cycle", 1)
    with pytest.raises(RuntimeError, match="no Hartree-Fock solution of 1 molecules"):
        hartree_fock.solve(water.generated_cluster(1), "sto-3g")


def test_a_large_cluster_needs_a_device_or_a_packed_matrix(tmp_path):
    receipt = make_inputs.make("scf", str(hartree_fock.MOST_ON_CPU + 1), tmp_path, 1)
    if not water.has_gpu_program():
        assert receipt["status"] == "absent" and "gpu4pyscf" in receipt["reason"]


def test_a_calculation_is_kept_and_read_again(tmp_path, monkeypatch):
    cluster = water.generated_cluster(1)
    receipt = make_inputs.make("scf", "1", tmp_path, 1)
    assert receipt["status"] == "ok" and receipt["parameters"]["source"].startswith("PySCF")
    monkeypatch.setattr(hartree_fock, "solve", lambda *_, **__: pytest.fail("a kept matrix is not calculated again"))
    found = hartree_fock.fock(cluster, tmp_path)
    assert found.source == receipt["parameters"]["source"]
    matrix, _ = hartree_fock.scf_matrix("density_orthogonal", cluster, tmp_path)
    assert np.trace(matrix) == pytest.approx(10, abs=1e-10)


# A packed Fock matrix


def packed(resources, solved, **changed):
    """Pack the solved cluster's F, with other molecules' order, and some arrays changed; return its path."""
    cluster, f, _, _ = solved
    turned = water.Cluster(cluster.coordinates[::-1].copy(), cluster.origin)
    index = np.arange(48).reshape(2, 24)[::-1].ravel()
    path = resources / "water" / "fock_2.npz"
    hartree_fock.pack(f[index][:, index], turned, path, quantum=4e-8)
    if changed:
        with np.load(path) as held:
            arrays = {name: value for name, value in (dict(held) | changed).items() if value is not None}
        content = io.BytesIO()
        np.savez(content, **arrays)
        path.write_bytes(content.getvalue())
        checksum(path)
    return path


def checksum(path):
    path.with_name(path.name + ".sha256").write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


def test_a_packed_matrix_is_read_rounded_in_the_order_of_the_cluster(tmp_path, solved):
    cluster, f, _, _ = solved
    path = packed(tmp_path, solved)
    found = hartree_fock.fock(cluster, tmp_path)
    assert found.path == path and "rounded to multiples of 4e-08" in found.source
    np.testing.assert_allclose(found.matrix, f, atol=2.1e-8, rtol=0)
    np.testing.assert_array_equal(found.matrix, found.matrix.T)
    receipt = make_inputs.make("scf", "2", tmp_path, 1)
    assert receipt["file"] == "water/fock_2.npz" and path.name in receipt["parameters"]["source"]


def test_a_packed_matrix_in_another_order_than_its_file_says_is_refused(tmp_path, solved):
    packed(tmp_path, solved, coordinates=solved[0].coordinates)
    with pytest.raises(ValueError, match="does not fit the overlap"):
        hartree_fock.fock(solved[0], tmp_path)


def test_a_packed_matrix_without_coordinates_is_in_the_order_of_the_xyz_file(tmp_path, solved):
    cluster, f, _, _ = solved
    packed(tmp_path, solved, coordinates=None)
    with pytest.raises(ValueError, match="no coordinates: put the xyz file"):
        hartree_fock.fock(cluster, tmp_path)
    water.write_xyz(water.Cluster(cluster.coordinates[::-1], "turned"), tmp_path / "water/h2o_569.xyz")
    of_file = water.water_cluster(2, tmp_path)
    is_same = np.allclose(of_file.coordinates, cluster.coordinates, atol=1e-7)
    expected = f if is_same else np.roll(f, (24, 24), (0, 1))
    np.testing.assert_allclose(hartree_fock.fock(of_file, tmp_path).matrix, expected, atol=2.1e-8, rtol=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": 0.0}, "do not fill"),
        ({"keep": None}, "no packed Fock matrix"),
        ({"keep": np.array([[0, 0], [1, 1], [1, 1]], np.uint16)}, "pairs of molecules"),
        ({"keep": np.array([[0, 0], [0, 1], [1, 1]], np.uint16)}, "pairs of molecules"),
        ({"keep": np.array([[0, 0], [1, 0], [2, 2]], np.uint16)}, "pairs of molecules"),
        ({"keep": np.array([[0, 0], [1, 1]], np.uint16)}, "no packed Fock matrix"),
        ({"data": np.zeros(20, np.uint8)}, "no packed Fock matrix"),
        ({"coordinates": water.generated_cluster(2, seed=9).coordinates}, "other molecules"),
        ({"coordinates": water.generated_cluster(1).coordinates}, "other molecules"),
    ],
)
def test_a_broken_or_foreign_packed_matrix_is_refused(tmp_path, solved, changed, message):
    packed(tmp_path, solved, **changed)
    with pytest.raises(ValueError, match=message):
        hartree_fock.fock(solved[0], tmp_path)


def test_a_packed_matrix_needs_its_sha256(tmp_path, solved):
    path = packed(tmp_path, solved)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="has the sha256"):
        hartree_fock.fock(solved[0], tmp_path)
    checksum(path)
    with pytest.raises(ValueError, match="no packed Fock matrix"):
        hartree_fock.fock(solved[0], tmp_path)
    path.with_name(path.name + ".sha256").unlink()
    with pytest.raises(FileNotFoundError, match="sha256sum"):
        hartree_fock.fock(solved[0], tmp_path)


def test_what_cannot_be_packed_is_refused_and_nothing_is_written(tmp_path, solved):
    cluster, f, _, _ = solved
    path = tmp_path / "fock_2.npz"
    for matrix, quantum, message in ((f[:-1, :-1], 8e-8, "shape"), (f * np.nan, 8e-8, "finite"), (f, 1e-9, "larger")):
        with pytest.raises(ValueError, match=message):
            hartree_fock.pack(matrix, cluster, path, quantum)
    assert list(tmp_path.iterdir()) == []
