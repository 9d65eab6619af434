"""The vendor's product of a block with one fused update: its scalar products are those of the chain of calls."""

import numpy as np
import pytest

from spectile_study.cases.kpm import spmm
from spectile_study.cases.kpm.rivals import etas_naive

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("width", [1, 3, 32, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_steps_are_those_of_the_chain_of_calls(dtype, width):
    import cupy
    import scipy.sparse
    from cupyx.scipy.sparse import csr_matrix

    rng = np.random.default_rng(2)
    matrix = scipy.sparse.random_array((1000, 1000), density=0.01, format="csr", rng=rng)
    matrix = scipy.sparse.csr_matrix(0.2 * (matrix + matrix.T)).astype(dtype)
    start = rng.standard_normal((1000, width)).astype(dtype)
    v, w = cupy.asarray(start), cupy.zeros((1000, width), dtype)
    product = spmm.Vendor(csr_matrix(matrix), v, w)
    found = spmm.etas_fused(product, spmm.shift_and_dots, v, w, 4, 0.3, 0.2).get()
    wide = np.result_type(dtype, np.float64)
    expected = etas_naive(matrix.astype(wide), np.asfortranarray(start.astype(wide)), 4, 0.3, 0.2)
    tolerance = 1e-12 if np.dtype(dtype).itemsize >= 8 and dtype != "complex64" else 1e-4
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * abs(expected).max())


def test_a_block_that_is_too_wide_is_refused():
    import cupy
    from cupyx.scipy.sparse import identity

    block = cupy.zeros((4, spmm.THREADS + 1))
    with pytest.raises(ValueError, match="wider than the fused kernel"):
        spmm.Vendor(identity(4, format="csr"), block, block.copy())
