"""SciPy's own tests of its eigensolvers, run from the installed SciPy with ours on the GPU in the place of SciPy's."""

import functools

import pytest
from scipy.linalg.tests import test_decomp

from spectile import evd

pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu
NAMES = ("eigh", "eigvalsh", "eigh_tridiagonal", "eigvalsh_tridiagonal", "eig_banded", "eigvals_banded")


@pytest.fixture(autouse=True)
def ours_in_their_place(monkeypatch):
    for name in NAMES:
        monkeypatch.setattr(test_decomp, name, functools.partial(getattr(evd, name), backend="cuda"))


class TestEigh(test_decomp.TestEigh):
    """SciPy's."""


class TestEigBanded(test_decomp.TestEigBanded):
    """SciPy's."""


class TestEigTridiagonal(test_decomp.TestEigTridiagonal):
    """SciPy's."""


@pytest.mark.parametrize("name", ["eigh", "eigvalsh", "eig_banded", "eigvals_banded"])
def test_nothing_is_overwritten(name):
    getattr(test_decomp.TestOverwrite(), f"test_{name}")()
