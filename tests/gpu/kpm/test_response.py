"""Functions, correlators and conductivities on the GPU: as on the CPU."""

import numpy as np
import pytest

from spectile.kpm import apply, conductivity, correlator, evolve, greens_function
from spectile.kpm.operators.lattices import anderson
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from tests.hamiltonians import haldane, unit_vectors

pytestmark = pytest.mark.gpu

FORMS = {
    "real": anderson(10, disorder=2, rng=1),
    "complex": haldane(16)[0],
    "stencil": TopologicalInsulator(6, 5, 8),
}


def on_host(array):
    return array.get() if hasattr(array, "get") else array


@pytest.mark.parametrize("width", [1, 5, 17])
@pytest.mark.parametrize("form", FORMS)
def test_functions_are_those_of_the_cpu(form, width):
    import cupy

    H, rng = FORMS[form], np.random.default_rng(2)
    psi = rng.standard_normal((H.shape[0], width)) + 1j * rng.standard_normal((H.shape[0], width))
    times = np.linspace(-3, 5, 20)
    found = evolve(H, psi, times, backend="cuda")
    assert isinstance(found, cupy.ndarray) and found.shape == (20, *psi.shape)
    np.testing.assert_allclose(found.get(), evolve(H, psi, times, backend="cpu"), atol=1e-10)
    # Few times and many are summed in two ways, of real vectors in a third.
    for few in (1.5, [-1.0, 2.0], [0.5, 1.0, 4.0]):
        for start in (psi, psi.real, psi.astype(np.complex64)):
            np.testing.assert_allclose(
                evolve(H, start, few, backend="cuda").get(), evolve(H, start, few, backend="cpu"), atol=1e-10
            )
    image = apply(np.cos, H, cupy.asarray(psi))
    np.testing.assert_allclose(image.get(), apply(np.cos, H, psi, backend="cpu"), atol=1e-10)
    for i in ([0, 9], None):
        mine = greens_function(H, i, [4, 5], [0.1, 1.0], 0.4, backend="cuda")
        np.testing.assert_allclose(
            on_host(mine), greens_function(H, i, [4, 5], [0.1, 1.0], 0.4, backend="cpu"), atol=1e-9
        )


@pytest.mark.parametrize("width", [1, 3, 11])
@pytest.mark.parametrize("form", FORMS)
def test_moments_with_an_operator_like_h_are_those_of_the_cpu(form, width):
    H = FORMS[form]
    B = H.matrix() if isinstance(H, TopologicalInsulator) else H
    for A, other in ((B, B), (None, B @ B), (B, None)):
        for given in (
            {"num_vectors": width, "rng": 1},
            {"vectors": np.exp(1j * np.arange(H.shape[0] * width)).reshape(-1, width)},
        ):
            here = correlator(H, A, other, num_moments=70, backend="cpu", **given)
            there = correlator(H, A, other, num_moments=70, bounds=here.bounds, backend="cuda", **given)
            size = abs(here.moments_by_vector).max()
            np.testing.assert_allclose(there.moments_by_vector, here.moments_by_vector, atol=1e-11 * size)


@pytest.mark.parametrize("memory_limit", [None, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_moments_are_those_of_the_cpu(form, memory_limit):
    H = FORMS[form]
    A = anderson(10, disorder=1, rng=3)[: H.shape[0], : H.shape[0]] if H.shape[0] <= 1000 else None
    arguments = dict(num_moments=20, num_vectors=3, rng=1, memory_limit=memory_limit)
    here = correlator(H, A, 1j * A.toarray() if A is not None else None, backend="cpu", **arguments)
    there = correlator(
        H, A, 1j * A.toarray() if A is not None else None, bounds=here.bounds, backend="cuda", **arguments
    )
    np.testing.assert_allclose(there.moments_by_vector, here.moments_by_vector, atol=1e-8)


def test_haldanes_plateau_on_a_gpu():
    H, r, periods = haldane(24)
    cell = unit_vectors(len(r), [0, 1])
    sigma = conductivity(H, "x", "y", r, periods=periods, vectors=cell, num_moments=192, backend="cuda")
    np.testing.assert_allclose(sigma([0.0, 0.2]), 1.0, atol=0.01)


def test_operators_on_a_gpu_are_checked():
    import cupy

    H = FORMS["real"]
    dense = cupy.asarray(H.toarray())
    arguments = dict(num_moments=6, num_vectors=2, rng=1)
    here = correlator(H, H, None, backend="cpu", **arguments)
    there = correlator(H, lambda block: dense @ block, None, bounds=here.bounds, backend="cuda", **arguments)
    np.testing.assert_allclose(there.moments, here.moments, atol=1e-8)

    def writes(block):
        block *= 2
        return block

    with pytest.raises(ValueError, match="A writes into its input"):
        correlator(H, writes, None, backend="cuda")
