"""The case studies on a GPU: densities, convolutions and the timed products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from spectile.nearsparse import spamm
from spectile_study.bench.case import Context
from spectile_study.cases.spamm import case_studies, molecules
from spectile_study.cases.spamm.networks.im2col import col2im, im2col
from spectile_study.cases.spamm.thresholds import thresholds
from spectile_study.inputs import mnist, water

pytestmark = pytest.mark.gpu


def _decaying(n: int, generator: Any) -> tuple[Any, Any]:
    """A symmetric matrix with a gap in the middle of its spectrum and a positive definite one, both decaying."""
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    noise = generator.standard_normal((n, n)) * np.exp(-0.7 * distance)
    f = 0.1 * (noise + noise.T) + np.diag(np.where(np.arange(n) % 2, 1.0, -1.0))
    return f, np.eye(n) + 0.2 * np.exp(-1.0 * distance) * (distance > 0)


def test_density_is_the_hosts_projector() -> None:
    import cupy

    f, s = _decaying(300, np.random.default_rng())
    values, vectors = scipy.linalg.eigh(f, s)
    occupied = 100 + int(np.argmax(np.diff(values)[99:200]))  # above the widest gap of the middle
    found = water.density_projector(cupy.asarray(f), cupy.asarray(s), occupied)
    assert isinstance(found, cupy.ndarray)
    expected = vectors[:, :occupied] @ vectors[:, :occupied].T
    np.testing.assert_allclose(found.get(), expected, atol=1e-9)
    host = water.wolfsberg_helmholz(s, f.diagonal())
    np.testing.assert_allclose(
        water.wolfsberg_helmholz(cupy.asarray(s), cupy.asarray(f.diagonal())).get(), host, rtol=1e-14
    )


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
    _, s = _decaying(20 * water.FUNCTIONS, np.random.default_rng())
    monkeypatch.setattr(water, "overlap", lambda cluster: s)
    molecules._water_operator.cache_clear()
    row = {"study": "water", "operator": "overlap", "molecules": 20, "precision": precision, "gpus": 1}
    problem = case_studies.problem(row, Context("cuda", tmp_path, 1, 1))
    molecules._water_operator.cache_clear()
    assert problem.values["norm_c"] == pytest.approx(np.linalg.norm(s @ s))
    ours = list(thresholds(row))
    called = [name.replace("spectile", "called") for name in ours]
    assert [method.name for method in problem.methods[:5]] == ours
    assert {method.name for method in problem.methods[5:]} == {*called, "called_dense", "cublas"}
    ratios = []
    for method in problem.methods:
        if method.prepare is not None:
            method.prepare()
        result = method.run()
        errors = method.check(result)
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
