"""Density matrices of water and their simulation over many GPUs, on model water of a few molecules."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import spectile
from spectile_study.bench.case import Context, Skipped
from spectile_study.cases.spamm import build, density, partition
from spectile_study.inputs import hartree_fock, model_water, water
from spectile_study.inputs.model_water import Decay, Places
from spectile_study.inputs.water import FUNCTIONS, OCCUPIED

DECAY = Decay(22.9, 1.2, 1.1, 0.5)
LEVELS = np.concatenate([[-20.5, -1.3, -0.7, -0.6, -0.5], np.linspace(0.4, 4.0, FUNCTIONS - OCCUPIED)])


@pytest.fixture
def hartree_fock_of_model_water(monkeypatch):
    """F' of few molecules without a calculation."""

    def matrix(operator, cluster, resources=None, on_gpu=False):
        assert operator == "fock_orthogonal"
        return model_water.fock(DECAY, LEVELS, cluster.coordinates[:, 0]), "a test"

    monkeypatch.setattr(hartree_fock, "scf_matrix", matrix)


def context(tmp_path):
    return Context("cpu", tmp_path, 1, 1, Path())


def test_a_fit_finds_the_decay_that_a_matrix_was_made_with():
    oxygens = water.generated_cluster(40).coordinates[:, 0]
    fock = model_water.fock(DECAY, LEVELS, oxygens, seed=3)
    assert np.array_equal(fock, fock.T) and np.array_equal(fock, model_water.fock(DECAY, LEVELS, oxygens, seed=3))
    found = model_water.fitted(fock, oxygens)
    assert np.allclose(found, (np.linalg.norm(LEVELS), *DECAY[1:]), rtol=0.1)
    assert np.allclose(model_water.levels(fock), LEVELS)
    with pytest.raises(ValueError, match="do not fall"):
        model_water.fitted(model_water.fock(DECAY._replace(length=-5.0), LEVELS, oxygens), oxygens)


def test_what_is_counted_of_a_square_is_what_maps_of_its_norms_say():
    """Every pair and every triple of a small cluster, by a dense map of the same norms."""
    oxygens = water.generated_cluster(50).coordinates[:, 0]
    places, count, seed = Places.of(oxygens, 3.0), len(oxygens), 5
    decay = Decay(2.0, 0.5, 1.3, 0.6)
    apart = np.linalg.norm(oxygens[:, None] - oxygens, axis=2)
    g = np.array([[model_water._scatter(i, j, seed) for j in range(count)] for i in range(count)])
    logs = decay.constant - apart / decay.length + decay.scatter * g
    np.fill_diagonal(logs, math.log(decay.diagonal))
    assert abs(g[np.triu_indices(count, 1)].mean()) < 0.1 and abs(g[np.triu_indices(count, 1)].std() - 1) < 0.1
    for least, tau in ((-9.0, -8.0), (-4.0, -5.0)):
        held = np.where(logs >= least, logs, -np.inf)
        wanted = (held[:, :, None] + held[None] >= tau).sum(axis=(1, 2))
        out = np.empty(count, np.int64)
        model_water.kept_products(np.arange(count), least, tau, decay, seed, places, count, out)
        assert np.array_equal(out, wanted)
        first, last = 15, 31
        largest = held[:, first:last].max(axis=1)
        model_water.needed_tiles(np.arange(count), first, last, least, tau, decay, seed, places, count, out)
        assert np.array_equal(out, (held + largest[:, None] >= tau).sum(axis=1))


def test_a_simulation_counts_about_what_a_call_does():
    """Half the products of tiles of a purification of the matrix that the decay is taken from."""
    import spectile

    molecules, error = 24, 1e-4
    oxygens = water.generated_cluster(molecules).coordinates[:, 0]
    fock = model_water.fock(DECAY, LEVELS, oxygens)
    asked = error * math.sqrt(OCCUPIED * molecules)
    called = spectile.density_matrix(
        fock, electrons=OCCUPIED * molecules, error=asked, block=FUNCTIONS, method="sp2_accelerated"
    )
    simulated = partition.Simulation(molecules, partition.products(fock, oxygens, error), seed=2)
    alone = [one.products for one in simulated.counted(1)]
    assert abs(len(alone) - len(called.history)) <= 2
    assert 0.5 < sum(alone) / called.products < 2


def test_more_gpus_share_the_work_and_fetch_more_in_all(hartree_fock_of_model_water, tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "ERROR", 1e-3)
    monkeypatch.setattr(model_water, "TRUE_MOLECULES", 12)
    row = {"study": "partition", "molecules": 600}
    problem = build.build(row, context(tmp_path))
    assert [method.name for method in problem.methods] == [f"gpus_{n}" for n in (1, 8, 16, 32, 64)]
    found = {}
    for method in (problem.methods[0], problem.methods[1], problem.methods[4]):
        result = method.run()
        assert all(method.check(result)[name] <= limit for name, limit in method.limits.items())
        found[int(method.name[5:])] = method.values(result)
    totals = [one["products_total"] for one in found.values()]
    assert np.allclose(totals, totals[0]) and found[1]["bytes_links"] == 0
    assert found[8]["bytes_outside"] == 0 < found[8]["bytes_links"] < 8 * found[64]["bytes_links"]
    assert found[64]["bytes_outside"] > 0 and 1 <= found[8]["balance"] <= found[64]["balance"] < 1.2
    times = [one["predicted_work_s"] for one in found.values()]
    assert times[0] > 7 * times[1] > 40 * times[2]
    again = build.build(row, context(tmp_path)).methods[1]
    assert again.values(again.run()) == found[8]


def test_every_method_of_the_density_case_keeps_its_error(hartree_fock_of_model_water, tmp_path, monkeypatch):
    row = {"study": "density", "molecules": 5, "operator": "fock_orthogonal"}
    for limit, most, row_ in ((150, 15000, row), (4, 400, row | {"operator": "fock_model"}), (4, 100, row)):
        monkeypatch.setattr(density, "_MOST_CSR", limit)
        monkeypatch.setattr(density, "_MOST_DENSE", most)
        problem = build.build(row_, context(tmp_path))
        skipped = [one.name for one in problem.methods if isinstance(one, Skipped)]
        dense = ["lapack", "sp2_blas"] if most < 5 * FUNCTIONS else []
        assert skipped == dense + ([] if limit > 5 else ["sp2_csr_1e-05", "sp2_csr_1e-08"])
        assert all(one.once is bool(dense) for one in problem.methods if not isinstance(one, Skipped))
        for method in problem.methods:
            if not isinstance(method, Skipped):
                result = method.run()
                errors = method.check(result)
                assert all(errors[name] <= limit for name, limit in method.limits.items()), method.name
                if method.name.startswith("density"):
                    assert 0 < method.values(result)["gap_share"] <= 1 + 1e-9
        assert problem.values["rows"] == 5 * FUNCTIONS


def test_a_wrong_density_matrix_fails_its_check(hartree_fock_of_model_water, tmp_path):
    problem = build.build({"study": "density", "molecules": 4, "operator": "fock_orthogonal"}, context(tmp_path))
    for method in problem.methods:
        wrong = np.eye(4 * FUNCTIONS)
        result = scipy.sparse.csr_array(wrong) if "csr" in method.name else wrong
        if method.name.startswith("density"):
            result = method.run()
            result = dataclasses.replace(result, matrix=0.0 * result.matrix)
        errors = method.check(result)
        assert any(errors[name] > limit for name, limit in method.limits.items())


def test_without_a_fock_matrix_the_case_is_skipped(monkeypatch, tmp_path):
    def absent(*args, **words):
        raise ModuleNotFoundError("pyscf is not installed: pip install pyscf")

    monkeypatch.setattr(hartree_fock, "scf_matrix", absent)
    for row in (
        {"study": "partition", "molecules": 10},
        {"study": "density", "molecules": 3, "operator": "fock_model"},
    ):
        with pytest.raises(FileNotFoundError, match="pip install pyscf"):
            build.build(row, context(tmp_path))


def test_bounds_hold_of_a_true_fock_matrix_with_its_overlap(tmp_path):
    pytest.importorskip("pyscf")
    (tmp_path / "water").mkdir()
    water.write_xyz(water.generated_cluster(4), tmp_path / "water/h2o_569.xyz")
    cluster = water.water_cluster(4, tmp_path)
    f, s, electrons = hartree_fock.solve(cluster).matrix, water.overlap(cluster), 4 * OCCUPIED
    values, vectors = scipy.linalg.eigh(f, s)
    found = spectile.density_matrix(f, s, electrons=electrons, error=1e-4, block=FUNCTIONS)
    wanted = vectors[:, :electrons] @ vectors[:, :electrons].T
    assert np.linalg.norm(found.matrix.to_dense() - wanted) <= found.error + 1e-9 and found.error <= 1e-4
    assert abs(found.energy - values[:electrons].sum()) <= found.energy_error + 1e-9
    assert 0.1 < found.gap <= values[electrons] - values[electrons - 1] + 1e-9
