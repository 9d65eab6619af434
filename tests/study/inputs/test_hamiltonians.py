"""Matrices of users: Hermitian, canonical, of the rows and entries that their models have."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm.operators import lattices
from spectile_study.inputs.hamiltonians import ORBITALS, hamiltonian

ENTRIES = {"graphene": 3, "anderson": 7, "hopping": 8, "wannier": 9 * ORBITALS}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("kind", ENTRIES)
def test_hermitian_and_canonical(kind, dtype):
    H = hamiltonian(kind, 1500, dtype)
    assert H.dtype == dtype and 1000 < H.shape[0] <= 1500 and H.nnz == ENTRIES[kind] * H.shape[0]
    assert abs(H - H.conj().T).max() == 0
    again = sp.csr_array((H.data, H.indices, H.indptr), shape=H.shape)
    assert again.has_canonical_format
    if np.dtype(dtype).kind == "c":
        assert np.abs(H.data.imag).max() > 0.5
    assert np.abs(H.diagonal()).max() > 0.5 if kind in ("anderson", "wannier") else not H.diagonal().any()


def test_graphene_and_the_cube_are_the_librarys():
    honeycomb = hamiltonian("graphene", 2 * 7**2, np.float64)
    assert abs(honeycomb - lattices.graphene(7, 7)).max() == 0
    cube = hamiltonian("anderson", 6**3, np.float64)
    theirs = lattices.anderson(6, disorder=0.0)
    assert abs(cube - sp.diags_array(cube.diagonal()) - theirs).max() == 0


def test_blocks_of_orbitals_share_their_columns():
    H = hamiltonian("wannier", 30 * ORBITALS, np.float64)
    columns = H.indices.reshape(-1, ORBITALS, 9 * ORBITALS)
    np.testing.assert_array_equal(columns, columns[:, :1].repeat(ORBITALS, axis=1))
    # Energies and hops are random, and no two cells alike.
    assert len(np.unique(H.data)) > 0.45 * H.nnz
