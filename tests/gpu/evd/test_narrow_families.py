"""LAPACK's generated families as tridiagonal, banded and generalized problems of odd orders on a GPU."""

import pytest

from ...eigenproblems import NARROW_FAMILIES, check_narrow_families

pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", NARROW_FAMILIES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("n", [1, 2, 31, 97, 333])
def test_families(family, dtype, n):
    check_narrow_families(family, n, dtype, "cuda")
