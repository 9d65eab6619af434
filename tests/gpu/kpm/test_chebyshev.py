"""The public iterator on the GPU: as on the CPU, for every form of H and every kernel, and without copies."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import chebyshev, spectral_bounds
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

from ...structured import check_bounds, families

pytestmark = pytest.mark.gpu


def blocks_of_rows(n, width):
    dense = np.random.default_rng(3).standard_normal((n // width, width, width))
    return sp.block_diag([block + block.T for block in dense], format="csr")


FORMS = {
    "lattice": anderson(14, disorder=3, rng=1),
    "rows that repeat": graphene(40, 30),
    "float32": graphene(40, 30).astype("float32"),
    "dense blocks": blocks_of_rows(2048, 16),
    "complex": TopologicalInsulator(6, 5, 8).matrix(),
    "stencil": TopologicalInsulator(6, 5, 8),
    "ragged": sp.csr_array(np.diag(np.arange(300.0)) + np.eye(300, k=7) + np.eye(300, k=-7)),
}


@pytest.mark.parametrize("width", [1, 3, 16, 33])
@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_items_are_those_of_the_cpu(form, kind, width):
    import cupy

    H, rng = FORMS[form], np.random.default_rng(5)
    start = rng.standard_normal((H.shape[0], width))
    start = start if kind == "f" else start + 1j * rng.standard_normal(start.shape)
    if form == "float32":
        start = start.astype("float32" if kind == "f" else "complex64")
    on_gpu = cupy.asarray(start)
    here = chebyshev(H, start, 70, backend="cpu")
    there = chebyshev(H, on_gpu, 70, bounds=here.bounds, backend="cuda")
    tolerance = 2e-3 if form == "float32" else 1e-10
    for mine, its in zip(there, here, strict=True):
        assert isinstance(mine, cupy.ndarray) and mine.dtype == its.dtype and mine.shape == its.shape
        np.testing.assert_allclose(mine.get(), its, atol=tolerance)
    np.testing.assert_array_equal(on_gpu.get(), start)


@pytest.mark.parametrize("form", ["lattice", "complex", "stencil"])
def test_overlaps_are_those_of_the_cpu(form):
    H, rng = FORMS[form], np.random.default_rng(6)
    start, bra = (rng.standard_normal((H.shape[0], 4)) + 1j * rng.standard_normal((H.shape[0], 4)) for _ in range(2))
    here = chebyshev(H, start, 21, bra=bra, backend="cpu")
    there = chebyshev(H, start, 21, bra=bra, bounds=here.bounds, backend="cuda")
    for mine, its in zip(there, here, strict=True):
        np.testing.assert_allclose(mine.get(), its, atol=1e-9)


def test_vectors_on_a_gpu_choose_it_and_are_not_copied():
    import cupy

    blocks = list(chebyshev(FORMS["lattice"], cupy.ones((14**3, 16)), 6))
    for even in blocks[2::2]:
        assert cupy.may_share_memory(even, blocks[0])


@pytest.mark.parametrize("form", ["lattice", "stencil"])
@pytest.mark.parametrize("num_moments", [3, 9, 200])
def test_a_spectrum_outside_the_bounds_never_ends_in_numbers(form, num_moments):
    low, high = spectral_bounds(FORMS[form], backend="cuda")
    start = np.random.default_rng(7).standard_normal((FORMS[form].shape[0], 3))
    with pytest.raises(ValueError, match="leaves the bounds"):
        list(chebyshev(FORMS[form], start, num_moments, bounds=(low / 3, high / 3), backend="cuda"))


@pytest.mark.parametrize("form", ["lattice", "stencil"])
def test_several_partitions_are_as_one(form):
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    H, rng = FORMS[form], np.random.default_rng(8)
    start = rng.standard_normal((H.shape[0], 6)) + 1j * rng.standard_normal((H.shape[0], 6))
    here = chebyshev(H, start, 20, backend="cpu")
    there = chebyshev(MultiGpuMatrix(H, [0, 0]), start, 20, bounds=here.bounds)
    for mine, its in zip(there, here, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("form", ["matrix", "operator"])
def test_bounds_hold_the_spectra_of_structured_matrices(form, dtype):
    import cupy
    from cupyx.scipy.sparse.linalg import aslinearoperator

    for n in (*range(3, 10), 16, 48, 64):
        for name, matrix in families(n).items():
            if not np.can_cast(matrix.dtype, dtype, "same_kind"):
                continue
            given = matrix.astype(dtype)
            H = sp.csr_array(given) if form == "matrix" else aslinearoperator(cupy.asarray(given))
            found = spectral_bounds(H, backend="cuda")
            check_bounds(found, np.linalg.eigvalsh(matrix), 0.0, np.finfo(dtype).eps, f"{name}, {n} rows: {found}")


@pytest.mark.parametrize("form", ["lattice", "complex", "stencil"])
def test_bounds_are_those_of_the_cpu(form):
    here, there = (spectral_bounds(FORMS[form], backend=backend) for backend in ("cpu", "cuda"))
    np.testing.assert_allclose(there, here, rtol=1e-6)
