"""The case studies' inputs: water matrices, ergo's files, MNIST's files, convolutions as products."""

import gzip
import hashlib
import importlib.util
import struct

import numpy as np
import pytest
import scipy.linalg
import scipy.signal

from spectile_study.bench.case import Context
from spectile_study.cases.spamm import case_studies, molecules
from spectile_study.cases.spamm.networks.im2col import col2im, im2col
from spectile_study.inputs import ergo, hartree_fock, mnist, water

needs_pyscf = pytest.mark.skipif(importlib.util.find_spec("pyscf") is None, reason="PySCF is not installed")
needs_ergo = pytest.mark.skipif(ergo.program() is None, reason="ergo is not installed")
has_torch = importlib.util.find_spec("torch") is not None


@pytest.fixture(autouse=True)
def _no_data_of_the_user(monkeypatch):
    monkeypatch.delenv("SPECTILE_WATER_XYZ", raising=False)
    monkeypatch.delenv("SPECTILE_MNIST", raising=False)


@pytest.fixture(scope="module")
def trimer():
    """Three generated molecules with their overlap matrix."""
    pytest.importorskip("pyscf")
    cluster = water.generated_cluster(3)
    return cluster, water.overlap(cluster)


# Water clusters


@pytest.mark.parametrize("molecules", [1, 10, 64])
def test_generated_cluster_is_liquid_like(molecules):
    found = water.generated_cluster(molecules, seed=3).coordinates
    assert found.shape == (molecules, 3, 3)
    bonds = np.linalg.norm(found[:, 1:] - found[:, :1], axis=2)
    np.testing.assert_allclose(bonds, 0.9572)
    atoms = found.reshape(-1, 3)
    distances = np.linalg.norm(atoms[:, None] - atoms[None], axis=2) + 9 * np.kron(np.eye(molecules), np.ones((3, 3)))
    assert distances.min() > 1.0


def test_generated_cluster_depends_on_its_seed_alone():
    assert water.generated_cluster(5, 1).digest == water.generated_cluster(5, 1).digest
    assert water.generated_cluster(5, 1).digest != water.generated_cluster(5, 2).digest
    with pytest.raises(ValueError, match="positive"):
        water.generated_cluster(0)


@pytest.mark.parametrize(("axes", "bits"), [(2, 4), (3, 3), (1, 5)])
def test_a_hilbert_curve_visits_every_place_in_steps_of_one(axes, bits):
    grid = np.stack(np.meshgrid(*[np.arange(2.0**bits)] * axes, indexing="ij"), axis=-1).reshape(-1, axes)
    shuffled = np.random.default_rng(1).permutation(grid)
    order = water.hilbert_order(shuffled, bits)
    assert sorted(order) == list(range(len(grid)))
    assert set(abs(np.diff(shuffled[order], axis=0)).sum(axis=1)) == {1.0}


def test_points_at_one_place_keep_their_order():
    np.testing.assert_array_equal(water.hilbert_order(np.ones((4, 3))), range(4))


def test_neighbours_in_order_are_near():
    oxygens = water.generated_cluster(64).coordinates[:, 0]
    step = np.linalg.norm(np.diff(oxygens, axis=0), axis=1).mean()
    shuffled = np.random.default_rng(0).permutation(oxygens)
    assert step < 0.7 * np.linalg.norm(np.diff(shuffled, axis=0), axis=1).mean()


def test_cluster_comes_from_the_named_file(tmp_path, monkeypatch):
    cluster = water.generated_cluster(8)
    path = tmp_path / "w.xyz"
    water.write_xyz(cluster, path)
    monkeypatch.setenv("SPECTILE_WATER_XYZ", str(path))
    found = water.water_cluster(8)
    assert "w.xyz sha256" in found.origin
    np.testing.assert_allclose(np.sort(found.coordinates, axis=0), np.sort(cluster.coordinates, axis=0), atol=1e-7)
    with pytest.raises(ValueError, match="holds 8 water molecules and 9"):
        water.water_cluster(9)
    monkeypatch.setenv("SPECTILE_WATER_XYZ", str(tmp_path / "absent.xyz"))
    with pytest.raises(FileNotFoundError, match="SPECTILE_WATER_XYZ"):
        water.water_cluster(2)


def test_cluster_comes_from_the_resources_or_is_generated(tmp_path):
    assert water.water_cluster(2, tmp_path).origin == "generated, seed 1"
    (tmp_path / "water").mkdir()
    water.write_xyz(water.generated_cluster(4, seed=7), tmp_path / "water" / "h2o_569.xyz")
    assert water.water_cluster(2, tmp_path).origin.startswith("h2o_569.xyz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an xyz file"),
        ("3\nx\nO 0 0 0\nH 0 0 1\nH 0 one 0\n", "not an xyz file"),
        ("3\nx\nO 0 0 0\nH 0 0 1\n", "does not hold 3 atoms"),
        ("3\nx\nH 0 0 0\nO 0 0 1\nH 0 1 0\n", "each written O, H, H"),
        ("3\nx\nO 0 0 0\nH 0 0 1\nH 0 12 0\n", "unwrap"),
    ],
)
def test_broken_xyz_files_are_refused(tmp_path, text, message):
    path = tmp_path / "w.xyz"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        water.read_xyz(path)


@needs_pyscf
def test_basis_has_24_functions_a_molecule(trimer):
    _, s = trimer
    assert s.shape == (3 * water.FUNCTIONS,) * 2
    np.testing.assert_allclose(np.diag(s), 1, rtol=1e-12)


@needs_pyscf
def test_core_hamiltonian_binds_and_is_kept_whole(trimer, tmp_path):
    cluster, s = trimer
    h = water.water_matrix("core_hamiltonian", cluster)
    np.testing.assert_allclose(h, h.T, atol=1e-12)
    assert scipy.linalg.eigh(h, s, eigvals_only=True)[0] < -30  # deeper than the 1s level of an oxygen nucleus alone
    water.save_symmetric(tmp_path / "deep" / "h.npz", h)
    np.testing.assert_array_equal(np.triu(water.load_symmetric(tmp_path / "deep" / "h.npz")), np.triu(h))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["h.npz"]


def test_unknown_operators_are_named():
    with pytest.raises(ValueError, match="choose one of overlap"):
        water.water_matrix("charge", water.generated_cluster(1))


# ergo

_MTX = """%%MatrixMarket matrix coordinate real {symmetry}
% by hand
3  3  4
1  1  2.5
3  1  -1e-3
2  2  1
3  3  {last}
"""


def test_ergo_matrices_are_read_dense(tmp_path):
    path = tmp_path / "S_matrix.mtx"
    path.write_text(_MTX.format(symmetry="symmetric", last="4"))
    np.testing.assert_array_equal(ergo.read_matrix(path), [[2.5, 0, -1e-3], [0, 1, 0], [-1e-3, 0, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_MTX.format(symmetry="general", last="4"), "general"),
        (_MTX.format(symmetry="symmetric", last="nan"), "not finite"),
        (_MTX.format(symmetry="symmetric", last="4")[:-8], "not a symmetric matrix"),
        ("no matrix\n", "not a symmetric matrix"),
    ],
)
def test_broken_ergo_matrices_are_refused(tmp_path, text, message):
    path = tmp_path / "F_matrix_1.mtx"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        ergo.read_matrix(path)


def test_missing_ergo_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTILE_ERGO", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="environment envs/ergo"):
        ergo.ergo_matrix("fock_ergo", water.generated_cluster(1), tmp_path)
    with pytest.raises(ValueError, match="fock_ergo"):
        ergo.ergo_matrix("fock", water.generated_cluster(1), tmp_path)


@needs_ergo
@needs_pyscf
def test_ergo_agrees_with_pyscf_and_converges(tmp_path):
    cluster = water.generated_cluster(2)
    fock = ergo.ergo_matrix("fock_ergo", cluster, tmp_path)
    density = ergo.ergo_matrix("density_ergo", cluster, tmp_path)
    s = ergo.ergo_matrix("overlap_ergo", cluster, tmp_path)
    # ergo orders the basis functions by position: what does not depend on order is compared.
    np.testing.assert_allclose(scipy.linalg.eigvalsh(s), scipy.linalg.eigvalsh(water.overlap(cluster)), atol=1e-7)
    core = ergo.ergo_matrix("core_hamiltonian_ergo", cluster, tmp_path)
    expected = scipy.linalg.eigh(water.core_hamiltonian(cluster), water.overlap(cluster), eigvals_only=True)
    np.testing.assert_allclose(scipy.linalg.eigh(core, s, eigvals_only=True), expected, atol=1e-6)
    assert np.trace(density @ s) == pytest.approx(20, abs=1e-6)
    assert np.linalg.norm(fock @ density @ s - s @ density @ fock) < 0.05


# MNIST


def _idx(array, magic=b"\x00\x00\x08"):
    return magic + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("shape", [(5, 28, 28), (7,)])
def test_idx_files_are_read(tmp_path, shape):
    data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(_idx(data)))
    np.testing.assert_array_equal(mnist.read_idx(path, hashlib.sha256(_idx(data)).hexdigest()), data)
    with pytest.raises(ValueError, match="not the official file"):
        mnist.read_idx(path, "0" * 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain", "not a whole gzip file"),
        (gzip.compress(_idx(np.zeros((2, 3), np.uint8)))[:-9], "not a whole gzip file"),
        (gzip.compress(_idx(np.zeros((2, 3), np.uint8), b"\x00\x00\x0d")), "magic number is 00000d02"),
        (gzip.compress(b"\x00\x00\x08\x03\x00"), "not an IDX file"),
        (gzip.compress(_idx(np.zeros((2, 3), np.uint8))[:-1]), "holds 5 bytes"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path, content, message):
    path = tmp_path / "data.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        mnist.read_idx(path)


def test_missing_mnist_is_named(tmp_path, monkeypatch):
    assert mnist.mnist_folder(tmp_path) == tmp_path / "mnist"
    with pytest.raises(FileNotFoundError, match="SPECTILE_MNIST"):
        mnist.load_mnist(mnist.mnist_folder(tmp_path))
    monkeypatch.setenv("SPECTILE_MNIST", str(tmp_path))
    assert mnist.mnist_folder(tmp_path / "other") == tmp_path


def test_split_keeps_every_image_once(tmp_path, monkeypatch):
    counts = {"train": 70, "t10k": 30}
    contents = {}
    for part, count in counts.items():
        start = 0 if part == "train" else 70
        images = np.repeat(np.arange(start, start + count, dtype=np.uint8), 28 * 28).reshape(count, 28, 28)
        for name, data in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", images[:, 0, 0])):
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(_idx(data)))
            contents[name] = hashlib.sha256(_idx(data)).hexdigest()
    monkeypatch.setattr(mnist, "CONTENT", contents)
    split = mnist.load_mnist(tmp_path, seed=4)
    assert len(split.train_images) == 80 and len(split.validation_labels) == 20
    np.testing.assert_array_equal(split.train_images[:, 3, 3], split.train_labels)
    assert sorted([*split.train_labels, *split.validation_labels]) == list(range(100))


def test_network_input_is_padded_and_normalised():
    images = np.full((2, 28, 28), 255, np.uint8)
    x = mnist.network_input(images)
    assert x.shape == (2, 3, 32, 32) and x.dtype == np.float32
    np.testing.assert_allclose(x[0, 1, 2:30, 2:30], (1 - mnist.MEAN) / mnist.DEVIATION, rtol=1e-6)
    np.testing.assert_allclose(x[1, 2, 1], -mnist.MEAN / mnist.DEVIATION, rtol=1e-6)


# Convolutions


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (3, 0), (5, 2), (1, 0)])
def test_im2col_turns_a_convolution_into_a_product(kernel, padding):
    rng = np.random.default_rng(2)
    images, weights = rng.standard_normal((4, 3, 9, 7)), rng.standard_normal((5, 3, kernel, kernel))
    found = weights.reshape(5, -1) @ im2col(images, kernel, padding)
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    expected = np.array(
        [
            [
                sum(scipy.signal.correlate2d(x, w, "valid") for x, w in zip(image, weight, strict=True))
                for weight in weights
            ]
            for image in padded
        ]
    )
    np.testing.assert_allclose(col2im(found, 4, *expected.shape[2:]), expected, atol=1e-12)


def test_im2col_gives_the_papers_sizes():
    assert im2col(np.zeros((100, 64, 16, 16), np.float32)).shape == (576, 25600)
    assert im2col(np.zeros((100, 128, 8, 8), np.float32)).shape == (1152, 6400)
    with pytest.raises(ValueError, match="does not fit"):
        im2col(np.zeros((1, 1, 2, 2)), kernel=5, padding=0)


# Cases


def _context(tmp_path):
    return Context(device="cpu", resources=tmp_path, seed=1, threads=1)


@needs_pyscf
@pytest.mark.parametrize("operator", [*water.OPERATORS, *hartree_fock.OPERATORS])
def test_water_operators_are_labelled(tmp_path, operator):
    row = {"study": "water", "operator": operator, "molecules": 1, "precision": "fp64", "gpus": 0}
    matrix, facts = molecules.water_operator(row, _context(tmp_path))
    assert matrix.shape == (24, 24) and matrix.dtype == np.float64
    assert facts["matrix"] == (water.OPERATORS | hartree_fock.OPERATORS)[operator]
    assert facts["cluster"].startswith("generated, seed 1")
    assert ("F by PySCF" in facts["cluster"]) == (operator in hartree_fock.OPERATORS)


def test_unknown_operator_of_a_row_is_named(tmp_path):
    with pytest.raises(ValueError, match="overlap, core_hamiltonian"):
        molecules.water_operator({"operator": "charge", "molecules": 2}, _context(tmp_path))


def test_vgg_without_its_needs_says_so(tmp_path):
    error, match = (FileNotFoundError, "SPECTILE_MNIST") if has_torch else (ModuleNotFoundError, "extra vgg")
    with pytest.raises(error, match=match):
        case_studies._vgg_layer("conv21", tmp_path, 1, False)


# VGG13


@pytest.mark.skipif(not has_torch, reason="PyTorch is not installed")
def test_a_layer_by_its_product_classifies_alike():
    from spectile_study.cases.spamm.networks import vgg

    rng = np.random.default_rng(0)
    split = mnist.Split(*[
        part
        for count in (100, 200)
        for part in (rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count, dtype=np.uint8))
    ])  # fmt: skip
    layer = vgg.Layer("conv21", vgg.train(split, 1, "cpu", epochs=1), split, "cpu")
    assert layer.weights.shape == (128, 576) and layer.patches(1).shape == (576, 25600)
    assert layer.accuracy(lambda a, b: a @ b) == pytest.approx(layer.accuracy(), abs=0.011)
    with pytest.raises(ValueError, match="no convolution"):
        vgg.Layer("norm21", vgg.network(), split, "cpu")
