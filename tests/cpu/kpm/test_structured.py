"""One vector that stands for all: bounds, checks and fingerprints of matrices with its symmetries."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile.kpm import spectral_bounds
from spectile.kpm.checkpoint import fingerprint
from spectile.kpm.moments import make_engine
from spectile.kpm.observables import Observable

from ...structured import check_bounds, families, small

FORMS = {"matrix": sp.csr_array, "operator": aslinearoperator}


@pytest.mark.parametrize(("n", "entries", "each"), [(1, 2, 1), (2, 3, 1), (3, 3, 1), (4, 2, 1), (4, 3, 59), (5, 2, 31)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_bounds_hold_the_spectra_of_all_small_matrices(n, entries, each, dtype):
    every = small(n, (0, 1, -1)[:entries])[::each]
    for matrix, energies in zip(every, np.linalg.eigvalsh(every), strict=True):
        found = spectral_bounds(sp.csr_array(matrix.astype(dtype)), backend="cpu")
        check_bounds(found, energies, eps=np.finfo(dtype).eps)


@pytest.mark.parametrize(("form", "dtype"), list(itertools.product(FORMS, ["float32", "float64", "complex128"])))
def test_bounds_hold_the_spectra_of_structured_matrices(form, dtype):
    for n in (*range(3, 13), 16, 48, 64):
        for name, matrix in families(n).items():
            if not np.can_cast(matrix.dtype, dtype, "same_kind"):
                continue
            energies = np.linalg.eigvalsh(matrix)
            # At the last one rounding leaves four digits of the width.
            for far in (0.0, 1e4) if dtype == "float32" else (0.0, 1e4, 3e11):
                shift = far * (energies[-1] - energies[0])
                moved = (matrix + shift * np.eye(len(matrix))).astype(dtype)
                shown = np.linalg.eigvalsh((moved - shift * np.eye(len(matrix))).astype(np.complex128))
                found = spectral_bounds(FORMS[form](moved), backend="cpu")
                check_bounds(found, shown, shift, np.finfo(dtype).eps, f"{name}, {n} rows, moved by {shift}: {found}")


@pytest.mark.parametrize(("n", "entries"), [(1, [1j, 1]), (2, [0, 1]), (2, [0, 1, -1]), (2, [0, 1, 1j]), (3, [0, 1])])
def test_no_small_product_that_is_not_hermitian_is_taken(n, entries):
    for each in itertools.product(entries, repeat=n * n):
        matrix = np.array(each).reshape(n, n)
        engine = make_engine(sp.eye_array(n, dtype=np.result_type(matrix, np.float64)).tocsr(), "cpu")
        operator = aslinearoperator(matrix.astype(engine.dtype))
        checks = (
            make_engine(operator, "cpu").check_hermitian,
            lambda A=matrix, e=engine: Observable(A.__matmul__, e, "A"),
        )
        for check in checks:
            if (matrix == matrix.conj().T).all():
                check()
            else:
                with pytest.raises(ValueError, match="not Hermitian"):
                    check()


def test_a_bond_elsewhere_is_another_matrix():
    seen = [[], []]
    for site in range(20, 40):
        chain = sp.diags_array([np.ones(39), np.ones(39)], offsets=[-1, 1]).tolil()
        chain[19, site] += 0.5
        chain[site, 19] += 0.5
        engine = make_engine(chain.tocsr(), "cpu")
        seen[0].append(fingerprint(engine))
        chain[site, 19] = 0  # columns of one row alone
        seen[1].append(Observable(chain.tocsr(), engine, "A").shown())
    for each in seen:
        assert (abs(np.array(each)[:, None] - each).max(axis=2) + np.eye(20) > 1e-9).all()
