"""Densities of operators and of given vectors on the GPU: as on the CPU."""

import numpy as np
import pytest

from spectile.kpm import kpm_dos, ldos
from spectile.kpm.operators.lattices import anderson
from tests.hamiltonians import haldane

pytestmark = pytest.mark.gpu

FORMS = {"real": anderson(8, disorder=2, rng=1), "complex": haldane(16, mass=0.3)[0]}


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_moments_are_those_of_the_cpu(form, kind):
    import cupy

    H, rng = FORMS[form], np.random.default_rng(4)
    n = H.shape[0]
    A = rng.standard_normal((n, n))
    A = A + A.T
    block = rng.standard_normal((n, 5)) + (1j * rng.standard_normal((n, 5)) if kind == "c" else 0)
    on_gpu = cupy.asarray(A)
    for operator, its in ((None, None), (A, A), (lambda x: A @ x, lambda x: on_gpu @ x)):
        here = kpm_dos(H, 21, operator=operator, vectors=block, mean=False, backend="cpu")
        there = kpm_dos(
            H, 21, operator=its, vectors=cupy.asarray(block), mean=False, bounds=here.bounds, backend="cuda"
        )
        np.testing.assert_allclose(there.moments, here.moments, atol=1e-9 * n)
    here = kpm_dos(H, 20, 3, rng=1, operator=A, backend="cpu")
    there = kpm_dos(H, 12, 2, rng=1, operator=A, bounds=here.bounds, backend="cuda")
    there.add_vectors(1)
    there.add_moments(8)
    np.testing.assert_allclose(there.moments, here.moments, atol=1e-9 * n)
    np.testing.assert_allclose(
        ldos(H, [1, 9], 16, operator=A, bounds=here.bounds, backend="cuda").moments,
        ldos(H, [1, 9], 16, operator=A, bounds=here.bounds, backend="cpu").moments,
        atol=1e-9 * n,
    )


def test_vectors_whose_squares_leave_the_range_have_their_moments():
    import cupy

    H = FORMS["real"].astype(np.float32)
    block = np.random.default_rng(4).standard_normal((H.shape[0], 3)).astype(np.float32)
    sizes = np.array([2.0**-100, 1, 2.0**70], np.float32)
    expected = kpm_dos(H, 21, vectors=cupy.asarray(block), mean=False, bounds=(-8, 8), backend="cuda")
    found = kpm_dos(H, 21, vectors=cupy.asarray(block * sizes), mean=False, bounds=(-8, 8), backend="cuda")
    np.testing.assert_allclose(found.moments, expected.moments * sizes.astype(float) ** 2, rtol=1e-6)
