import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import mmread
from scipy.sparse import csr_array

from spectile_study.inputs import families

MIRROR = Path(os.environ.get("SPECTILE_MIRROR", Path(__file__).parents[4] / "shared" / "suitesparse"))
needs_mirror = pytest.mark.skipif(
    not (MIRROR / "MM").is_dir(), reason=f"no SuiteSparse mirror at {MIRROR}; set SPECTILE_MIRROR to one"
)


def published(group, name, tmp_path):
    with tarfile.open(MIRROR / "MM" / group / f"{name}.tar.gz") as archive:
        archive.extract(f"{name}/{name}.mtx", tmp_path, filter="data")
    matrix = csr_array(mmread(tmp_path / name / f"{name}.mtx")).astype(np.float64)
    matrix.sort_indices()
    return matrix


@needs_mirror
@pytest.mark.parametrize("length", [8, 9, 10, 11])
def test_cage_is_the_collections_matrix(length, tmp_path):
    expected = published("vanHeukelum", f"cage{length}", tmp_path)
    ours = families.cage(length)
    np.testing.assert_array_equal(ours.indptr, expected.indptr)
    np.testing.assert_array_equal(ours.indices, expected.indices)
    assert np.abs(ours.data - expected.data).max() <= 1e-15


@needs_mirror
def test_epidemic_is_the_collections_matrix(tmp_path):
    expected = published("Williams", "mc2depi", tmp_path)
    ours = families.epidemic()
    np.testing.assert_array_equal(ours.indptr, expected.indptr)
    np.testing.assert_array_equal(ours.indices, expected.indices)
    np.testing.assert_array_equal(ours.data, expected.data)


# Rows and nonzeros in SuiteSparse's index; cage12 and mc2depi also in tSparse's Table 1.
@pytest.mark.parametrize(
    ("name", "n", "nnz"),
    [
        ("cage3", 5, 19),
        ("cage4", 9, 49),
        ("cage5", 37, 233),
        ("cage6", 93, 785),
        ("cage7", 340, 3084),
        ("cage12", 130228, 2032536),
        ("mc2depi", 525825, 2100225),
    ],
)
def test_published_counts(name, n, nnz):
    matrix = families.generate(name)
    assert matrix.shape == (n, n)
    assert matrix.nnz == nnz
    assert np.count_nonzero(matrix.data) == nnz


# n and nz of the MARCA collection's own table of the epidemic.
@pytest.mark.parametrize(("x", "y", "n", "nnz"), [(10, 10, 121, 441), (64, 16, 1105, 4257), (256, 64, 16705, 66177)])
def test_marca_counts(x, y, n, nnz):
    matrix = families.epidemic(x, y)
    assert matrix.shape == (n, n)
    assert matrix.nnz == nnz
    assert np.abs(matrix.sum(axis=1)).max() == 0


@pytest.mark.parametrize("length", [3, 6, 9])
def test_cage_is_a_stochastic_matrix(length):
    matrix = families.cage(length)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-14)
    assert matrix.data.min() > 0
    assert ((matrix != 0) != (matrix.T != 0)).nnz == 0  # every move can be undone


def test_cage_of_three_monomers_by_hand():
    # States: straight, then up-down and down-up with the ends apart, then the same two with the ends on one site.
    ways = families.cage(3).toarray() * 18 * np.cosh(0.1)
    up, down = np.exp(0.1), np.exp(-0.1)
    # Straight: either end turns over, and lands on the other end in one of three cases.
    np.testing.assert_allclose(ways[1:, 0], [2 * down, 2 * up, down, up], rtol=1e-14)
    # Up-down with the ends together: an end goes up (3 sites) or to one of 2 empty sites below; the middle goes below.
    np.testing.assert_allclose(ways[[0, 1, 2, 4], 3], [6 * up, 4 * down, 0, 3 * down], rtol=1e-14)


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 5), (7, 2), (50, 49), (5000, 3)])
def test_banded(n, k):
    matrix = families.banded(n, k, seed=3)
    rows, columns = matrix.nonzero()
    width = min(k, n - 1)
    assert np.abs(rows - columns).max() == width
    assert matrix.nnz == n * (2 * width + 1) - width * (width + 1)
    assert np.abs(matrix.data).max() <= 1


def test_banded_density():
    matrix = families.banded(2000, 50, density=0.3)
    assert np.all(matrix.diagonal() != 0)
    assert matrix.nnz == pytest.approx(0.3 * 2000 * 101, rel=0.05)


@pytest.mark.parametrize("elements", [(1, 1), (6, 5), (1, 1, 1), (3, 4, 2)])
def test_elasticity_is_symmetric_and_definite(elements):
    matrix = families.elasticity(elements, seed=1)
    dim = len(elements)
    assert matrix.shape[0] == dim * elements[0] * np.prod([count + 1 for count in elements[1:]])
    dense = matrix.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    assert np.linalg.eigvalsh(dense)[0] > 1e-3


@pytest.mark.parametrize("dim", [2, 3])
def test_element_stiffness_knows_rigid_motions(dim):
    stiffness = families._element_stiffness(dim)
    corners = np.array(list(np.ndindex(*(2,) * dim)), dtype=float)
    motions = [np.tile(np.eye(dim)[d], len(corners)) for d in range(dim)]
    rotation = np.zeros_like(corners)
    rotation[:, 0], rotation[:, 1] = -corners[:, 1], corners[:, 0]
    for motion in [*motions, rotation.ravel()]:
        np.testing.assert_allclose(stiffness @ motion, 0, atol=1e-14)
    assert np.sum(np.linalg.eigvalsh(stiffness) < 1e-12) == dim * (dim + 1) // 2


def test_rmat_is_a_skewed_pattern():
    matrix = families.rmat(12, 16)
    assert set(matrix.data) == {1.0}
    assert 8 * 4096 < matrix.nnz < 16 * 4096
    assert np.diff(matrix.indptr).max() > 10 * matrix.nnz / 4096


@pytest.mark.parametrize("name", ["banded_300_5_d40", "elasticity2d_4x5", "elasticity3d_2x3x4", "rmat_8_4"])
def test_same_seed_same_matrix(name):
    first, again, other = (families.generate(n) for n in (name, name + "_s0", name + "_s1"))
    assert (first != again).nnz == 0
    assert (first != other).nnz > 0


def test_a_name_of_the_collection_is_no_familys():
    assert families.is_family("cage11") and not families.is_family("vanHeukelum/cage11")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "names no generated matrix"),
        ("cage2", "cage3 to cage15"),
        ("cage16", "cage3 to cage15"),
        ("banded_0_3", "at least 1"),
        ("banded_5_3_d0", "density"),
        ("elasticity2d_0x3", "at least 1"),
        ("rmat_0", "scale"),
        ("rmat_4_0", "edges"),
        ("mc2depi_0x4", "at least 1"),
    ],
)
def test_bad_names_are_worded(name, words):
    with pytest.raises(ValueError, match=words):
        families.generate(name)
