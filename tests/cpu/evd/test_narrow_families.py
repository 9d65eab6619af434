"""LAPACK's generated families as tridiagonal, banded and generalized problems of odd orders."""

import pytest

from ...eigenproblems import NARROW_FAMILIES, check_narrow_families


@pytest.mark.parametrize("family", NARROW_FAMILIES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("n", [1, 2, 31, 97])
def test_families(family, dtype, n):
    check_narrow_families(family, n, dtype, "cpu")
