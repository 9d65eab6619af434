"""Rows that share columns, on tensor cores: equal to the float64 reference for every type, width and size of group."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import kpm_dos, reference
from spectile_study.inputs.hamiltonians import hamiltonian

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DTYPES = ("float32", "float64", "complex64", "complex128")
A, B = 0.11, 0.05


def block_matrix(cells, dtype, rng):
    """Return a Hermitian matrix of dense blocks: cells of 1 to 20 rows, some coupled to nobody, some empty."""
    sizes = rng.integers(1, 21, cells)
    graph = sp.random(cells, cells, min(1, 3 / cells), random_state=rng) + sp.eye(cells)
    graph = (graph + graph.T).toarray() != 0
    lonely = rng.integers(0, cells, 2)
    graph[lonely] = graph[:, lonely] = False
    of_row = np.repeat(np.arange(cells), sizes)
    row, column = np.nonzero(graph[of_row][:, of_row])
    values = rng.normal(size=(2, row.size))
    dense = np.zeros((of_row.size,) * 2, np.complex128)
    dense[row, column] = values[0] + 1j * values[1]
    dense = (dense + dense.conj().T) / 40
    matrix = sp.csr_matrix((dense[row, column], (row, column)), shape=dense.shape)
    return (matrix if np.dtype(dtype).kind == "c" else matrix.real).astype(dtype)


@pytest.mark.parametrize("num_vectors", [8, 16, 24, 32, 40, 64, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_every_size(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.core.device import describe
    from spectile.kpm.cuda.choose import groups
    from spectile.kpm.cuda.grouped import GroupedOperator, groups_of
    from spectile.kpm.cuda.stored import StoredRecursion

    if not groups(num_vectors, dtype, 63, describe()):
        pytest.skip("this width, or a device with slow float64, takes other kernels")
    rng = np.random.default_rng(SEED)
    for cells in (1, 2, 37, 300):
        H = block_matrix(cells, dtype, rng)
        on_gpu = csr_matrix(H)
        edges = groups_of(on_gpu).get()
        assert edges[0] == 0 and edges[-1] == H.shape[0] and np.diff(edges).min() >= 1 and np.diff(edges).max() <= 8
        operator = GroupedOperator(on_gpu)
        etas = StoredRecursion(operator, A, B, operator.random_block(SEED, 0, num_vectors)).advance(7)
        start = reference.random_phases(SEED, H.shape[0], num_vectors, real=np.dtype(dtype).kind != "c")
        expected = reference.etas_blocked(H.astype(np.result_type(dtype, np.float64)), start, 14, A, B)
        limit = 1e-12 if np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 8 else 1e-5
        assert np.abs(etas - expected).max() / max(1.0, np.abs(expected).max()) < limit, f"seed {SEED}, {cells} cells"


def test_modes_without_dots_and_without_the_recurrence():
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.choose import groups
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.cuda.units import NO_DOTS, PLAIN

    if not groups(32, "float64", 63, describe()):
        pytest.skip("a device with slow float64 takes other kernels")
    matrix = hamiltonian("wannier", 3000, np.float64, cupy)
    operator = GroupedOperator(matrix)
    v = operator.random_block(SEED, 0, 32)
    w = cupy.full_like(v, np.nan)
    operator.launcher(32, PLAIN)(v, w, 1.0, 0.0, 0.0, None)
    cupy.testing.assert_allclose(w, matrix @ v, atol=1e-12)
    before = w.copy()
    operator.launcher(32, NO_DOTS)(v, w, 2.0, 0.5, 1.0, None)
    cupy.testing.assert_allclose(w, 2 * (matrix @ v) + 0.5 * v - before, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_vectors", [8, 32])
def test_kpm_dos_takes_them_and_repeats_to_the_bit(dtype, num_vectors):
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.grouped import GroupedOperator
    from spectile.kpm.moments import make_engine

    matrix = hamiltonian("wannier", 20000, dtype, cupy)
    taken = isinstance(make_engine(matrix)._format(num_vectors), GroupedOperator)
    assert taken == describe().fast_fp64
    runs = [kpm_dos(matrix, 60, num_vectors, rng=3).moments for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    on_cpu = kpm_dos(hamiltonian("wannier", 20000, dtype), 60, num_vectors, rng=3, backend="cpu")
    limit = 1e-9 if dtype in ("float64", "complex128") else 1e-3
    np.testing.assert_allclose(runs[0], on_cpu.moments, rtol=0, atol=limit * matrix.shape[0])
