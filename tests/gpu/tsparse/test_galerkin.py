"""Products of three matrices on a GPU: those of the CPU, without the middle product in memory."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import galerkin
from spectile.tsparse.cuda import galerkin as on_device

from ...cpu.tsparse.test_galerkin import grid, with_large_middle
from .test_semirings import assert_same, on_gpu
from .test_spgemm import peak_bytes

pytestmark = pytest.mark.gpu
ROUND = {"f4": 1e-5, "f8": 1e-13, "c8": 1e-5, "c16": 1e-13}


@pytest.mark.parametrize("dtype", ROUND)
@pytest.mark.parametrize("block", [2**24, 5000])
def test_the_entries_are_those_of_the_cpu(dtype, block, monkeypatch):
    monkeypatch.setattr(on_device, "_BLOCK_PRODUCTS", block)
    A, P = grid(60, dtype)
    A = ((1 + 0.5j) * A).astype(dtype) if dtype[0] == "c" else A
    R = sp.csr_array(P.T)
    left, middle, right = map(on_gpu, (R, A, P))
    product = galerkin(left, middle, right)
    known = galerkin(R, A, P)
    assert product.C.dtype == np.dtype(dtype)
    assert_same(product.C, known.C, ROUND[dtype])
    for factor in (2, 3):
        other = A.copy()
        other.data = (factor * A.data * np.linspace(1, 2, A.nnz)).astype(dtype)
        assert_same(product.numeric(on_gpu(other)), known.numeric(other), ROUND[dtype])
    assert_same(galerkin(right.T, middle, right).C, known.C, ROUND[dtype])
    assert_same(galerkin(left, middle, right, memory_limit=2 * 10**6).C, known.C, ROUND[dtype])
    with pytest.raises(MemoryError, match="memory_limit is 5000 bytes, and copies of R, A and P and a row"):
        galerkin(left, middle, right, memory_limit=5000)


def test_the_middle_product_is_never_whole(monkeypatch):
    monkeypatch.setattr(on_device, "_BLOCK_PRODUCTS", 2**16)
    R, A, P = with_large_middle(30_000, 20_000, 0.02)
    left, middle, right = map(on_gpu, (R, A, P))
    galerkin(left, middle, right)
    products = int(np.diff(A.indptr)[R.indices].sum())
    assert peak_bytes(lambda: galerkin(left, middle, right)) < 12 * products / 4


def test_another_pattern_and_other_types_are_refused():
    A, P = grid(6)
    R = sp.csr_array(P.T)
    product = galerkin(*map(on_gpu, (R, A, P)))
    moved = A.copy()
    moved.indices[A.indptr[20] : A.indptr[21]] += 1
    for other in (moved, sp.csr_array(sp.eye_array(36))):
        with pytest.raises(ValueError, match=r"pattern of A differs .* call galerkin\(\) again"):
            product.numeric(on_gpu(other))
    with pytest.raises(TypeError, match="make another product"):
        product.numeric(on_gpu(1j * A))
    with pytest.raises(TypeError, match=r"R is of .* and A of"):
        galerkin(on_gpu(R), A, on_gpu(P))
