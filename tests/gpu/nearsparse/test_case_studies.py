"""The case studies on a GPU: densities, convolutions and the timed products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spectile.nearsparse import spamm
from spectile_study.bench.case import Context
from spectile_study.cases.spamm import case_studies, molecules
from spectile_study.cases.spamm.networks.im2col import col2im, im2col
from spectile_study.cases.spamm.thresholds import thresholds, tolerances
from spectile_study.inputs import hartree_fock, mnist, water

pytestmark = pytest.mark.gpu


def test_what_follows_from_a_fock_matrix_is_the_hosts() -> None:
    import cupy

    generator = np.random.default_rng(5)
    n, occupied = 60, 20
    orbitals = np.linalg.qr(generator.standard_normal((n, n)))[0]
    s = np.eye(n) + 0.05 * (orbitals @ np.diag(generator.uniform(-1, 1, n)) @ orbitals.T)
    f = orbitals @ np.diag(np.where(np.arange(n) < occupied, -1.0, 1.0)) @ orbitals.T
    for operator in ("fock_orthogonal", "density_scf", "density_orthogonal"):
        found = hartree_fock.derived(operator, cupy.asarray(f), cupy.asarray(s), occupied)
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_allclose(found.get(), hartree_fock.derived(operator, f, s, occupied), atol=1e-10)


@pytest.mark.skipif(not water.has_gpu_program(), reason="GPU4PySCF is not installed")
def test_gpu4pyscf_finds_what_pyscf_finds() -> None:
    cluster = water.generated_cluster(2)
    ours, theirs = (hartree_fock.solve(cluster, "6-31g**", on_gpu) for on_gpu in (True, False))
    assert ours.energy == pytest.approx(theirs.energy, abs=1e-7)
    np.testing.assert_allclose(ours.matrix, theirs.matrix, atol=1e-5)
    np.testing.assert_allclose(water.core_hamiltonian(cluster, True), water.core_hamiltonian(cluster), atol=1e-8)


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 0)])
def test_patches_are_the_hosts(kernel: int, padding: int) -> None:
    import cupy

    images = np.random.default_rng().standard_normal((4, 3, 9, 7)).astype("f4")
    patches = im2col(cupy.asarray(images), kernel, padding)
    np.testing.assert_array_equal(patches.get(), im2col(images, kernel, padding))
    height, width = 9 + 2 * padding - kernel + 1, 7 + 2 * padding - kernel + 1
    np.testing.assert_array_equal(
        col2im(patches, 4, height, width).get(), col2im(im2col(images, kernel, padding), 4, height, width)
    )


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_water_case_passes_its_checks(precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cupy

    monkeypatch.delenv("SPECTILE_WATER_XYZ", raising=False)
    index = np.arange(20 * water.FUNCTIONS)
    s = np.eye(len(index)) + 0.2 * np.exp(-1.0 * abs(index[:, None] - index)) * (index[:, None] != index)
    monkeypatch.setattr(water, "overlap", lambda cluster: s)
    molecules._water_operator.cache_clear()
    row = {"study": "water", "operator": "overlap", "molecules": 20, "precision": precision, "gpus": 1}
    problem = case_studies.problem(row, Context("cuda", tmp_path, 1, 1))
    molecules._water_operator.cache_clear()
    assert problem.values["norm_c"] == pytest.approx(np.linalg.norm(s @ s))
    ours = list(thresholds(row))
    called = [name.replace("spectile", "called") for name in ours]
    assert [method.name for method in problem.methods[:5]] == ours
    within = list(tolerances(precision))
    assert {method.name for method in problem.methods[5:]} == {*called, *within, "called_dense", "cublas"}
    ratios = []
    for method in problem.methods:
        if method.prepare is not None:
            method.prepare()
        result = method.run()
        errors = method.check(result)
        if method.name in within:  # the bound is of ‖A‖ ‖B‖
            assert (
                errors["error_fro_rel"] * problem.values["norm_c"] <= tolerances(precision)[method.name] * (s**2).sum()
            )
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
        values = method.values(result)
        ratios.append(values.get("valid_ratio"))
        if method.name in (*ours, "cublas"):
            assert values["error_fro"] <= values.get("error_bound", np.inf)
    assert ratios[:5] == sorted(ratios[:5], reverse=True) and ratios[4] < 1
    cupy.cuda.Device().synchronize()


def test_a_layer_by_spamm_classifies_alike() -> None:
    pytest.importorskip("torch")
    from spectile_study.cases.spamm.networks import vgg

    generator = np.random.default_rng()
    split = mnist.Split(*[
        part
        for count in (200, 300)
        for part in (
            generator.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            generator.integers(0, 10, count, dtype=np.uint8),
        )
    ])  # fmt: skip
    layer = vgg.Layer("conv31", vgg.train(split, 1, "cuda", epochs=1), split, "cuda")
    assert layer.weights.shape == (256, 1152) and layer.patches(2).shape == (1152, 6400)
    base = layer.accuracy()
    exact = layer.accuracy(lambda a, b: spamm(a, b, tau=0.0).c)
    assert exact == pytest.approx(base, abs=0.011)
    found = case_studies._classify(layer, base, 0.0, "fp32")
    assert found["accuracy_change"] == pytest.approx(0, abs=0.011) and found["mean_valid_ratio"] == 1
